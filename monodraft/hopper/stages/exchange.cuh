// Between compute and epilogue warps of one CTA: who waits for whom, in shared memory.
#pragma once
#include "weights.cuh"

// Named barriers: 1, 2 `red` full; 3, 4 `red` free; 5 epilogue warps among themselves.
#define BARRIER_FULL 1
#define BARRIER_FREE 3
#define BARRIER_EPILOGUE 5
#define BARRIER_COMPUTE 6  // compute warps among themselves
#define RING_SLOTS (COMPUTE_WARPS * SLOTS)
#define RED_FLOATS (COMPUTE_WARPS * 4 * ROW_TILES * 32)

// Of the bounded Markov stage, statically sized.
struct Bounds {
  float length[ROWS];                  // ||w1[previous]|| of a request, rounded up
  float least[COMPUTE_WARPS][ROWS];    // greatest lower bound that a warp found
  u64 arrived[COMPUTE_WARPS];          // mbarriers: a warp's candidate block is in shared memory
  u32 count, blocks[MARKOV_BLOCKS];    // row blocks that may hold the greatest logit
};

// Small things at fixed places.
struct Fixed {
  int step[STEP_WORDS];                     // inputs of the step; 16-byte aligned
  Stage stages[MAX_STAGES];
  u64 full[RING_SLOTS], empty[RING_SLOTS];  // mbarriers of the rings
  u64 ready[2];                             // mbarriers: an input part is in shared memory; parts take turns
  float factor[ROWS + EPILOGUE_WARPS];      // of the rows' norms, and scratch
  u32 previous[ROWS];                       // tokens of the chain
  Bounds bounds;
};
static_assert(sizeof(Fixed) <= FIXED_BYTES, "geometry.py: fixed_bytes");

// Dynamic shared memory, every place a constant: activations (one part of the input, or scratch of attention and of the
// bounded chain, behind the Markov vectors `bias` [ROW_TILES][BIAS_PLANE] in fragment order: times ACTIVATION_SCALE, and in
// float16), the rings, `red` [2][COMPUTE_WARPS][4 * ROW_TILES][32] partial sums, `sums` [SUM_SLOTS][64 * ROW_TILES] of
// earlier parts, Fixed.
extern __shared__ __align__(128) u8 dynamic[];
#define RING_AT ACTIVATION_BYTES
#define RED_AT (RING_AT + RING_SLOTS * SLOT_BYTES)
#define SUMS_AT (RED_AT + 2 * RED_FLOATS * 4)
#define FIXED_AT (SUMS_AT + SUM_SLOTS * 64 * ROW_TILES * 8)
INLINE u8* shared_activations() { return dynamic; }
INLINE float* shared_red() { return (float*)(dynamic + RED_AT); }
INLINE float2* shared_sums() { return (float2*)(dynamic + SUMS_AT); }
INLINE u8* shared_bias() { return dynamic; }
INLINE Fixed& fixed() { return *(Fixed*)(dynamic + FIXED_AT); }
INLINE u32 ready_bar(u32 buffer) { return shared_address(&fixed().ready[buffer]); }

// After all epilogue threads have stored and met.
INLINE void announce_ready(u32 buffer, u32 thread) {
  if (thread < ARRIVALS(EPILOGUE_THREADS)) phase_arrive(ready_bar(buffer));
}

// Parity of the two `ready` barriers, a bit each; either side keeps its own.
INLINE u32 ready_parity_of(u32 parities, u32 buffer) { return parities >> buffer & 1u; }

INLINE void epilogue_sync() { named_sync(BARRIER_EPILOGUE, EPILOGUE_THREADS); }

// The two `red` buffers, used in turn. Each side counts its own passes.
struct Passes {
  u32 buffer, done;
};
INLINE void publish_red(Passes& p) {  // compute side, after writing red[buffer]
  __threadfence_block();
  named_arrive(BARRIER_FULL + p.buffer, PAIR_THREADS);
  p.buffer ^= 1u, p.done++;
}
INLINE void await_red_free(const Passes& p) {
  if (p.done >= 2) named_sync(BARRIER_FREE + p.buffer, PAIR_THREADS);
}
INLINE void leave_red(const Passes& p) {  // the epilogue arrived min(done, 2) more times than were waited for
  if (p.done >= 1) named_sync(BARRIER_FREE + (p.buffer ^ 1u), PAIR_THREADS);
  if (p.done >= 2) named_sync(BARRIER_FREE + p.buffer, PAIR_THREADS);
}

// The grid barrier between two stages of one launch, for all epilogue threads.
INLINE void next_stage(const Args& a, const Health& health, u32 stage, u32 tag, u32 thread) {
  fence_bulk_global();
  epilogue_sync();
  if (thread == 0) {
    bool publish = !((int)cta() == a.fault_cta && (int)stage == a.fault_stage);
    wait_grid(health, a.counter, a.progress, tag, stage, publish);
  }
  epilogue_sync();
}
