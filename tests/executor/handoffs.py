"""Producer and consumer kernels with one thing wrong each, for the tests of the memory model and the detectors."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import flydsl.expr as fx
import kernel_words as k
import numpy as np
from flydsl.expr import const_expr

import monodraft.executor as ex

THREADS = 128
EPOCH = 7
BOUND = 10**7  # ticks


@dataclass(frozen=True)
class Handoff:
    """A CTA (or rank) stores 16 bytes a thread and raises a flag; another waits for it and reads.

    `drain`, `barrier`: of the producer, before the flag. `wait_barrier`: of the consumer, after it. `writer`, `reader`:
    cache policy of the data, `flag`: of the flag. `before`: the consumer has read the data earlier, in the same kernel.
    `round`: "" reads the data after the wait; "data first" and "flag first" load both in every round of the wait and
    take the data of the last one (right only if loads happened in program order, flag first).
    """

    drain: bool = True
    barrier: bool = True
    wait_barrier: bool = True
    writer: int = k.SYSTEM
    reader: int = k.SYSTEM
    flag: int = k.SYSTEM
    before: bool = False
    round: str = ""
    bounded: bool = True


@functools.cache
def program(spec: Handoff) -> ex.Program:
    """Two CTAs: number 0 produces, number 1 consumes. With two ranks launch it with `n` = the role: 0 both, 1 produce
    only, 2 consume only."""

    @k.traced
    def body(bases, role):
        tid, bid = fx.Int32(fx.thread_idx.x), fx.Int32(fx.block_idx.x)
        data, out, flag = k.resource(bases[0]), k.resource(bases[1]), k.resource(bases[2])
        if (bid == 0) & (role != 2):
            k.store(data, tid * 16, k.words(tid, tid * 3, tid ^ 5, fx.Int32(EPOCH)), spec.writer)
            if const_expr(spec.drain):
                k.drain()
            if const_expr(spec.barrier):
                fx.gpu.barrier()
            if tid == 0:
                k.store(flag, 0, EPOCH, spec.flag)
            if role == 1:  # stay until the consumer is done: the end of a kernel would write everything back
                begin = k.clock()
                now = begin
                done = k.load(flag, 32, fx.Int32, k.SYSTEM)
                while (done == 0) & (now - begin < 100 * BOUND):
                    done = k.load(flag, 32, fx.Int32, k.SYSTEM)
                    now = k.clock()
        if (bid == 1) & (role != 1):
            if const_expr(spec.before):
                earlier = k.load(data, tid * 16, fx.Int32x4, spec.reader)
                k.store(out, 65536 + tid * 16, earlier)
            begin = k.clock()
            now = begin
            x = k.words(fx.Int32(0), fx.Int32(0), fx.Int32(0), fx.Int32(0))
            seen = fx.Int32(0)
            while (seen != EPOCH) & (now - begin < BOUND):
                if const_expr(spec.round == "data first"):
                    x = k.load(data, tid * 16, fx.Int32x4, spec.reader)
                seen = k.load(flag, 0, fx.Int32, spec.flag)
                if const_expr(spec.round == "flag first"):
                    x = k.load(data, tid * 16, fx.Int32x4, spec.reader)
                if const_expr(spec.bounded):
                    now = k.clock()
            if const_expr(spec.wait_barrier):
                fx.gpu.barrier()
            if const_expr(not spec.round):
                x = k.load(data, tid * 16, fx.Int32x4, spec.reader)
            k.store(out, tid * 16, x)
            k.store(out, 32768 + tid * 4, seen)
            k.store(flag, 32, 1, k.SYSTEM)

    return k.program(body, ctas=2, threads=THREADS, bases=3)


def expected() -> np.ndarray:
    t = np.arange(THREADS, dtype=np.int32)
    return np.stack([t, t * 3, t ^ 5, np.full(THREADS, EPOCH, np.int32)], 1)


def run(
    lowered: ex.Program,
    schedule: ex.Schedule,
    model: ex.MemoryModel | None = None,
    ranks: int = 1,
    data_rank: int = 0,
    **options: Any,
) -> tuple[bool, ex.Report]:
    """Whether the consumer read what was produced, and the report."""
    memory = ex.Memory(ranks=ranks)
    data = memory.array(data_rank, "data", np.full((THREADS, 4), -1, np.int32))
    out = memory.array(0, "out", np.zeros((65536 // 16 + THREADS, 4), np.int32))
    flag = memory.array(data_rank, "flag", np.zeros(16, np.int32))
    bases = [data, out, flag]
    if ranks == 1:
        launches = [k.launch(lowered, bases)]
    else:
        launches = [k.launch(lowered, bases, 1, rank=0), k.launch(lowered, bases, 2, rank=1)]
    report = ex.run(launches, memory=memory, gpu=ex.Gpu.mi355x(cus=8), schedule=schedule, model=model, **options)
    in_time = bool((out.array.reshape(-1)[32768 // 4 : 32768 // 4 + THREADS] == EPOCH).all())
    return in_time and bool(np.array_equal(out.array[:THREADS], expected())), report


def wrong(lowered: ex.Program, seeds: int, model: ex.MemoryModel | None = None, **options: Any) -> int:
    """Of so many random schedules, how many gave a wrong result."""
    return sum(not run(lowered, ex.Schedule.random(seed), model, **options)[0] for seed in range(seeds))
