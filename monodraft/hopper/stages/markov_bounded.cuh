// The Markov step with fewer bytes and the same token: w2 is scanned in MXFP8, and only row blocks that may hold the greatest
// logit are read in bf16 and computed exactly as the full scan does.
//
// For row v of w2 with MXFP8 value q_v, |w2_v.e - q_v.e| <= ||w2_v - q_v|| ||e||. With slack_v >= ||w2_v - q_v|| and the
// roundings of the two products in it, the exact logit lies within
//     error_v = slack_v ||e|| + 2^-8 (|q_v.e| + slack_v ||e||) + 2^-20 (|base_v| + |q_v.e|)
// of base_v + q_v.e (2^-8: the bias is rounded to bf16; 2^-20: float32 sums). The scan takes e in float16: exact but for
// elements below 2^-14, which lose at most 2^-25 each; ||e|| is raised by 2^-8, and slack_v holds 2^-12 ||w2_v||, for that.
//
// The greatest logit is at least every lower bound, this CTA's or another's, so rows whose upper bound is below one cannot
// win. NaN bounds count as candidates. Where the bound does not help, every block is a candidate: the full scan, inside the
// same stage. Which blocks are read again differs from run to run (it depends on who was first); the token does not.
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
        const float error = reach + 0.00392f * (fabsf(bias) + reach) + 1e-6f * (fabsf(base[n][c][half]) + fabsf(bias)) + 1e-30f;
        const float middle = base[n][c][half] + bias;
        const bool real = block * 16 + row < VOCAB;
        upper[row * MARKOV_REQUESTS + request] = real ? middle + error : -INFINITY;
        if (real) least[n][c] = fmaxf(least[n][c], middle - error);
      }
    }
}

struct Scanned {
  float base[ROW_TILES][2][2], slack[2];
};
INLINE void load_scanned(const Args& a, u32 step, Scanned& s, u32 block, u32 lane) {
  load_base(a, step, s.base, block, fixed().step[STEP_REQUESTS], lane);
  s.slack[0] = __ldg(a.slack + block * 16 + (lane >> 2));
  s.slack[1] = __ldg(a.slack + block * 16 + 8 + (lane >> 2));
}

// One MXFP8 chunk of w2 times the vectors in float16 at `x` (their order within four is that of the bytes, see pack.py).
// Conversions take a third of the instructions of the bf16 way, and this stage is bound by instructions.
INLINE void scan_chunk(float (*acc)[4], u32 slot, u32 x, u32 lane) {
  const uint4 s = load_shared16(slot + 4096 + (lane >> 2) * 16);
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const uint4 a = load_shared16(slot + k * 512 + lane * 16);
    const u32 l0 = convert_e4m3_low(a.x), l1 = convert_e4m3_high(a.x), l2 = convert_e4m3_low(a.y), l3 = convert_e4m3_high(a.y);
    const u32 h0 = convert_e4m3_low(a.z), h1 = convert_e4m3_high(a.z), h2 = convert_e4m3_low(a.w), h3 = convert_e4m3_high(a.w);
    const float low = plain_scale(k < 4 ? s.x : s.y, k & 3), high = plain_scale(k < 4 ? s.z : s.w, k & 3);
#pragma unroll
    for (int n = 0; n < ROW_TILES; n++) {
      const uint4 b = load_shared16(x + n * BIAS_PLANE + k * 512 + lane * 16);
      float p[4] = {0.f, 0.f, 0.f, 0.f};
      multiply_add_f16(p, l0, h0, l1, h1, b.x, b.y);
      multiply_add_f16(p, l2, h2, l3, h3, b.z, b.w);
      acc[n][0] += p[0] * low, acc[n][1] += p[1] * low, acc[n][2] += p[2] * high, acc[n][3] += p[3] * high;
    }
  }
}

// Copies a chunk to where it stays.
INLINE void keep_chunk(u32 slot, u32 kept, u32 lane) {
#pragma unroll 1
  for (u32 i = lane * 16; i < SLOT_BYTES; i += 512) store_shared16(kept + i, load_shared16(slot + i));
}

INLINE float from_ordered(u32 o) { return __uint_as_float(o & 0x80000000u ? o & 0x7fffffffu : ~o); }

// The greatest of `least` over a warp's rows, in lanes 0..3.
INLINE void warp_floors(const float (*least)[2], float (*floors)[2]) {
#pragma unroll
  for (int n = 0; n < ROW_TILES; n++)
#pragma unroll
    for (int c = 0; c < 2; c++) {
      floors[n][c] = least[n][c];
#pragma unroll
      for (int m = 4; m < 32; m <<= 1) floors[n][c] = fmaxf(floors[n][c], __shfl_xor_sync(~0u, floors[n][c], m));
    }
}

// Half way through the scan, what was found so far goes to all CTAs: whenever one reads it, it is a bound that holds, and
// with it hardly any row of the vocabulary is left (without, each CTA keeps three or four blocks: measured).
INLINE void share_floors(u32* to, const float (*least)[2], u32 requests, u32 lane) {
  float floors[ROW_TILES][2];
  warp_floors(least, floors);
#pragma unroll
  for (int n = 0; n < ROW_TILES; n++)
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const u32 request = n * 8 + 2 * lane + c;
      if (lane < 4 && request < requests) atomicMax(to + request, ordered(floors[n][c]));
    }
}

INLINE void markov_bounded_compute(const Args& a, const Stage& s, const Health& health, Ring& ring,
                                   Passes& passes, u32& ready_parity, u32& arrived_parity, u32 warp, u32 lane, u32 stage) {
  const u32 start = first_row_block(s), x = shared_address(shared_bias());
  if (start >= s.row_blocks) return;
  Bounds& bounds = fixed().bounds;
  float* upper = (float*)(shared_activations() + UPPER_AT);
  const u32 buffer = shared_address(shared_activations()) + ACTIVATION_BYTES - (CANDIDATE_WARPS - warp) * CANDIDATE_BYTES;
  float least[ROW_TILES][2];
#pragma unroll
  for (int n = 0; n < ROW_TILES; n++) least[n][0] = least[n][1] = -INFINITY;
  // Base logits and slack of a block are on their way while the one before is computed; the first even before the vectors
  // are there, if an earlier stage of this launch has seen the LM head's end.
  const u32 stride = COMPUTE_WARPS * ctas();
  const u32 half_way = s.row_blocks / (2 * stride);
  u32 block = start + warp * ctas(), turns = 0;
  Scanned next;
  const bool early = s.step && stage > (u32)a.first;
  if (early && block < s.row_blocks) load_scanned(a, s.step, next, block, lane);
  wait_phase(health, ready_bar(0), ready_parity_of(ready_parity, 0), stage, REGION_ACTIVATIONS);
  ready_parity ^= 1u;
  const u32 requests = fixed().step[STEP_REQUESTS];
  if (!early && block < s.row_blocks) load_scanned(a, s.step, next, block, lane);
  if (warp == 0 && lane == 0) bounds.count = 0;
  for (; block < s.row_blocks; block += stride, turns++) {
    const Scanned now = next;
    if (block + stride < s.row_blocks) load_scanned(a, s.step, next, block + stride, lane);
    float acc[ROW_TILES][4];
    clear(acc);
    const u32 kept = shared_address(shared_activations()) + RESIDENT_AT + (turns * COMPUTE_WARPS + warp) * SLOT_BYTES;
    const bool stays = turns < MARKOV_RESIDENT, there = stays && early;
    for (u32 c = 0; c < s.chunks; c++) {
      const u32 slot = there ? kept : ring.base + ring.slot * SLOT_BYTES;
      if (!there) wait_phase(health, ring.full + ring.slot * 8, ring.parity, stage, REGION_WEIGHTS);
      if (stays && !there) keep_chunk(slot, kept, lane);
      scan_chunk(acc, slot, x + ROW_TILES * BIAS_PLANE + c * 4096, lane);
      if (!there) release_chunk(ring, lane);
    }
    if (turns == half_way) share_floors(a.floors + s.step * ROWS, least, requests, lane);
    bound_block(now.slack, now.base, acc, bounds.length, upper + upper_index(turns, warp, 0), least, block, requests, lane);
  }
  float floors[ROW_TILES][2];
  warp_floors(least, floors);
  if (lane < 4)
#pragma unroll
    for (int n = 0; n < ROW_TILES; n++)
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const u32 shared = load_relaxed(a.floors + s.step * ROWS + n * 8 + 2 * lane + c);
        bounds.least[warp][n * 8 + 2 * lane + c] = shared ? fmaxf(floors[n][c], from_ordered(shared)) : floors[n][c];
      }
  named_sync(BARRIER_COMPUTE, COMPUTE_WARPS * 32);
  for (u32 turn = lane >> 4; turn < turns + (lane >> 4); turn += 2) {  // two blocks of 16 rows at a time
    bool candidate_row = false;
    for (u32 r = 0; r < requests; r++) {
      float bound = -INFINITY;
#pragma unroll
      for (int w = 0; w < COMPUTE_WARPS; w++) bound = fmaxf(bound, bounds.least[w][r]);
      candidate_row |= turn < turns && !(upper[upper_index(turn, warp, lane & 15) + r] < bound);
    }
    const u32 rows = __ballot_sync(~0u, candidate_row) >> (lane & 16) & 0xffffu;
    if (rows && (lane & 15) == 0)
      bounds.blocks[atomicAdd(&bounds.count, 1u)] = start + (turn * COMPUTE_WARPS + warp) * ctas();
  }
  named_sync(BARRIER_COMPUTE, COMPUTE_WARPS * 32);
  u64 best[ROW_TILES][2] = {};
  const u32 count = bounds.count, bar = shared_address(&bounds.arrived[warp]);
  if (warp == 0 && lane == 0) atomicAdd(a.rescored + s.step, count);
  for (u32 i = warp; i < count && warp < CANDIDATE_WARPS; i += CANDIDATE_WARPS) {
    block = bounds.blocks[i];
    if (lane == 0) {
      phase_expect(bar, CANDIDATE_BYTES);
      bulk_copy(buffer, a.w2 + (u64)block * CANDIDATE_BYTES, CANDIDATE_BYTES, bar);
    }
    float base[ROW_TILES][2][2], acc[ROW_TILES][4];
    load_base(a, s.step, base, block, requests, lane);
    clear(acc);
    wait_phase(health, bar, arrived_parity, stage, REGION_WEIGHTS);
    arrived_parity ^= 1u;
    for (u32 c = 0; c < RANK_PADDED / 128; c++) multiply_chunk<false, BIAS_PLANE>(acc, buffer + c * 4096, x + c * 2048, lane);
    __syncwarp();
    keep_best(a, s.step, base, acc, best, block, requests, lane);
  }
  publish_best(best, passes, warp, lane);
}
