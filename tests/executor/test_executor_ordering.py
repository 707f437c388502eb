"""What waits, fences, orderings and atomics order, and no more than that; on both engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flydsl.expr as fx
import kernel_words as k
import numpy as np
import pytest
from flydsl.expr import const_expr, rocdl
from shared_words import Shared

import monodraft.executor as ex

pytestmark = [pytest.mark.executed, pytest.mark.parametrize("engine", ["reference", "fast"])]
SEEDS = {"reference": 24, "fast": 120}
BLIND = ex.MemoryModel.harsh().without("races", "uninitialised")
ORDER, AGENT = fx.AtomicOrdering, rocdl.SyncScope.Agent

Arrays = dict[str, np.ndarray]


def outcomes(engine: Any, body: Callable[..., None], ctas: int = 1, threads: int = 64, **arrays: Any) -> list[Arrays]:
    """What the arrays hold after each of the seeds."""
    lowered = k.program(body if body.__name__ == "<lambda>" else k.traced(body), ctas, threads, len(arrays))
    found = []
    for seed in range(SEEDS[engine]):
        memory = ex.Memory()
        regions = {name: memory.array(0, name, values) for name, values in arrays.items()}
        launch = k.launch(lowered, list(regions.values()), 1)
        ex.run(launch, memory=memory, engine=engine, model=BLIND, schedule=ex.Schedule.random(seed))
        found.append({name: region.array for name, region in regions.items()})
    return found


# ---- one wave's own accesses


def program_order(bases, n):
    t = fx.Int32(fx.thread_idx.x)
    data, out = k.resource(bases[0]), k.resource(bases[1])
    before = k.load(data, t * 4, fx.Int32, k.SYSTEM)
    k.store(data, t * 4, t + 1, k.SYSTEM)
    first = k.load(data, t * 4, fx.Int32, k.SYSTEM)
    k.store(data, t * 4, t + 2, k.SYSTEM)
    old = fx.Int32(fx.atomic_add(k.pointer(fx.Int32, bases[0]) + t, n, syncscope=AGENT))
    k.store(out, t * 16, k.words(before, first, old, t), k.SYSTEM)


def test_a_wave_sees_its_own_accesses_in_program_order(engine: str) -> None:
    arrays = {"data": np.full(64, -7, np.int32), "out": np.zeros((64, 4), np.int32)}
    t = np.arange(64)
    for found in outcomes(engine, program_order, **arrays):
        np.testing.assert_array_equal(found["data"], t + 3)
        np.testing.assert_array_equal(found["out"], np.stack([np.full(64, -7), t + 1, t + 2, t], 1))


def lds_program_order(bases, n):
    t = fx.Int32(fx.thread_idx.x)
    lds = fx.SharedAllocator().allocate(Shared).peek()
    lds.words[t] = t + 1
    first = lds.words[t]
    lds.words[t] = t + 2
    k.store(k.resource(bases[0]), t * 8, k.words(first, lds.words[t]))


def test_a_wave_sees_its_own_lds_accesses_in_program_order(engine: str) -> None:
    for found in outcomes(engine, lds_program_order, out=np.zeros((64, 2), np.int32)):
        np.testing.assert_array_equal(found["out"], np.stack([np.arange(64) + 1, np.arange(64) + 2], 1))


# ---- counted waits


def two_loads(bases, outstanding):
    """CTA 0 loads two words and lets CTA 1 overwrite them after a counted wait."""
    t, bid = fx.Int32(fx.thread_idx.x), fx.Int32(fx.block_idx.x)
    data, flag, out = (k.resource(each) for each in bases)
    if bid == 0:
        first = k.load(data, t * 4, fx.Int32, k.SYSTEM)
        second = k.load(data, 256 + t * 4, fx.Int32, k.SYSTEM)
        rocdl.s_waitcnt(vmcnt=outstanding)
        if t == 0:
            k.store(flag, 0, 1, k.SYSTEM)
        k.wait_for(flag, 1)
        k.store(out, t * 8, k.words(first, second))
    else:
        k.wait_for(flag, 0)
        k.store(data, t * 4, -1, k.SYSTEM)
        k.store(data, 256 + t * 4, -1, k.SYSTEM)
        k.drain()
        k.store(flag, 4, 1, k.SYSTEM)


@pytest.mark.parametrize("outstanding", [0, 1, 2])
def test_vmcnt_waits_for_all_but_the_newest_loads(engine: str, outstanding: int) -> None:
    arrays = {"data": np.arange(128, dtype=np.int32), "flag": np.zeros(4, np.int32), "out": np.zeros((64, 2), np.int32)}
    found = outcomes(engine, lambda bases, n: k.traced(two_loads)(bases, outstanding), ctas=2, **arrays)
    wrong = np.sum([(each["out"] != np.arange(128).reshape(2, 64).T).any(0) for each in found], 0)
    for order, count in zip((2, 1), wrong, strict=True):  # the first load is the second newest
        assert (count > 0) == (outstanding >= order)


def two_lds_stores(bases, outstanding):
    """Both waves store two words, wait for LDS down to a count, and meet at a bare barrier."""
    t = fx.Int32(fx.thread_idx.x)
    lds = fx.SharedAllocator().allocate(Shared).peek()
    half = t % 64 + t // 64 * 64
    if t < 64:
        lds.words[t] = half + 1
        lds.words[t + 64] = half + 2
    rocdl.s_waitcnt(lgkmcnt=outstanding)
    rocdl.s_barrier()
    if t >= 64:
        k.store(k.resource(bases[0]), (t - 64) * 8, k.words(lds.words[t - 64], lds.words[t]))


@pytest.mark.parametrize("outstanding", [0, 1, 2])
def test_lgkmcnt_waits_for_all_but_the_newest_stores(engine: str, outstanding: int) -> None:
    """The fast engine drains all of LDS at any such wait (docs/executor-fast.md)."""
    body = lambda bases, n: k.traced(two_lds_stores)(bases, outstanding)  # noqa: E731
    found = outcomes(engine, body, threads=128, out=np.zeros((64, 2), np.int32))
    wanted = np.stack([np.arange(64) + 1, np.arange(64) + 2], 1)
    wrong = np.sum([(each["out"] != wanted).any(0) for each in found], 0)
    for order, count in zip((2, 1), wrong, strict=True):
        assert (count > 0) == (outstanding >= order and engine == "reference")


# ---- pieces


def misaligned_pair(bases, offset):
    """CTA 0 stores pairs at 4 modulo 8 (or 8); CTA 1 polls their second word."""
    t, bid = fx.Int32(fx.thread_idx.x), fx.Int32(fx.block_idx.x)
    data, out = k.resource(bases[0]), k.resource(bases[1])
    if bid == 0:
        k.store(data, t * 16 + offset, k.words(t, fx.Int32(7)), k.SYSTEM)
    else:
        v = k.load(data, t * 16 + offset, fx.Int32x2, k.SYSTEM)
        now = k.clock()
        while (v[1] != 7) & (now >= 0):
            v = k.load(data, t * 16 + offset, fx.Int32x2, k.SYSTEM)
            now = k.clock()
        k.store(out, t * 4, (v[0] != t).to(fx.Int32))


@pytest.mark.parametrize("offset", [0, 4])
def test_eight_bytes_arrive_whole_only_where_aligned(engine: str, offset: int) -> None:
    arrays = {"data": np.full(257, -1, np.int32), "out": np.zeros(64, np.int32)}
    found = outcomes(engine, lambda bases, n: k.traced(misaligned_pair)(bases, offset), ctas=2, **arrays)
    assert any(each["out"].any() for each in found) == (offset == 4)


# ---- orderings of accesses, and fences


def raise_flag(flag: Any, n: Any, how: str) -> None:
    if const_expr(how == "fence"):
        fx.memory_fence(ordering=ORDER.Release, syncscope=AGENT)
    if const_expr(how == "atomic"):
        fx.atomic_or(flag, n, syncscope=AGENT, ordering=ORDER.Release)
    else:
        order = ORDER.Release if const_expr(how == "access") else ORDER.Monotonic
        fx.generic_store(flag, n, memory_order=order, syncscope=AGENT)


def await_flag(flag: Any, n: Any, how: str) -> None:
    order = ORDER.Acquire if const_expr(how in ("access", "atomic")) else ORDER.Monotonic
    seen = fx.Int32(0)
    while seen != n:
        if const_expr(how == "atomic"):
            seen = fx.Int32(fx.atomic_or(flag, fx.Int32(0), syncscope=AGENT, ordering=order))
        else:
            seen = fx.generic_load(flag, memory_order=order, syncscope=AGENT)
    if const_expr(how == "fence"):
        fx.memory_fence(ordering=ORDER.Acquire, syncscope=AGENT)


def ordered(bases, n, release, acquire):
    """CTA 0 stores plainly and raises a flag; CTA 1, on another XCD, holds the old lines, sees the flag and reads."""
    t, bid = fx.Int32(fx.thread_idx.x), fx.Int32(fx.block_idx.x)
    data, flag, out = (k.pointer(fx.Int32, each) for each in bases)
    if bid == 0:
        data[t] = t * 3 + n
        k.traced(raise_flag)(flag, n, release)
    else:
        before = data[t]
        out[t] = before
        k.traced(await_flag)(flag, n, acquire)
        out[64 + t] = data[t]


WAYS = ("fence", "access", "atomic", "nothing")


@pytest.mark.parametrize("acquire", WAYS)
@pytest.mark.parametrize("release", WAYS)
def test_release_and_acquire_of_fences_accesses_and_atomics(engine: str, release: str, acquire: str) -> None:
    arrays = {"data": np.zeros(64, np.int32), "flag": np.zeros(4, np.int32), "out": np.zeros(128, np.int32)}
    found = outcomes(engine, lambda bases, n: k.traced(ordered)(bases, n, release, acquire), ctas=2, **arrays)
    wrong = sum(bool((each["out"][64:] != np.arange(64) * 3 + 1).any()) for each in found)
    assert (wrong > 0) == ("nothing" in (release, acquire))


def ordered_over_ranks(bases, role, scope):
    """Role 1 stores plainly, releases, raises a flag and stays; role 2, a peer with old lines, acquires and reads.
    Only the fences have `scope`."""
    t = fx.Int32(fx.thread_idx.x)
    data, flag, out = (k.pointer(fx.Int32, each) for each in bases)
    if role == 1:
        data[t] = t * 3 + 1
        fx.memory_fence(ordering=ORDER.Release, syncscope=scope)
        fx.generic_store(flag, fx.Int32(1), memory_order=ORDER.Monotonic)
        done = fx.Int32(0)
        while done != 1:
            done = fx.generic_load(flag + 1, memory_order=ORDER.Monotonic)
    else:
        before = data[t]
        out[t] = before
        seen = fx.Int32(0)
        while seen != 1:
            seen = fx.generic_load(flag, memory_order=ORDER.Monotonic)
        fx.memory_fence(ordering=ORDER.Acquire, syncscope=scope)
        out[64 + t] = data[t]
        fx.generic_store(flag + 1, fx.Int32(1), memory_order=ORDER.Monotonic)


@pytest.mark.parametrize("home", [0, 1], ids=["of the writer", "of the reader"])
@pytest.mark.parametrize("scope", [None, AGENT], ids=["system", "agent"])
def test_fences_between_ranks_need_system_scope(engine: Any, scope: Any, home: int) -> None:
    """On memory of either rank: a device's cache is written back, and dropped, by fences of system scope only."""
    lowered = k.program(lambda bases, n: k.traced(ordered_over_ranks)(bases, n, scope), bases=3)
    wrong = 0
    for seed in range(12):
        memory = ex.Memory(ranks=2)
        data = memory.array(home, "data", np.zeros(64, np.int32))
        flag = memory.array(0, "flag", np.zeros(4, np.int32))
        out = memory.array(1, "out", np.zeros(128, np.int32))
        launches = [k.launch(lowered, [data, flag, out], rank + 1, rank=rank) for rank in range(2)]
        ex.run(launches, memory=memory, engine=engine, model=BLIND, schedule=ex.Schedule.random(seed))
        wrong += bool((out.array[64:] != np.arange(64) * 3 + 1).any())
    assert (wrong > 0) == (scope is AGENT)


# ---- atomics and uncached memory


def counters(bases, n):
    """Every CTA holds the counter's line in its L1 and adds at workgroup scope: atomics are done in L2."""
    t = fx.Int32(fx.thread_idx.x)
    counter, out = k.pointer(fx.Int32, bases[0]), k.pointer(fx.Int32, bases[1])
    out[fx.Int32(fx.block_idx.x) * 64 + t] = counter[0]
    fx.atomic_add(counter, n, syncscope=rocdl.SyncScope.Workgroup)


def test_atomics_are_done_in_l2_at_least(engine: Any) -> None:
    lowered = k.program(k.traced(counters), ctas=4)
    for seed in range(SEEDS[engine] // 4):
        memory = ex.Memory()
        counter = memory.array(0, "counter", np.zeros(1, np.int32))
        out = memory.array(0, "out", np.zeros(256, np.int32))
        launch, gpu = k.launch(lowered, [counter, out], 1), ex.Gpu.mi355x(cus=8, xcds=1)
        schedule = ex.Schedule.random(seed)
        ex.run(launch, memory=memory, gpu=gpu, engine=engine, model=BLIND, schedule=schedule)
        assert counter.array[0] == 256


def plain_exchange(bases, n):
    """A hand-off with plain accesses only; CTA 0 starts late, so CTA 1 holds the lines."""
    t, bid = fx.Int32(fx.thread_idx.x), fx.Int32(fx.block_idx.x)
    data, out = k.resource(bases[0]), k.resource(bases[1])
    if bid == 0:
        now = k.clock()
        while now < 10_000:
            now = k.clock()
        k.store(data, t * 4, t + 1)
        k.drain()
        if t == 0:
            k.store(data, 256, 1)
    else:
        k.store(out, 256 + t * 4, k.load(data, t * 4))
        seen = k.load(data, 256, fx.Int32)
        now = k.clock()
        while (seen == 0) & (now < 1_000_000):
            seen = k.load(data, 256, fx.Int32)
            now = k.clock()
        k.store(out, t * 4, k.load(data, t * 4))


@pytest.mark.parametrize("uncached", [True, False])
def test_uncached_memory_bypasses_the_caches(engine: Any, uncached: bool) -> None:
    lowered = k.program(k.traced(plain_exchange), ctas=2)
    right = 0
    for seed in range(8):
        memory = ex.Memory()
        data = memory.array(0, "data", np.zeros(65, np.int32), uncached=uncached)
        out = memory.array(0, "out", np.zeros(128, np.int32))
        schedule = ex.Schedule.random(seed)
        ex.run(k.launch(lowered, [data, out]), memory=memory, engine=engine, model=BLIND, schedule=schedule)
        right += bool((out.array[:64] == np.arange(64) + 1).all())
    assert right == 8 if uncached else right == 0


def written_then_read(bases, n):
    """Other lanes' words of memory that started as poison, and of LDS."""
    t = fx.Int32(fx.thread_idx.x)
    lds = fx.SharedAllocator().allocate(Shared).peek()
    data, out = k.resource(bases[0]), k.resource(bases[1])
    lds.words[t] = t
    k.store(data, t * 4, t, k.SYSTEM)
    k.drain()
    fx.gpu.barrier()
    k.store(out, t * 4, k.load(data, (t ^ 65) * 4, fx.Int32, k.SYSTEM) + lds.words[t ^ 65])


def test_what_a_late_store_wrote_is_initialised(engine: Any) -> None:
    lowered = k.program(k.traced(written_then_read), threads=128)
    for seed in range(12):
        memory = ex.Memory()
        data = memory.array(0, "data", np.zeros(128, np.int32), initialised=False)
        out = memory.array(0, "out", np.zeros(128, np.int32), initialised=False)
        model, schedule = ex.MemoryModel.harsh().without("races"), ex.Schedule.random(seed)
        ex.run(k.launch(lowered, [data, out]), memory=memory, engine=engine, model=model, schedule=schedule)
        np.testing.assert_array_equal(out.array, 2 * (np.arange(128) ^ 65))
        assert out.written is not None
        assert out.written.all()
