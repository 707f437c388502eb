"""Caches: a wave's own stores, bytes that became clean, the end of a kernel; on both engines."""

from __future__ import annotations

from typing import Any

import flydsl.expr as fx
import kernel_words as k
import numpy as np
import pytest

import monodraft.executor as ex

pytestmark = [pytest.mark.executed, pytest.mark.parametrize("engine", ["reference", "fast"])]
SEEDS = 12
BLIND = ex.MemoryModel.harsh().without("races")


def schedules() -> list[ex.Schedule]:
    return [ex.Schedule.round_robin(), *map(ex.Schedule.random, range(SEEDS))]


def raise_flag(flag: Any, word: int) -> None:
    k.drain()
    k.store(flag, 4 * word, 1, k.SYSTEM)


def own_store(bases, n):
    t = fx.Int32(fx.thread_idx.x)
    data, out = k.resource(bases[0]), k.resource(bases[1])
    before = k.load(data, t * 4)
    k.store(data, t * 4, t + before + 1, k.DEVICE)
    first = k.load(data, t * 4)
    k.store(data, t * 4, t + 10, k.SYSTEM)
    k.store(out, t * 8, k.words(first, k.load(data, t * 4)))


def test_a_wave_sees_its_wider_stores_through_lines_that_it_holds(engine: Any) -> None:
    lowered = k.program(k.traced(own_store))
    for schedule in schedules():
        memory = ex.Memory()
        data = memory.array(0, "data", np.full(64, 5, np.int32))
        out = memory.array(0, "out", np.zeros((64, 2), np.int32))
        ex.run(k.launch(lowered, [data, out]), memory=memory, engine=engine, schedule=schedule, model=BLIND)
        t = np.arange(64)
        np.testing.assert_array_equal(out.array, np.stack([t + 6, t + 10], 1))


def overtaken(bases, n):
    """CTA 0 stores plainly and, wider, again; CTA 1, on another XCD, stores last."""
    t, bid = fx.Int32(fx.thread_idx.x), fx.Int32(fx.block_idx.x)
    data, flag = k.resource(bases[0]), k.resource(bases[1])
    if bid == 0:
        k.store(data, t * 4, t + 1, k.PLAIN)
        k.drain()
        k.store(data, t * 4, t + 2, k.SYSTEM)
        k.traced(raise_flag)(flag, 0)
    else:
        k.wait_for(flag, 0)
        k.store(data, t * 4, t + 3, k.SYSTEM)


def test_a_wider_store_leaves_no_dirty_bytes_behind(engine: Any) -> None:
    """Else the end of the kernel would write the older value over what another XCD stored meanwhile."""
    lowered = k.program(k.traced(overtaken), ctas=2)
    for schedule in schedules():
        memory = ex.Memory()
        data = memory.array(0, "data", np.zeros(64, np.int32))
        flag = memory.array(0, "flag", np.zeros(4, np.int32))
        ex.run(k.launch(lowered, [data, flag]), memory=memory, engine=engine, schedule=schedule, model=BLIND)
        np.testing.assert_array_equal(data.array, np.arange(64) + 3)


def roles(bases, role):
    """Role 0 stores plainly and stays; role 1 ends once that is done; role 2 reads when role 1 has ended."""
    t = fx.Int32(fx.thread_idx.x)
    data, flag, out = (k.resource(each) for each in bases)
    if role == 0:
        k.store(data, t * 4, t + 1, k.PLAIN)
        k.traced(raise_flag)(flag, 0)
        k.wait_for(flag, 2)
    if role == 1:
        k.wait_for(flag, 0)
        k.store(flag, 4, 1, k.SYSTEM)  # not drained: the end of this kernel makes it visible at the latest
    if role == 2:
        k.wait_for(flag, 1)
        begin = k.clock()
        now = begin
        while now - begin < 100_000:
            now = k.clock()
        k.store(out, t * 4, k.load(data, t * 4, fx.Int32, k.SYSTEM))
        k.traced(raise_flag)(flag, 2)


@pytest.mark.parametrize("rank", [0, 1], ids=["its own rank", "another rank"])
def test_the_end_of_a_kernel_writes_back_what_its_rank_stored(engine: Any, rank: int) -> None:
    """The kernel of role 1 ends on the rank that stored, or on the other one, while the storing kernel still runs."""
    lowered = k.program(k.traced(roles), bases=3)
    for schedule in schedules():
        memory = ex.Memory(ranks=2)
        data = memory.array(0, "data", np.zeros(64, np.int32))
        flag = memory.array(0, "flag", np.zeros(4, np.int32))
        out = memory.array(1, "out", np.full(64, -1, np.int32))
        launches = [k.launch(lowered, [data, flag, out], role, rank=on) for role, on in ((0, 0), (1, rank), (2, 1))]
        ex.run(launches, memory=memory, engine=engine, schedule=schedule, model=BLIND)
        np.testing.assert_array_equal(out.array, 0 if rank else np.arange(64) + 1)
        np.testing.assert_array_equal(data.array, np.arange(64) + 1)
