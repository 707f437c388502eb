// The Markov step with fewer bytes and the same token: w2 is scanned in MXFP8, and only row blocks that may hold the greatest
// logit are read in bf16 and computed exactly as the full scan does.
//
// For row v of w2 with MXFP8 value q_v, |w2_v.e - q_v.e| <= ||w2_v - q_v|| ||e||. With slack_v >= ||w2_v - q_v|| and the
// roundings of the two products in it, the exact logit lies within
//     error_v = slack_v ||e|| + 2^-8 (|q_v.e| + slack_v ||e||) + 2^-20 (|base_v| + |q_v.e|)
// of base_v + q_v.e (2^-8: the bias is rounded to bf16; 2^-20: float32 sums). A CTA's greatest logit is at least the greatest
// lower bound of its rows, so rows whose upper bound is below that cannot win. NaN bounds count as candidates. Where the
// bound does not help, every block is a candidate: the full scan, inside the same stage.
#pragma once
#include "markov.cuh"

INLINE u32 upper_index(u32 turn, u32 warp, u32 row) { return ((turn * COMPUTE_WARPS + warp) * 16 + row) * MARKOV_REQUESTS; }

// Scans a row block: its upper bounds to shared memory, `least` raised to its lower bounds.
INLINE void bound_block(const float* slack, const float (*base)[2][2], const float (*acc)[4], const float* length, float* upper,
                        float (*least)[2], u32 block, u32 requests, u32 lane) {
#pragma unroll
  for (int n = 0; n < ROW_TILES; n++)
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const u32 request = n * 8 + 2 * (lane & 3) + c;
      if (request >= requests) continue;
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const u32 row = half * 8 + (lane >> 2);
        const float bias = acc[n][half * 2 + c], reach = slack[half] * length[request];
        const float error = reach + 0.00392f * (fabsf(bias) + reach) + 1e-6f * (fabsf(base[n][c][half]) + fabsf(bias));
        const float middle = base[n][c][half] + bias;
        const bool real = block * 16 + row < VOCAB;
        upper[row * MARKOV_REQUESTS + request] = real ? middle + error : -INFINITY;
        if (real) least[n][c] = fmaxf(least[n][c], middle - error);
      }
    }
}

INLINE void markov_bounded_compute(const Args& a, const Stage& s, const Health& health, Ring& ring,
                                   Passes& passes, u32& ready_parity, u32& arrived_parity, u32 warp, u32 lane, u32 stage) {
  const u32 start = first_row_block(s), x = shared_address(shared_bias());
  if (start >= s.row_blocks) return;
  const u32 requests = a.step[STEP_REQUESTS];
  Bounds& bounds = fixed().bounds;
  float* upper = (float*)shared_activations();
  const u32 buffer = shared_address(shared_activations()) + ACTIVATION_BYTES - (COMPUTE_WARPS - warp) * CANDIDATE_BYTES;
  float least[ROW_TILES][2];
#pragma unroll
  for (int n = 0; n < ROW_TILES; n++) least[n][0] = least[n][1] = -INFINITY;
  wait_phase(health, ready_bar(), ready_parity, stage, REGION_ACTIVATIONS);
  ready_parity ^= 1u;
  if (warp == 0 && lane == 0) bounds.count = 0;
  u32 turns = 0;
  for (u32 block = start + warp * gridDim.x; block < s.row_blocks; block += COMPUTE_WARPS * gridDim.x, turns++) {
    float base[ROW_TILES][2][2], acc[ROW_TILES][4];
    load_base(a, s.step, base, acc, block, requests, lane);
    const float slack[2] = {__ldg(a.slack + block * 16 + (lane >> 2)), __ldg(a.slack + block * 16 + 8 + (lane >> 2))};
    for (u32 c = 0; c < s.chunks; c++) consume_chunk<true, BIAS_PLANE>(health, ring, acc, x + c * 4096, lane, stage);
    bound_block(slack, base, acc, bounds.length, upper + upper_index(turns, warp, 0), least, block, requests, lane);
  }
#pragma unroll
  for (int n = 0; n < ROW_TILES; n++)
#pragma unroll
    for (int c = 0; c < 2; c++) {
      float v = least[n][c];
#pragma unroll
      for (int m = 4; m < 32; m <<= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, m));
      if (lane < 4) bounds.least[warp][n * 8 + 2 * lane + c] = v;
    }
  named_sync(BARRIER_COMPUTE, COMPUTE_WARPS * 32);
  for (u32 turn = 0; turn < turns; turn++) {
    bool candidate_row = false;
    if (lane < 16)
      for (u32 r = 0; r < requests; r++) {
        float bound = -INFINITY;
#pragma unroll
        for (int w = 0; w < COMPUTE_WARPS; w++) bound = fmaxf(bound, bounds.least[w][r]);
        candidate_row |= !(upper[upper_index(turn, warp, lane) + r] < bound);
      }
    if (__any_sync(~0u, candidate_row) && lane == 0)
      bounds.blocks[atomicAdd(&bounds.count, 1u)] = start + (turn * COMPUTE_WARPS + warp) * gridDim.x;
  }
  named_sync(BARRIER_COMPUTE, COMPUTE_WARPS * 32);
  // The order in which blocks were listed differs from run to run; the greatest of them does not.
  u64 best[ROW_TILES][2] = {};
  const u32 count = bounds.count, bar = shared_address(&bounds.arrived[warp]);
  if (warp == 0 && lane == 0) atomicAdd(a.rescored + s.step, count);
  for (u32 i = warp; i < count; i += COMPUTE_WARPS) {
    const u32 block = bounds.blocks[i];
    if (lane == 0) {
      phase_expect(bar, CANDIDATE_BYTES);
      bulk_copy(buffer, a.w2 + (u64)block * CANDIDATE_BYTES, CANDIDATE_BYTES, bar);
    }
    float base[ROW_TILES][2][2], acc[ROW_TILES][4];
    load_base(a, s.step, base, acc, block, requests, lane);
    wait_phase(health, bar, arrived_parity, stage, REGION_WEIGHTS);
    arrived_parity ^= 1u;
    for (u32 c = 0; c < RANK_PADDED / 128; c++) multiply_chunk<false, BIAS_PLANE>(acc, buffer + c * 4096, x + c * 2048, lane);
    __syncwarp();
    keep_best(a, s.step, base, acc, best, block, requests, lane);
  }
  publish_best(best, passes, warp, lane);
}
