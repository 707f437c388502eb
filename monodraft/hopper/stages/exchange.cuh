// Between compute and epilogue warps of one CTA: who waits for whom, in shared memory.
#pragma once
#include "weights.cuh"

// Named barriers: 1, 2 `red` full; 3, 4 `red` free; 5 epilogue warps among themselves.
#define BARRIER_FULL 1
#define BARRIER_FREE 3
#define BARRIER_EPILOGUE 5
#define RED_FLOATS (COMPUTE_WARPS * 4 * ROW_TILES * 32)

struct Shared {
  u8* activations;  // ACTIVATION_BYTES: one part of the input, or attention's scratch
  float* red;       // [2][COMPUTE_WARPS][4 * ROW_TILES][32] partial sums
  float2* sums;     // [SUM_SLOTS][64 * ROW_TILES] sums of earlier parts
  u8* bias;         // [ROW_TILES][RANK_PADDED / 32][512] Markov vectors in fragment order
  u32 ready;        // mbarrier: the input part is in shared memory
};

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
    bool publish = !((int)blockIdx.x == a.fault_cta && (int)stage == a.fault_stage);
    wait_grid(health, a.counter, a.progress, tag, stage, publish);
  }
  epilogue_sync();
}
