// The weight stream: one producer warp keeps a ring of chunks per compute warp full, across stage boundaries; compute
// warps multiply what lands and leave partial sums in `red` for the epilogue warps.
#pragma once
#include "plan.cuh"

struct Ring {
  u32 base, full, empty;  // shared addresses of this warp's slots and barriers
  u32 slot, parity;
  INLINE void advance() {
    if (++slot == SLOTS) slot = 0, parity ^= 1u;
  }
};

// Lane r feeds compute warp r. A state machine without blocking waits, so that no lane holds up another.
struct Producer {
  const Stage* stages;
  u32 lane, count;
  u32 stage, part, row_block, chunk;
  bool done;

  INLINE void enter() {
    const Stage& s = stages[stage];
    row_block = first_row_block(s) + (lane >> s.split_log2) * ctas();
    chunk = lane & ((1u << s.split_log2) - 1);
    if (s.kind == KIND_MARKOV_BOUNDED && s.step && stage) row_block += MARKOV_RESIDENT * COMPUTE_WARPS * ctas();
  }
  INLINE void settle() {  // to the next chunk that exists
    for (;;) {
      const Stage& s = stages[stage];
      if (row_block < s.row_blocks) {
        if (chunk < chunks_of_part(s, part)) return;
        chunk = lane & ((1u << s.split_log2) - 1);
        row_block += (COMPUTE_WARPS >> s.split_log2) * ctas();
        if (row_block < s.row_blocks) continue;
      }
      if (++part >= s.parts) {
        part = 0;
        if (++stage >= count) {
          done = true;
          return;
        }
      }
      enter();
    }
  }
  INLINE void run(const Health& health, Ring ring) {
    stage = part = 0, done = false;
    enter();
    settle();
    ring.parity = 1;  // the first pass over the ring finds every slot free
    long long start = clock64();
    while (!done) {
      if (!phase_test(ring.empty + ring.slot * 8, ring.parity)) {
        if ((u64)(clock64() - start) > health.bound + (health.bound >> 1)) {
          record_failure(health, stage, REGION_RING, ring.parity, ring.parity ^ 1u, ~0u, 0u);
          return;
        }
        continue;
      }
      const Stage& s = stages[stage];
      u32 bytes = s.mxfp8 ? 4224u : 4096u, bar = ring.full + ring.slot * 8;
      phase_expect(bar, bytes);
      bulk_copy_stream(ring.base + ring.slot * SLOT_BYTES,
                       s.weights + ((u64)row_block * s.chunks + part * s.part_chunks + chunk) * bytes, bytes, bar);
      ring.advance();
      chunk += 1u << s.split_log2;
      settle();
      start = clock64();
    }
  }
};

// One landed chunk times the activations at shared address `x` (fragment order, STRIDE bytes from 8 rows to the next).
template <bool MX, u32 STRIDE>
INLINE void multiply_chunk(float (*acc)[4], u32 slot, u32 x, u32 lane) {
  constexpr int BLOCKS = MX ? 8 : 4;  // blocks of 32 along K
  u32 scales_low[2], scales_high[2];
  if (MX) {
    uint4 s = load_shared16(slot + 4096 + (lane >> 2) * 16);
    scales_low[0] = s.x, scales_low[1] = s.y, scales_high[0] = s.z, scales_high[1] = s.w;
  }
#pragma unroll
  for (int k = 0; k < BLOCKS; k++) {
    if (MX) {
      uint4 a = load_shared16(slot + k * 512 + lane * 16);
      u32 l0, l1, l2, l3, h0, h1, h2, h3;
      widen_e4m3(a.x, l0, l1), widen_e4m3(a.y, l2, l3), widen_e4m3(a.z, h0, h1), widen_e4m3(a.w, h2, h3);
      float low = block_scale(scales_low[k >> 2], k & 3), high = block_scale(scales_high[k >> 2], k & 3);
#pragma unroll
      for (int n = 0; n < ROW_TILES; n++) {
        uint4 b = load_shared16(x + n * STRIDE + k * 512 + lane * 16);
        float p[4] = {0.f, 0.f, 0.f, 0.f};
        multiply_add(p, l0, h0, l1, h1, b.x, b.y);
        multiply_add(p, l2, h2, l3, h3, b.z, b.w);
        acc[n][0] += p[0] * low, acc[n][1] += p[1] * low, acc[n][2] += p[2] * high, acc[n][3] += p[3] * high;
      }
    } else {
      uint4 a = load_shared16(slot + k * 1024 + lane * 16), w = load_shared16(slot + k * 1024 + 512 + lane * 16);
#pragma unroll
      for (int n = 0; n < ROW_TILES; n++) {
        uint4 b = load_shared16(x + n * STRIDE + k * 512 + lane * 16);
        multiply_add(acc[n], a.x, w.x, a.y, w.y, b.x, b.y);
        multiply_add(acc[n], a.z, w.z, a.w, w.w, b.z, b.w);
      }
    }
  }
}

// Hands the oldest slot back to the producer.
INLINE void release_chunk(Ring& ring, u32 lane) {
  __syncwarp();
  if (lane < ARRIVALS(32)) phase_arrive(ring.empty + ring.slot * 8);
  ring.advance();
}

// Waits for the next chunk, multiplies it, hands the slot back.
template <bool MX, u32 STRIDE>
INLINE void consume_chunk(const Health& health, Ring& ring, float (*acc)[4], u32 x, u32 lane, u32 stage) {
  wait_phase(health, ring.full + ring.slot * 8, ring.parity, stage, REGION_WEIGHTS);
  multiply_chunk<MX, STRIDE>(acc, ring.base + ring.slot * SLOT_BYTES, x, lane);
  release_chunk(ring, lane);
}
