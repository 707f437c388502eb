"""Exchanges of the kernels, each broken once: what the emulator makes of them (test_emulated_mutations.py)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """`old` becomes `new` in a source file; several of them where `more` says so.

    `schedules`: plain runs end in other bytes or in an error. `races`: a build that looks for races finds one.
    """

    name: str
    file: str
    old: str
    new: str
    schedules: bool
    races: bool
    more: tuple[tuple[str, str, str], ...] = ()

    @property
    def changes(self) -> tuple[tuple[str, str, str], ...]:
        return ((self.file, self.old, self.new), *self.more)


NEXT_STAGE = "  fence_bulk_global();\n  epilogue_sync();\n  if (thread == 0) {\n    bool publish"
AFTER_GRID = "publish);\n  }\n  epilogue_sync();\n}"

MUTATIONS = [
    Mutation(
        "grid barrier: epilogue warps do not meet before it",
        "stages/exchange.cuh",
        NEXT_STAGE,
        NEXT_STAGE.replace("  epilogue_sync();\n", ""),
        schedules=True,
        races=True,
    ),
    Mutation(
        "grid barrier: epilogue warps do not meet after it",
        "stages/exchange.cuh",
        AFTER_GRID,
        AFTER_GRID.replace("  epilogue_sync();\n", ""),
        schedules=True,
        races=True,
    ),
    Mutation(
        "grid barrier: arrival without release",
        "device/waits.cuh",
        "old = add_release(counter, add);",
        "old = atomicAdd(counter, add);",
        schedules=False,
        races=True,
    ),
    Mutation(
        "grid barrier: polls without acquire",
        "device/waits.cuh",
        "if ((old ^ load_acquire(counter)) & 0x80000000u) return;",
        "if ((old ^ load_relaxed(counter)) & 0x80000000u) return;",
        schedules=False,
        races=True,
        more=(
            (
                "device/waits.cuh",
                "!((old ^ load_acquire(counter)) & 0x80000000u); polls++",
                "!((old ^ load_relaxed(counter)) & 0x80000000u); polls++",
            ),
        ),
    ),
    Mutation(
        "no fence between the proxies in global memory, on either side",
        "stages/exchange.cuh",
        "  fence_bulk_global();\n",
        "",
        schedules=False,
        races=True,
        more=(("stages/linear.cuh", "      fence_bulk_global();\n", ""),),
    ),
    Mutation(
        "no fence between the proxies in global memory where it is written (the reader has one too)",
        "stages/exchange.cuh",
        "  fence_bulk_global();\n",
        "",
        schedules=False,
        races=False,
    ),
    Mutation(
        "no fence between the proxies in shared memory after attention",
        "stages/attention.cuh",
        "M_ROWS, warp, lane);\n    epilogue_sync();\n  }\n  fence_bulk_shared();",
        "M_ROWS, warp, lane);\n    epilogue_sync();\n  }",
        schedules=False,
        races=False,
    ),
    Mutation(
        "no fence between the proxies in shared memory after the combine",
        "stages/attention.cuh",
        "= pack4(o);\n  }\n  fence_bulk_shared();",
        "= pack4(o);\n  }",
        schedules=False,
        races=True,
    ),
    Mutation(
        "factors of the rows used before all epilogue warps have them (the barriers of red order them)",
        "stages/linear.cuh",
        "else if (thread < ROWS) factor[thread] = 1.f;\n      epilogue_sync();",
        "else if (thread < ROWS) factor[thread] = 1.f;",
        schedules=False,
        races=False,
    ),
    Mutation(
        "context rows announced before all of them are stored",
        "stages/linear.cuh",
        "  fence_bulk_shared();\n  epilogue_sync();\n  announce_ready",
        "  fence_bulk_shared();\n  announce_ready",
        schedules=True,
        races=True,
    ),
    Mutation(
        "attention: scores before all heads are turned",
        "stages/attention.cuh",
        "from == begin, warp, lane);\n      epilogue_sync();\n      scores(",
        "from == begin, warp, lane);\n      scores(",
        schedules=True,
        races=True,
    ),
    Mutation(
        "attention: keys used before their copy is over",
        "stages/attention.cuh",
        "      copy_async_wait();\n      epilogue_sync();\n      finish_heads",
        "      epilogue_sync();\n      copy_async_wait();\n      finish_heads",
        schedules=True,
        races=True,
    ),
    Mutation(
        "attention: P over scores that other lanes have not read",
        "stages/attention.cuh",
        "    __syncwarp();  // the rows are in registers before P overwrites them\n",
        "",
        schedules=False,
        races=True,
    ),
    Mutation(
        "red: written again before it is free",
        "stages/exchange.cuh",
        "  if (p.done >= 2) named_sync(BARRIER_FREE + p.buffer, PAIR_THREADS);\n}\nINLINE void leave_red",
        "}\nINLINE void leave_red",
        schedules=True,
        races=True,
    ),
    Mutation(
        "red: never announced",
        "stages/exchange.cuh",
        "  named_arrive(BARRIER_FULL + p.buffer, PAIR_THREADS);\n",
        "",
        schedules=True,
        races=True,
    ),
    Mutation(
        "red: no fence of the CTA before the announcement (the barrier orders by itself)",
        "stages/exchange.cuh",
        "  __threadfence_block();\n",
        "",
        schedules=False,
        races=False,
    ),
    Mutation(
        "ring: a slot handed back without the lanes having met (the matrix instruction gathers them)",
        "stages/weights.cuh",
        "  __syncwarp();\n  if (lane < ARRIVALS(32)) phase_arrive(ring.empty",
        "  if (lane < ARRIVALS(32)) phase_arrive(ring.empty",
        schedules=False,
        races=False,
    ),
    Mutation(
        "ring: the producer does not wait for free slots",
        "stages/weights.cuh",
        "if (!phase_test(ring.empty + ring.slot * 8, ring.parity)) {",
        "if (false) {",
        schedules=True,
        races=True,
    ),
    Mutation(
        "ring: a chunk's bytes counted short",
        "stages/weights.cuh",
        "phase_expect(bar, bytes);",
        "phase_expect(bar, bytes - 16);",
        schedules=True,
        races=True,
    ),
    Mutation(
        "barriers used before they are initialised",
        "step.cu",
        "  phase_init_fence();\n  __syncthreads();\n",
        "  phase_init_fence();\n",
        schedules=True,
        races=True,
    ),
    Mutation(
        "barriers' initialisation not fenced",
        "step.cu",
        "  phase_init_fence();\n",
        "",
        schedules=False,
        races=False,
    ),
    Mutation(
        "chain: the launch before is not waited for",
        "step.cu",
        "  wait_previous_launch();\n",
        "",
        schedules=True,
        races=True,
    ),
    Mutation(
        "residual read through the cache that nobody keeps coherent",
        "stages/linear.cuh",
        "u32 old = __ldcg(residual);",
        "u32 old = __ldg(residual);",
        schedules=False,
        races=True,
    ),
    Mutation(
        "base logits read through the cache that nobody keeps coherent",
        "stages/markov.cuh",
        "base[n][c][0] = __ldcg(from), base[n][c][1] = __ldcg(from + 8);",
        "base[n][c][0] = __ldg(from), base[n][c][1] = __ldg(from + 8);",
        schedules=False,
        races=True,
    ),
    Mutation(
        "Markov: vectors of tokens that are not chosen yet",
        "stages/markov.cuh",
        "previous[thread] = fixed().step[STEP_ANCHOR + thread];\n  epilogue_sync();",
        "previous[thread] = fixed().step[STEP_ANCHOR + thread];",
        schedules=True,
        races=True,
    ),
    Mutation(
        "bounded Markov: bounds of other warps used before they are there",
        "stages/markov_bounded.cuh",
        "  named_sync(BARRIER_COMPUTE, COMPUTE_WARPS * 32);\n  for (u32 turn",
        "  for (u32 turn",
        schedules=True,
        races=True,
    ),
    Mutation(
        "bounded Markov: the list of candidates read before it is complete",
        "stages/markov_bounded.cuh",
        "  named_sync(BARRIER_COMPUTE, COMPUTE_WARPS * 32);\n  u64 best",
        "  u64 best",
        schedules=True,
        races=True,
    ),
]
