// The serial Markov head: at step j, logits = base[j] + w2 w1[previous], argmax, next. w2 streams through the same ring.
#pragma once
#include "exchange.cuh"

#define BIAS_PLANE (RANK_PADDED * 16)  // bytes of the vectors of 8 requests

// Order of candidates as one integer: the logit (NaN below everything), then the lowest id.
INLINE u64 candidate(float logit, u32 id) {
  const u32 bits = __float_as_uint(logit);
  const u32 order = logit != logit ? 0u : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return (u64)order << 32 | (u64)(~id);
}
INLINE u64 greater(u64 a, u64 b) { return a > b ? a : b; }
INLINE u64 greatest_of_warp(u64 v) {
#pragma unroll
  for (int m = 16; m; m >>= 1) v = greater(v, __shfl_xor_sync(~0u, v, m));
  return v;
}

// ---- compute warps: each takes whole row blocks and keeps the best of the requests in its columns.
INLINE void markov_compute(const Args& a, const Stage& s, const Health& health, const Shared& shared, Ring& ring, Passes& passes,
                           u32& ready_parity, u32 warp, u32 lane, u32 stage) {
  const u32 start = first_row_block(s), x = shared_address(shared.bias), g = lane >> 2, t = lane & 3;
  if (start >= s.row_blocks) return;
  const u32 requests = a.step[STEP_REQUESTS];
  u64 best[ROW_TILES][2] = {};
  wait_phase(health, shared.ready, ready_parity, stage, REGION_ACTIVATIONS);
  ready_parity ^= 1u;
  for (u32 block = start + warp * gridDim.x; block < s.row_blocks; block += COMPUTE_WARPS * gridDim.x) {
    float base[ROW_TILES][2][2], acc[ROW_TILES][4];
    const u32 id = block * 16 + g;
#pragma unroll
    for (int n = 0; n < ROW_TILES; n++)
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const u32 request = n * 8 + 2 * t + c;
        acc[n][c] = acc[n][2 + c] = base[n][c][0] = base[n][c][1] = 0.f;
        if (request < requests) {
          const float* from = a.logits + (u64)(request * BLOCK + s.step) * VOCAB_PADDED + id;
          base[n][c][0] = __ldcg(from), base[n][c][1] = __ldcg(from + 8);
        }
      }
    for (u32 c = 0; c < RANK_PADDED / 128; c++) {
      wait_phase(health, ring.full + ring.slot * 8, ring.parity, stage, REGION_WEIGHTS);
      const u32 slot = ring.base + ring.slot * SLOT_BYTES;
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const uint4 v = load_shared16(slot + k * 1024 + lane * 16), w = load_shared16(slot + k * 1024 + 512 + lane * 16);
#pragma unroll
        for (int n = 0; n < ROW_TILES; n++) {
          const uint4 b = load_shared16(x + n * BIAS_PLANE + (c * 4 + k) * 512 + lane * 16);
          multiply_add(acc[n], v.x, w.x, v.y, w.y, b.x, b.y);
          multiply_add(acc[n], v.z, w.z, v.w, w.w, b.z, b.w);
        }
      }
      __syncwarp();
      if (lane == 0) phase_arrive(ring.empty + ring.slot * 8);
      ring.advance();
    }
#pragma unroll
    for (int n = 0; n < ROW_TILES; n++)
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const u32 request = n * 8 + 2 * t + c;
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const float logit = base[n][c][half] + round_bf16(acc[n][half * 2 + c]);
          if (request < requests && id + half * 8 < VOCAB) {
            best[n][c] = greater(best[n][c], candidate(logit, id + half * 8));
            if (a.corrected) a.corrected[(u64)(request * BLOCK + s.step) * VOCAB_PADDED + id + half * 8] = logit;
          }
        }
      }
  }
  await_red_free(passes);
  u64* red = (u64*)(shared.red + passes.buffer * RED_FLOATS) + warp * ROWS;
#pragma unroll
  for (int n = 0; n < ROW_TILES; n++)
#pragma unroll
    for (int c = 0; c < 2; c++) {
      u64 v = best[n][c];
#pragma unroll
      for (int m = 4; m < 32; m <<= 1) v = greater(v, __shfl_xor_sync(~0u, v, m));
      if (g == 0) red[n * 8 + 2 * t + c] = v;
    }
  publish_red(passes);
}

// ---- epilogue warps

// previous[request] from the candidates that every CTA published at the step before.
INLINE void choose(const Args& a, u32 step, u32* previous, u32 warp, u32 lane) {
  const u32 requests = a.step[STEP_REQUESTS];
  for (u32 r = warp; r < requests; r += EPILOGUE_WARPS) {
    const u64* from = a.best + ((u64)(step & 1) * ROWS + r) * gridDim.x;
    u64 v = 0;
    for (u32 i = lane; i < gridDim.x; i += 32) v = greater(v, __ldcg(from + i));
    v = greatest_of_warp(v);
    if (lane == 0) {
      previous[r] = min(~(u32)v, (u32)VOCAB - 1);
      if (blockIdx.x == 0) a.tokens[r * BLOCK + step] = (int)previous[r];
    }
  }
}

INLINE void markov_epilogue(const Args& a, const Stage& s, const Shared& shared, Passes& passes, u32& ready_parity, u32* previous,
                            u32 thread) {
  const u32 warp = thread >> 5, lane = thread & 31, requests = a.step[STEP_REQUESTS];
  if (s.step) choose(a, s.step - 1, previous, warp, lane);
  else if (thread < requests) previous[thread] = a.step[STEP_ANCHOR + thread];
  epilogue_sync();
  const bool busy = first_row_block(s) < s.row_blocks;
  if (busy) {
    for (u32 i = thread; i < requests * (RANK / 8); i += EPILOGUE_THREADS) {
      const u32 r = i / (RANK / 8), k = i % (RANK / 8) * 8;
      store_shared16(shared_address(shared.bias) + fragment(r, k, BIAS_PLANE), __ldg((const uint4*)(a.w1 + (u64)previous[r] * RANK + k)));
    }
    epilogue_sync();
    if (thread == 0) phase_arrive(shared.ready);
    ready_parity ^= 1u;
  }
  // Confidence of row (r, step) by CTA (row): the hidden part was left by the LM head's stage.
  for (u32 r = warp; r < requests; r += EPILOGUE_WARPS) {
    const u32 row = r * BLOCK + s.step;
    if (row % gridDim.x != blockIdx.x) continue;
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
    const u64* red = (const u64*)(shared.red + passes.buffer * RED_FLOATS);
    if (thread < requests)
      for (u32 w = 0; w < COMPUTE_WARPS; w++) v = greater(v, red[w * ROWS + thread]);
    named_arrive(BARRIER_FREE + passes.buffer, PAIR_THREADS);
    passes.buffer ^= 1u, passes.done++;
  }
  if (thread < requests) a.best[((u64)(s.step & 1) * ROWS + thread) * gridDim.x + blockIdx.x] = v;
}
