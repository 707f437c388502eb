// A linear of all rows: compute side (stream times activations) and epilogue side (reduce, finish, store).
#pragma once
#include "ranks.cuh"

// ---- compute warps. `warp` 0..COMPUTE_WARPS-1; row block r0 + sub * grid, chunks split over 2^split_log2 warps.
template <bool MX>
INLINE void linear_compute(const Stage& s, const Health& health, Ring& ring, Passes& passes,
                           u32& ready_parity, u32 warp, u32 lane, u32 stage) {
  constexpr u32 CHUNK_BYTES = MX ? 4096 : 2048;  // of activations of 8 rows
  const u32 split = 1u << s.split_log2, subs = COMPUTE_WARPS >> s.split_log2, sub = warp >> s.split_log2;
  const u32 start = first_row_block(s), base = shared_address(shared_activations());
  if (start >= s.row_blocks) return;
  for (u32 part = 0; part < s.parts; part++) {
    const u32 chunks = chunks_of_part(s, part);
    const u32 buffer = s.parts > 1 ? part & 1u : 0u, x = base + buffer * (PLANE / 2);
    wait_phase(health, ready_bar(buffer), ready_parity_of(ready_parity, buffer), stage, REGION_ACTIVATIONS);
    ready_parity ^= 1u << buffer;
    for (u32 r0 = start; r0 < s.row_blocks; r0 += subs * ctas()) {
      float acc[ROW_TILES][4];
#pragma unroll
      for (int n = 0; n < ROW_TILES; n++) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.f;
      if (r0 + sub * ctas() < s.row_blocks)
        for (u32 c = warp & (split - 1); c < chunks; c += split)
          consume_chunk<MX, PLANE>(health, ring, acc, x + c * CHUNK_BYTES, lane, stage);
      await_red_free(passes);
      float* red = shared_red() + passes.buffer * RED_FLOATS + warp * 4 * ROW_TILES * 32 + lane;
#pragma unroll
      for (int i = 0; i < 4 * ROW_TILES; i++) red[i * 32] = acc[i >> 2][i & 3];
      publish_red(passes);
    }
  }
}

// ---- epilogue warps

// Brings part `part` of the input to shared memory and completes its `ready`. Where there are several, they take turns in
// two halves of the room, so that one is on its way while the other is multiplied.
INLINE void load_part(const Args& a, const Stage& s, u32 part, u32 thread) {
  const u32 chunk = s.mxfp8 ? 256 : 128, size = chunks_of_part(s, part) * chunk, from = part * s.part_chunks * chunk;
  const u32 buffer = s.parts > 1 ? part & 1u : 0u, to = shared_address(shared_activations()) + buffer * (PLANE / 2);
  if (!s.row_major) {
    if (thread == 0) {
      fence_bulk_global();
      phase_expect(ready_bar(buffer), ROW_TILES * size * 16);
      for (u32 n = 0; n < ROW_TILES; n++)
        bulk_copy(to + n * PLANE, s.input + ((u64)n * s.inner + from) * 16, size * 16,
                  ready_bar(buffer));
    } else {
      announce_ready(buffer, thread);
    }
    return;
  }
  const u32 rows = fixed().step[STEP_CONTEXT], units = size / 8;  // of 16 bytes, per row
#pragma unroll 4
  for (u32 i = thread; i < ROWS * units; i += EPILOGUE_THREADS) {
    const u32 row = i / units, k = (i - row * units) * 8;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (row < rows && from + k < s.columns) v = __ldcg((const uint4*)(s.input + ((u64)row * s.columns + from + k) * 2));
    store_shared16(to + fragment(row, k, PLANE), v);
  }
  fence_bulk_shared();
  epilogue_sync();
  announce_ready(buffer, thread);
}

// factor[row] = 1 / sqrt(mean square + eps) of the input rows, from the partial sums in a fixed order.
INLINE void row_factors(const float* squares, float* factor, u32 thread) {
  for (u32 row = thread >> 5; row < ROWS; row += EPILOGUE_WARPS) {
    float sum = 0.f;
#pragma unroll 8
    for (u32 i = thread & 31; i < HIDDEN_PADDED / 16; i += 32) sum += __ldcg(squares + row * (HIDDEN_PADDED / 16) + i);
#pragma unroll
    for (int m = 16; m; m >>= 1) sum += __shfl_xor_sync(~0u, sum, m);
    if ((thread & 31) == 0) factor[row] = rsqrtf(sum * (1.f / HIDDEN) + NORM_EPS);
  }
}

INLINE float sigmoid(float x) { return __fdividef(1.f, 1.f + __expf(-x)); }

// gate and up are bf16 values.
INLINE float gated(float gate, float up) {
#if ACTIVATION == 0
  return gate * sigmoid(gate) * up;
#elif ACTIVATION == 1
  gate = gate > SWIGLU_LIMIT ? SWIGLU_LIMIT : gate;
  up = up > SWIGLU_LIMIT ? SWIGLU_LIMIT : up < -SWIGLU_LIMIT ? -SWIGLU_LIMIT : up;
  return gate * sigmoid(gate * SWIGLU_ALPHA) * (up + SWIGLU_BETA);
#else
  return 0.5f * gate * (1.f + tanhf(0.7978845608028654f * (gate + 0.044715f * gate * gate * gate))) * up;
#endif
}

// Dot of row `row` of the part in shared memory with the confidence weights; valid in thread 0.
INLINE float confidence_part(const Args& a, u32 x, float* scratch, u32 row, u32 from, u32 size, u32 thread) {
  float sum = 0.f;
  for (u32 k = thread * 8; k < size; k += EPILOGUE_THREADS * 8) {
    uint4 v = load_shared16(x + fragment(row, k, PLANE));
    const float4* w = (const float4*)(a.confidence + from + k);
    float4 w0 = __ldg(w), w1 = __ldg(w + 1);
    sum += low_bf16(v.x) * w0.x + high_bf16(v.x) * w0.y + low_bf16(v.y) * w0.z + high_bf16(v.y) * w0.w;
    sum += low_bf16(v.z) * w1.x + high_bf16(v.z) * w1.y + low_bf16(v.w) * w1.z + high_bf16(v.w) * w1.w;
  }
#pragma unroll
  for (int m = 16; m; m >>= 1) sum += __shfl_xor_sync(~0u, sum, m);
  if ((thread & 31) == 0) scratch[thread >> 5] = sum;
  epilogue_sync();
  float total = 0.f;
  if (thread == 0)
    for (u32 i = 0; i < EPILOGUE_WARPS; i++) total += scratch[i];
  return total;
}

// Sums over the eight pairs of columns of a 16-wide tile (lanes that differ in the low three bits).
INLINE float tile_sum(float v) {
#pragma unroll
  for (int m = 1; m < 8; m <<= 1) v += __shfl_xor_sync(~0u, v, m);
  return v;
}

INLINE float base_logit(float x) {
#ifdef LOGIT_SOFTCAP
  return round_bf16(LOGIT_SOFTCAP * tanhf(round_bf16(x) / LOGIT_SOFTCAP));
#else
  return round_bf16(x);
#endif
}

// Stores the finished pair y of (row, columns k, k + 1). All 32 lanes call it, `live` or not.
INLINE void finish_pair(const Args& a, const Stage& s, float2 y, float2 up, u32 row, u32 k, bool live) {
#if RANKS > 1
  if (s.out == OUT_PARTIAL) {
    if (live) put_partial(a, s.step, y, row, k);
    return;
  }
#endif
#ifdef JOINS
  if (s.out == OUT_DELTA) {  // a join follows: rounded, with its sums of squares
    const float low = round_bf16(y.x), high = round_bf16(y.y), square = tile_sum(low * low + high * high);
    if (live) *(u32*)((u8*)s.output + fragment(row, k, HIDDEN_PADDED * 16)) = pack_bf16(low, high);
    if (live && (k & 15) == 0) a.squares[(ROWS + row) * (HIDDEN_PADDED / 16) + (k >> 4)] = square;
    return;
  }
#endif
  if (s.out == OUT_ROWS || s.out == OUT_HEADS) {
    if (live) *(u32*)((u16*)s.output + (u64)row * s.columns + k) = pack_bf16(y.x, y.y);
  } else if (s.out == OUT_LOGITS) {
    if (live && row < (u32)fixed().step[STEP_REQUESTS] * BLOCK)
      *(float2*)((float*)s.output + (u64)row * s.columns + k) = make_float2(base_logit(y.x), base_logit(y.y));
  } else if (s.out == OUT_GATED) {
    if (live) {
      float low = round_bf16(gated(round_bf16(y.x), round_bf16(up.x)));
      float high = round_bf16(gated(round_bf16(y.y), round_bf16(up.y)));
      *(u32*)((u8*)s.output + fragment(row, k, s.columns * 16)) = pack_bf16(low * FEEDS_MX, high * FEEDS_MX);
    }
  } else {
    float low = round_bf16(y.x), high = round_bf16(y.y);
    const u32 at = fragment(row, k, HIDDEN_PADDED * 16);
    if (s.out == OUT_RESIDUAL && live) {
      u32* residual = (u32*)((u8*)a.residual + at);
      u32 old = __ldcg(residual);
      low += low_bf16(old), high += high_bf16(old);
#ifdef JOINS
      const float scalar = __ldg((const float*)s.weights + HIDDEN_PADDED);
      low *= scalar, high *= scalar;
#endif
      *residual = pack_bf16(low, high);
    }
    float square = tile_sum(low * low + high * high);
    if (live) {
      const float2 factor = __ldg((const float2*)(s.next_norm + k));
      const float scale = s.next_mxfp8 ? ACTIVATION_SCALE : 1.f;
      *(u32*)((u8*)s.output + at) = pack_bf16(low * factor.x * scale, high * factor.y * scale);
      float* squares = s.out == OUT_RESIDUAL ? a.squares : a.squares + ROWS * (HIDDEN_PADDED / 16);
      if ((k & 15) == 0) squares[row * (HIDDEN_PADDED / 16) + (k >> 4)] = square;
    }
  }
}

INLINE void linear_epilogue(const Args& a, const Stage& s, const Health& health, Passes& passes,
                            u32& ready_parity, float* factor, u32 thread, u32 stage) {
  const u32 split = 1u << s.split_log2, subs = COMPUTE_WARPS >> s.split_log2, start = first_row_block(s);
  if (start >= s.row_blocks) return;
  const bool is_gated = s.out == OUT_GATED;
  const u32 pairs_log2 = is_gated ? 2 : 3, pairs = 1u << pairs_log2, per_log2 = pairs_log2 + ROWS_LOG2, per = 1u << per_log2;
  const u32 chunk = s.mxfp8 ? 256 : 128;
  float confidence = 0.f;
  u32 loaded = 0;
  for (u32 part = 0; part < s.parts; part++) {
    const u32 buffer = s.parts > 1 ? part & 1u : 0u;
    for (; loaded < min(part + 2, s.parts); loaded++) load_part(a, s, loaded, thread);
    if (part == 0) {
      if (s.squares) row_factors(s.squares, factor, thread);
      else if (thread < ROWS) factor[thread] = 1.f;
      epilogue_sync();
    }
    if (s.out == OUT_LOGITS && cta() < (u32)fixed().step[STEP_REQUESTS] * BLOCK) {
      wait_phase(health, ready_bar(buffer), ready_parity_of(ready_parity, buffer), stage, REGION_ACTIVATIONS);
      confidence += confidence_part(a, shared_address(shared_activations()) + buffer * (PLANE / 2), factor + ROWS, cta(), part * s.part_chunks * chunk,
                                    chunks_of_part(s, part) * chunk, thread);
      if (thread == 0 && part + 1 == s.parts) a.confidence_hidden[cta()] = confidence * factor[cta()];
    }
    ready_parity ^= 1u << buffer;
    u32 slot = 0;
    for (u32 r0 = start; r0 < s.row_blocks; r0 += subs * ctas(), slot += subs) {
      named_sync(BARRIER_FULL + passes.buffer, PAIR_THREADS);
      const float* red = shared_red() + passes.buffer * RED_FLOATS;
      for (u32 i = thread; i < subs * per; i += EPILOGUE_THREADS) {
        const u32 sub = i >> per_log2, q = i & (per - 1), row = q >> pairs_log2, pair = q & (pairs - 1);
        const u32 row_block = r0 + sub * ctas();
        const bool live = row_block < s.row_blocks;
        // Lane 4 g + t of a compute warp holds rows g, g + 8 (registers 0/1, 2/3) of columns 2 t, 2 t + 1.
        const u32 reg = (row >> 3) * 4 + (pair >> 2) * 2 + (row & 1), lane = (pair & 3) * 8 + ((row & 7) >> 1);
        float2 y = make_float2(0.f, 0.f), up = y;
#pragma unroll 4
        for (u32 w = 0; w < split; w++) {
          const float* from = red + ((sub * split + w) * 4 * ROW_TILES + reg) * 32 + lane;
          y.x += from[0], y.y += from[4];
          if (is_gated) up.x += from[64], up.y += from[68];
        }
        if (s.parts > 1) {
          float2* sums = shared_sums() + ((slot + sub) * per + q) * (is_gated ? 2 : 1);
#ifdef LOGIT_SUMS
          if (s.out == OUT_LOGITS) {  // too many row blocks a CTA for shared memory: the same thread finds them where its logits go
            if (!live) continue;
            sums = (float2*)((float*)s.output + (u64)row * s.columns + row_block * 16 + 2 * pair);
          }
#endif
          if (part) {
            y.x += sums[0].x, y.y += sums[0].y;
            if (is_gated) up.x += sums[1].x, up.y += sums[1].y;
          }
          if (part + 1 < s.parts) {
            sums[0] = y;
            if (is_gated) sums[1] = up;
            continue;
          }
        }
        const float f = factor[row];
        y.x *= f, y.y *= f, up.x *= f, up.y *= f;
        finish_pair(a, s, y, up, row, row_block * (2 * pairs) + 2 * pair, live);
      }
      named_arrive(BARRIER_FREE + passes.buffer, PAIR_THREADS);
      passes.buffer ^= 1u, passes.done++;
    }
  }
}

#if RANKS > 1
// The all-reduce's second half: every pair of the hidden rows, summed over the ranks, added to the residual.
INLINE void sum_epilogue(const Args& a, const Stage& s, u32 thread) {
  for (u32 i = cta() * EPILOGUE_THREADS + thread; i < HIDDEN / 2 * ROWS; i += ctas() * EPILOGUE_THREADS) {
    const u32 row = (i >> 3) & (ROWS - 1), k = (i >> (3 + ROWS_LOG2)) * 16 + (i & 7) * 2;
    const float2 y = sum_partials(a, s.step, row, k);
    finish_pair(a, s, y, y, row, k, true);
  }
}
#endif

#ifdef JOINS
// residual = (residual + bf16(norm(delta))) * scalar, for every pair of the hidden rows; delta is a linear's result.
INLINE void join_epilogue(const Args& a, const Stage& s, float* factor, u32 thread) {
  row_factors(s.squares, factor, thread);
  epilogue_sync();
  for (u32 i = cta() * EPILOGUE_THREADS + thread; i < HIDDEN / 2 * ROWS; i += ctas() * EPILOGUE_THREADS) {
    const u32 row = (i >> 3) & (ROWS - 1), k = (i >> (3 + ROWS_LOG2)) * 16 + (i & 7) * 2;
    const u32 delta = __ldcg((const u32*)(s.input + fragment(row, k, HIDDEN_PADDED * 16)));
    const float2 weight = __ldg((const float2*)((const float*)s.weights + k));
    const float2 y = make_float2(low_bf16(delta) * factor[row] * weight.x, high_bf16(delta) * factor[row] * weight.y);
    finish_pair(a, s, y, y, row, k, true);
  }
}
#endif
