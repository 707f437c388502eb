#!/usr/bin/env python3
"""Find a race in an ordinary FlyDSL kernel without a GPU.

    python examples/executor_race.py

The kernel sums 256 numbers in two steps through LDS and reuses the same words for a second sum. It looks right, and on
most runs of most machines it is; the executor says what is wrong with it, on which lines, and a seed that shows it.
"""

import flydsl.compiler as flyc
import flydsl.expr as fx
import numpy as np
from flydsl.expr import range_constexpr

import monodraft.executor as ex


@fx.struct
class Shared:
    partial: fx.Array[fx.Int32, 256, 16]


@flyc.kernel
def two_sums(x: fx.Tensor, out: fx.Tensor):
    t = fx.Int32(fx.thread_idx.x)
    lds = fx.SharedAllocator().allocate(Shared).peek()
    total = fx.Int32(0)
    for round in range_constexpr(2):
        lds.partial[t] = x[t] + round
        fx.gpu.barrier()
        for i in range(256):
            total = total + lds.partial[i]
        # The planted mistake: the next round overwrites what slower waves are still adding up.
    out[t] = total


@flyc.jit
def launch(x: fx.Tensor, out: fx.Tensor, stream: fx.Stream = fx.Stream(None)):  # noqa: B008
    two_sums(x, out).launch(grid=(1, 1, 1), block=(256, 1, 1), stream=stream)


if __name__ == "__main__":
    x, out = np.arange(256, dtype=np.int32), np.zeros(256, np.int32)
    for seed in range(20):
        try:
            ex.run(ex.Launch(launch, (x, out)), schedule=ex.Schedule.random(seed))
        except ex.Race as race:
            print(race)
            break
        print(f"seed {seed}: no race, right answer: {bool((out == 2 * x.sum() + 256).all())}")
