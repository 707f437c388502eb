// One DSpark draft step on sm_90a: `count` stages from `first`, in one launch with grid barriers between them, or one
// launch a stage chained by programmatic dependent launch. A CTA is 8 compute warps, 8 epilogue warps, 1 producer warp.
#include "stages/attention.cuh"
#include "stages/linear.cuh"
#include "stages/markov_bounded.cuh"
#include "stages/prepare.cuh"

INLINE void compute_warp(const Args& a, const Health& health, Ring ring, u32 own_warp, u32 own_lane) {
  Passes passes = {0, 0};
  u32 ready_parity = 0, arrived_parity = 0;
  for (u32 i = 0; i < (u32)a.count; i++) {
    const Stage& s = fixed().stages[i];
    const u32 warp = uniform(opaque(own_warp)), lane = opaque(own_lane);
#if !SAMPLED  // scores are not what the bounded chain bounds: such builds take the full scan
    if (s.kind == KIND_MARKOV_BOUNDED)
      markov_bounded_compute(a, s, health, ring, passes, ready_parity, arrived_parity, warp, lane, a.first + i);
#endif
    if (s.kind == KIND_MARKOV) markov_compute(a, s, health, ring, passes, ready_parity, warp, lane, a.first + i);
    if (s.kind != KIND_LINEAR) continue;
    if (MXFP8 && s.mxfp8) linear_compute<true>(s, health, ring, passes, ready_parity, warp, lane, a.first + i);
    else linear_compute<false>(s, health, ring, passes, ready_parity, warp, lane, a.first + i);
  }
  leave_red(passes);
}

INLINE void epilogue_warp(const Args& a, const Health& health, u32 own_thread) {
  Passes passes = {0, 0};
  u32 ready_parity = 0;
  wait_previous_launch();
  for (u32 i = own_thread; i < STEP_WORDS; i += EPILOGUE_THREADS) fixed().step[i] = a.step[i];
  epilogue_sync();
  const u32 epoch = load_relaxed(a.epoch);
  for (u32 i = 0; i < (u32)a.count; i++) {
    const Stage& s = fixed().stages[i];
    const u32 stage = a.first + i, thread = opaque(own_thread);
    if (a.stamps && thread == 0) a.stamps[(cta() * MAX_STAGES + stage) * 2] = clock64();
    switch (s.kind) {
      case KIND_LINEAR:
        if (s.out == OUT_HEADS && thread >= 32) prefetch_keys(a, s, thread - 32);
        linear_epilogue(a, s, health, passes, ready_parity, fixed().factor, thread, stage);
        break;
      case KIND_PREPARE:
        commit_context(a, thread >> 5, thread & 31);
        embed_block(a, thread);
        break;
      case KIND_ATTEND:
        attend(a, s, shared_activations(), thread);
        break;
      case KIND_COMBINE:
        combine(a, s, shared_activations(), thread);
        break;
      case KIND_MARKOV:
      case KIND_MARKOV_BOUNDED:
#if RANKS > 1
        if (s.step) meet_ranks(a, health, epoch << 8 | stage, stage, thread);
#endif
        markov_epilogue(a, s, passes, ready_parity, fixed().previous, thread);
        break;
#if RANKS > 1
      case KIND_SUM:
        meet_ranks(a, health, epoch << 8 | stage, stage, thread);
        sum_epilogue(a, s, thread);
        break;
#endif
#ifdef JOINS
      case KIND_JOIN:
        join_epilogue(a, s, fixed().factor, thread);
        break;
#endif
      default:
#if RANKS > 1
        // In a chain, another CTA may start when CTA 0 has moved the epoch on: it would wait for a tag that never comes.
        if (cta() != 0) break;
        meet_ranks(a, health, epoch << 8 | stage, stage, thread);
#endif
        choose(a, BLOCK - 1, fixed().previous, thread >> 5, thread & 31);
        if (cta() == 0 && thread == 0) store_relaxed(a.epoch, epoch + 1);
    }
    if (a.stamps && thread == 0) a.stamps[(cta() * MAX_STAGES + stage) * 2 + 1] = clock64();
    if (i + 1 < (u32)a.count) next_stage(a, health, stage, epoch << 8 | stage, thread);
  }
}

#if RANKS > 1
struct Launch {
  Args ranks[RANKS];
};
extern "C" __global__ void __launch_bounds__(THREADS, 1) draft_step(const __grid_constant__ Launch launch) {
  const Args& a = launch.ranks[rank_group()];
#else
extern "C" __global__ void __launch_bounds__(THREADS, 1) draft_step(const __grid_constant__ Args a) {
#endif
  const u32 thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  let_next_launch_start();
  for (u32 i = thread; i < a.count * sizeof(Stage) / 4; i += THREADS) ((u32*)fixed().stages)[i] = ((const u32*)(a.stages + a.first))[i];
  if (thread < RING_SLOTS) phase_init(shared_address(&fixed().full[thread]), 1), phase_init(shared_address(&fixed().empty[thread]), ARRIVALS(32));
  if (thread < COMPUTE_WARPS) phase_init(shared_address(&fixed().bounds.arrived[thread]), 1);
  if (thread < 2) phase_init(ready_bar(thread), ARRIVALS(EPILOGUE_THREADS));
  phase_init_fence();
  __syncthreads();
  const Health health = {a.health, a.bound};
  const u32 ring_warp = warp < COMPUTE_WARPS ? warp : lane & (COMPUTE_WARPS - 1);
  const Ring ring = {shared_address(dynamic) + RING_AT + ring_warp * SLOTS * SLOT_BYTES, shared_address(fixed().full + ring_warp * SLOTS),
                     shared_address(fixed().empty + ring_warp * SLOTS), 0, 0};
  if (warp < COMPUTE_WARPS) {
    if (COMPUTE_REGISTERS < 96) shrink_registers<COMPUTE_REGISTERS>();
    compute_warp(a, health, ring, warp, lane);
  } else if (warp < COMPUTE_WARPS + EPILOGUE_WARPS) {
    grow_registers<EPILOGUE_REGISTERS>();
    epilogue_warp(a, health, thread - COMPUTE_WARPS * 32);
  } else {
    shrink_registers<PRODUCER_REGISTERS>();
    if (warp == COMPUTE_WARPS + EPILOGUE_WARPS && lane < COMPUTE_WARPS) Producer{fixed().stages, lane, (u32)a.count}.run(health, ring);
  }
}
