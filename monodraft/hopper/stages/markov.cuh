// The serial Markov head: at step j, logits = base[j] + w2 w1[previous], argmax, next. w2 streams through the same ring.
#pragma once
#include "sampling.cuh"

// Order of candidates as one integer: the number (NaN below everything), then the lowest id.
INLINE u32 ordered(float x) {
  const u32 bits = __float_as_uint(x);
  return x != x ? 0u : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
INLINE u64 candidate(float logit, u32 id) { return (u64)ordered(logit) << 32 | (u64)(~id); }
INLINE u64 greater(u64 a, u64 b) { return a > b ? a : b; }
INLINE u64 greatest_of_warp(u64 v) {
#pragma unroll
  for (int m = 16; m; m >>= 1) v = greater(v, __shfl_xor_sync(~0u, v, m));
  return v;
}

// Base logits of the requests in this lane's columns (2 t, 2 t + 1 of every tile of 8) for rows g and g + 8 of a row block.
INLINE void load_base(const Args& a, u32 step, float (*base)[2][2], u32 block, u32 requests, u32 lane) {
#pragma unroll
  for (int n = 0; n < ROW_TILES; n++)
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const u32 request = n * 8 + 2 * (lane & 3) + c;
      base[n][c][0] = base[n][c][1] = 0.f;
      if (request < requests) {
        const float* from = a.logits + (u64)(request * BLOCK + step) * VOCAB_PADDED + block * 16 + (lane >> 2);
        base[n][c][0] = __ldcg(from), base[n][c][1] = __ldcg(from + 8);
      }
    }
}

INLINE void clear(float (*acc)[4]) {
#pragma unroll
  for (int n = 0; n < ROW_TILES; n++) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.f;
}

// Exact corrected logits of a row block, base + bf16(w2 e), against the best so far; by their scores where drafts are sampled.
// `acc` carries ACTIVATION_SCALE.
INLINE void keep_best(const Args& a, u32 step, const float (*base)[2][2], const float (*acc)[4], u64 (*best)[2], u32 block,
                      u32 requests, u32 lane) {
  const u32 id = block * 16 + (lane >> 2);
#if SAMPLED
  Draws draws;
  draw(a, step, draws, block, requests, lane);
#endif
#pragma unroll
  for (int n = 0; n < ROW_TILES; n++)
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const u32 request = n * 8 + 2 * (lane & 3) + c;
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float logit = base[n][c][half] + round_bf16(acc[n][half * 2 + c] * (1.f / ACTIVATION_SCALE));
        if (request < requests && id + half * 8 < VOCAB) {
#if SAMPLED
          const float criterion = score(logit, draws.temperature[n][c], draws.noise[n][c][half]);
#else
          const float criterion = usable(logit);
#endif
          best[n][c] = greater(best[n][c], candidate(criterion, FIRST_ID(a) + id + half * 8));
          if (a.corrected) a.corrected[(u64)(request * BLOCK + step) * VOCAB_PADDED + id + half * 8] = logit;
        }
      }
    }
}

// The best of a warp's rows, per request, to the epilogue warps.
INLINE void publish_best(const u64 (*best)[2], Passes& passes, u32 warp, u32 lane) {
  await_red_free(passes);
  u64* red = (u64*)(shared_red() + passes.buffer * RED_FLOATS) + warp * ROWS;
#pragma unroll
  for (int n = 0; n < ROW_TILES; n++)
#pragma unroll
    for (int c = 0; c < 2; c++) {
      u64 v = best[n][c];
#pragma unroll
      for (int m = 4; m < 32; m <<= 1) v = greater(v, __shfl_xor_sync(~0u, v, m));
      if (lane < 4) red[n * 8 + 2 * lane + c] = v;
    }
  publish_red(passes);
}

// ---- compute warps: each takes whole row blocks and keeps the best of the requests in its columns.
INLINE void markov_compute(const Args& a, const Stage& s, const Health& health, Ring& ring, Passes& passes,
                           u32& ready_parity, u32 warp, u32 lane, u32 stage) {
  const u32 start = first_row_block(s), x = shared_address(shared_bias());
  if (start >= s.row_blocks) return;
  u64 best[ROW_TILES][2] = {};
  wait_phase(health, ready_bar(0), ready_parity_of(ready_parity, 0), stage, REGION_ACTIVATIONS);
  ready_parity ^= 1u;
  const u32 requests = fixed().step[STEP_REQUESTS];
  for (u32 block = start + warp * ctas(); block < s.row_blocks; block += COMPUTE_WARPS * ctas()) {
    float base[ROW_TILES][2][2], acc[ROW_TILES][4];
    load_base(a, s.step, base, block, requests, lane);
    clear(acc);
    for (u32 c = 0; c < RANK_PADDED / 128; c++) consume_chunk<false, BIAS_PLANE>(health, ring, acc, x + c * 2048, lane, stage);
    keep_best(a, s.step, base, acc, best, block, requests, lane);
  }
  publish_best(best, passes, warp, lane);
}

// ---- epilogue warps

INLINE u32 scaled_pair(u32 v) { return pack_bf16(low_bf16(v) * ACTIVATION_SCALE, high_bf16(v) * ACTIVATION_SCALE); }

// previous[request] from the candidates that every CTA published at the step before.
INLINE void choose(const Args& a, u32 step, u32* previous, u32 warp, u32 lane) {
  const u32 requests = fixed().step[STEP_REQUESTS];
  for (u32 r = warp; r < requests; r += EPILOGUE_WARPS) {
#if RANKS > 1
    const u64* from = best_row(a.peers[a.rank], step, r);
#else
    const u64* from = a.best + ((u64)(step & 1) * ROWS + r) * ctas();
#endif
    u64 v = 0;
#pragma unroll
    for (u32 i = 0; i < (RANKS * GRID + 31) / 32; i++)
      if (i * 32 + lane < RANKS * GRID) v = greater(v, __ldcg(from + i * 32 + lane));
    v = greatest_of_warp(v);
    if (lane == 0) {
      previous[r] = min(~(u32)v, (u32)(RANKS * VOCAB) - 1);
      if (cta() == 0) a.tokens[r * BLOCK + step] = (int)previous[r];
    }
  }
}

INLINE void markov_epilogue(const Args& a, const Stage& s, Passes& passes, u32& ready_parity, u32* previous,
                            u32 thread) {
  const u32 warp = uniform(thread >> 5), lane = thread & 31, requests = fixed().step[STEP_REQUESTS];
  for (u32 i = thread; i < 2 * ROW_TILES * BIAS_PLANE / 16; i += EPILOGUE_THREADS)
    store_shared16(shared_address(shared_bias()) + i * 16, make_uint4(0, 0, 0, 0));
  if (s.step) choose(a, s.step - 1, previous, warp, lane);
  else if (thread < requests) previous[thread] = fixed().step[STEP_ANCHOR + thread];
  epilogue_sync();
  const bool busy = first_row_block(s) < s.row_blocks;
  if (busy) {
    for (u32 i = thread; i < requests * (RANK / 8); i += EPILOGUE_THREADS) {
      const u32 r = i / (RANK / 8), k = i % (RANK / 8) * 8;
      const uint4 e = __ldg((const uint4*)(a.w1 + (u64)previous[r] * RANK + k));
      store_shared16(shared_address(shared_bias()) + fragment(r, k, BIAS_PLANE),
                     make_uint4(scaled_pair(e.x), scaled_pair(e.y), scaled_pair(e.z), scaled_pair(e.w)));
      // In float16 for the scan, in the order of MXFP8 bytes: k + 2, k, k + 3, k + 1.
      store_shared16(shared_address(shared_bias()) + ROW_TILES * BIAS_PLANE + fragment(r, k, BIAS_PLANE),
                     make_uint4(pack_f16(low_bf16(e.y), low_bf16(e.x)), pack_f16(high_bf16(e.y), high_bf16(e.x)),
                                pack_f16(low_bf16(e.w), low_bf16(e.z)), pack_f16(high_bf16(e.w), high_bf16(e.z))));
    }
    if (thread < requests) fixed().bounds.length[thread] = __ldg(a.w1_lengths + previous[thread]) + 0.00390625f;
    epilogue_sync();
    announce_ready(0, thread);
    ready_parity ^= 1u;
  }
  // Confidence of row (r, step) by CTA (row): the hidden part was left by the LM head's stage.
  for (u32 r = warp; r < requests; r += EPILOGUE_WARPS) {
    const u32 row = r * BLOCK + s.step;
    if (row % ctas() != cta()) continue;
    float sum = 0.f;
    for (u32 k = lane; k < RANK; k += 32)
      sum += __ldg(a.confidence + HIDDEN_PADDED + k) * low_bf16(__ldg(a.w1 + (u64)previous[r] * RANK + k));
#pragma unroll
    for (int m = 16; m; m >>= 1) sum += __shfl_xor_sync(~0u, sum, m);
    if (lane == 0) a.confidence_out[row] = __ldcg(a.confidence_hidden + row) + sum + __ldg(a.confidence + HIDDEN_PADDED + RANK_PADDED);
  }
  u64 v = 0;
  if (busy) {
    named_sync(BARRIER_FULL + passes.buffer, PAIR_THREADS);
    const u64* red = (const u64*)(shared_red() + passes.buffer * RED_FLOATS);
    if (thread < requests)
      for (u32 w = 0; w < COMPUTE_WARPS; w++) v = greater(v, red[w * ROWS + thread]);
    named_arrive(BARRIER_FREE + passes.buffer, PAIR_THREADS);
    passes.buffer ^= 1u, passes.done++;
  }
#if RANKS > 1
  if (thread < requests) put_best(a, s.step, thread, v);
#else
  if (thread < requests) a.best[((u64)(s.step & 1) * ROWS + thread) * ctas() + cta()] = v;
#endif
}
