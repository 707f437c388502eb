"""Each rule of the memory model: what it catches, what survives it, and that its switch turns it off."""

from __future__ import annotations

from dataclasses import replace

import flydsl.expr as fx
import handoffs
import kernel_words as k
import numpy as np
import pytest
from flydsl.expr import const_expr
from handoffs import Handoff
from shared_words import Shared

import monodraft.executor as ex

pytestmark = pytest.mark.executed
SEEDS = 24
NO_RACES = ex.MemoryModel.harsh().without("races")


def test_a_correct_handoff_survives_everything() -> None:
    lowered = handoffs.program(Handoff())
    assert handoffs.run(lowered, ex.Schedule.round_robin())[0]
    assert handoffs.wrong(lowered, SEEDS) == 0
    for seed in range(8):
        for starve in ("wave", "cta"):
            assert handoffs.run(lowered, ex.Schedule.adversarial(seed, starve=starve))[0]
        assert handoffs.run(lowered, ex.Schedule.adversarial(seed, delay="store"))[0]


def test_a_correct_handoff_between_ranks_survives_a_starved_rank() -> None:
    lowered = handoffs.program(Handoff())
    for seed in range(4):
        schedule = ex.Schedule.adversarial(seed, starve="rank")
        assert handoffs.run(lowered, schedule, ranks=2, data_rank=1)[0]


# sabotage, the switch that shows it, and whether the plain model (that switch off) is blind to it
SABOTAGE = {
    "no drain before the flag": (Handoff(drain=False), "delayed_stores"),
    "writer without the coherent bit": (Handoff(writer=k.PLAIN), "l2"),
    "reader without the coherent bit, lines held": (Handoff(reader=k.PLAIN, before=True), "l1 l2 device"),
}


@pytest.mark.parametrize("name", SABOTAGE)
def test_sabotage_is_caught_and_its_switch_turns_it_off(name: str) -> None:
    spec, switches = SABOTAGE[name]
    lowered = handoffs.program(spec)
    assert handoffs.wrong(lowered, SEEDS, NO_RACES) > SEEDS // 8
    assert handoffs.wrong(lowered, SEEDS, NO_RACES.without(*switches.split())) == 0


def test_loads_of_one_round_happen_in_any_order() -> None:
    flag_first = handoffs.program(Handoff(round="flag first"))
    assert handoffs.wrong(flag_first, 4 * SEEDS) > 0
    assert handoffs.wrong(flag_first, 4 * SEEDS, ex.MemoryModel.harsh().without("late_loads")) == 0
    # Wrong in program order already: no switch is needed to see it.
    assert handoffs.wrong(handoffs.program(Handoff(round="data first")), 4 * SEEDS) > 0


def test_missing_barrier_lets_the_flag_overtake_other_waves() -> None:
    lowered = handoffs.program(Handoff(barrier=False))
    schedules = [ex.Schedule.adversarial(seed, starve="wave") for seed in range(SEEDS)]
    assert any(not handoffs.run(lowered, each)[0] for each in schedules)


def test_stores_are_delayed_until_drained() -> None:
    """The same missing drain is invisible where stores are visible at once."""
    lowered = handoffs.program(Handoff(drain=False))
    assert handoffs.wrong(lowered, SEEDS, ex.MemoryModel.sequential()) == 0
    assert handoffs.wrong(lowered, SEEDS, ex.MemoryModel.harsh().only("delayed_stores")) > 0


def test_a_peer_sees_only_system_scope_stores() -> None:
    good = handoffs.program(Handoff())
    assert handoffs.wrong(good, SEEDS, ranks=2, data_rank=1) == 0
    assert handoffs.wrong(good, SEEDS, ranks=2, data_rank=0) == 0
    device = handoffs.program(Handoff(writer=k.DEVICE))
    assert handoffs.wrong(device, SEEDS, NO_RACES, ranks=2, data_rank=1) == SEEDS
    assert handoffs.wrong(device, SEEDS, NO_RACES.without("device"), ranks=2, data_rank=1) == 0
    # The same policy is enough on one GPU.
    assert handoffs.wrong(handoffs.program(Handoff(writer=k.DEVICE, reader=k.DEVICE)), SEEDS) == 0


def test_a_peer_that_polls_at_device_scope_never_sees_the_flag() -> None:
    lowered = handoffs.program(Handoff(flag=k.DEVICE))
    assert handoffs.wrong(lowered, 4, NO_RACES, ranks=2, data_rank=1) == 4  # the bounded wait expires
    assert handoffs.wrong(lowered, 4) == 0


@k.traced
def torn_reader(bases, quad):
    tid, bid = fx.Int32(fx.thread_idx.x), fx.Int32(fx.block_idx.x)
    data, out = k.resource(bases[0]), k.resource(bases[1])
    width = 4 if const_expr(quad) else 2
    kind = fx.Int32x4 if const_expr(quad) else fx.Int32x2
    if bid == 0:
        items = (
            [tid, tid + 1, tid + 2, fx.Int32(handoffs.EPOCH)] if const_expr(quad) else [tid, fx.Int32(handoffs.EPOCH)]
        )
        k.store(data, tid * 16, k.words(*items), k.SYSTEM)
    else:
        begin = k.clock()
        now = begin
        v = k.load(data, tid * 16, kind, k.SYSTEM)
        while (v[width - 1] != handoffs.EPOCH) & (now - begin < handoffs.BOUND):
            v = k.load(data, tid * 16, kind, k.SYSTEM)
            now = k.clock()
        bad = v[0] != tid
        if const_expr(quad):
            bad = bad | (v[1] != tid + 1) | (v[2] != tid + 2)
        k.store(out, tid * 4, bad.to(fx.Int32))


def torn(lowered: ex.Program, model: ex.MemoryModel) -> int:
    bad = 0
    for seed in range(SEEDS):
        memory = ex.Memory()
        data = memory.array(0, "data", np.full(128 * 4, -1, np.int32))
        out = memory.array(0, "out", np.zeros(128, np.int32))
        ex.run(k.launch(lowered, [data, out]), memory=memory, schedule=ex.Schedule.random(seed), model=model)
        bad += bool(out.array.any())
    return bad


def test_eight_bytes_arrive_whole_and_sixteen_do_not() -> None:
    pair = k.program(lambda bases, n: torn_reader(bases, False), ctas=2, threads=128)
    quad = k.program(lambda bases, n: torn_reader(bases, True), ctas=2, threads=128)
    harsh = ex.MemoryModel.harsh()
    assert torn(pair, harsh) == 0
    assert torn(quad, harsh) > SEEDS // 2
    assert torn(quad, harsh.without("torn", "late_loads")) == 0


# ---- LDS


@k.traced
def exchange(bases, barrier, again):
    """Every thread reads what the thread in the other wave wrote; `again` overwrites without a barrier between."""
    tid = fx.Int32(fx.thread_idx.x)
    lds = fx.SharedAllocator().allocate(Shared).peek()
    lds.words[tid] = tid * 5
    if const_expr(barrier):
        fx.gpu.barrier()
    x = lds.words[tid ^ 64]
    if const_expr(again):
        lds.words[tid] = fx.Int32(-1)
        fx.gpu.barrier()
    k.store(k.resource(bases[0]), tid * 4, x)


def run_exchange(barrier: bool, again: bool, seed: int, model: ex.MemoryModel) -> bool:
    lowered = k.program(lambda bases, n: exchange(bases, barrier, again), threads=128, bases=1)
    memory = ex.Memory()
    out = memory.array(0, "out", np.zeros(128, np.int32))
    ex.run(k.launch(lowered, [out]), memory=memory, schedule=ex.Schedule.random(seed), model=model)
    return bool((out.array == (np.arange(128) ^ 64) * 5).all())


def test_lds_needs_a_barrier_between_waves() -> None:
    blind = ex.MemoryModel.harsh().without("races", "uninitialised")
    assert all(run_exchange(True, False, seed, ex.MemoryModel.harsh()) for seed in range(8))
    assert not all(run_exchange(False, False, seed, blind) for seed in range(8))
    assert not all(run_exchange(True, True, seed, blind) for seed in range(16))
    with pytest.raises((ex.Race, ex.UninitialisedRead)):
        run_exchange(False, False, 1, ex.MemoryModel.harsh())
    with pytest.raises(ex.Race):
        run_exchange(True, True, 1, ex.MemoryModel.harsh())


@k.traced
def exchange_raw_barrier(bases, wait):
    """A bare s_barrier does not wait for LDS stores; gpu.barrier does."""
    tid = fx.Int32(fx.thread_idx.x)
    lds = fx.SharedAllocator().allocate(Shared).peek()
    lds.words[tid] = tid * 5
    if const_expr(wait):
        fx.rocdl.s_waitcnt(lgkmcnt=0)
    fx.rocdl.s_barrier()
    k.store(k.resource(bases[0]), tid * 4, lds.words[tid ^ 64])


@pytest.mark.parametrize("wait", [True, False])
def test_a_bare_barrier_does_not_drain_lds(wait: bool) -> None:
    lowered = k.program(lambda bases, n: exchange_raw_barrier(bases, wait), threads=128, bases=1)
    right = 0
    for seed in range(8):
        memory = ex.Memory()
        out = memory.array(0, "out", np.zeros(128, np.int32))
        model = ex.MemoryModel.harsh().without("races", "uninitialised")
        ex.run(k.launch(lowered, [out]), memory=memory, schedule=ex.Schedule.random(seed), model=model)
        right += bool((out.array == (np.arange(128) ^ 64) * 5).all())
    assert right == 8 if wait else right < 8


# ---- a double buffer without back pressure


@k.traced
def stream(bases, rounds, ack):
    """CTA 0 sends `rounds` values through two slots; CTA 1 sums them. Without `ack` a slot may be overwritten early."""
    bid, tid = fx.Int32(fx.block_idx.x), fx.Int32(fx.thread_idx.x)
    slots, out = k.resource(bases[0]), k.resource(bases[1])
    total = fx.Int32(0)
    for i in range(rounds):
        tag = i + 1
        place = (i & 1) * 8
        begin = k.clock()
        now = begin
        if bid == 0:
            if const_expr(ack):
                done = k.load(slots, 64, fx.Int32, k.SYSTEM)
                while (done < i - 1) & (now - begin < handoffs.BOUND):
                    done = k.load(slots, 64, fx.Int32, k.SYSTEM)
                    now = k.clock()
            if tid == 0:
                k.store(slots, place, k.words(tag * 11, tag), k.SYSTEM)
        else:
            v = k.load(slots, place, fx.Int32x2, k.SYSTEM)
            while (v[1] != tag) & (now - begin < handoffs.BOUND):
                v = k.load(slots, place, fx.Int32x2, k.SYSTEM)
                now = k.clock()
            total = total + v[0]
            if tid == 0:
                k.store(slots, 64, tag, k.SYSTEM)
    if bid == 1:
        k.store(out, tid * 4, total)


@pytest.mark.parametrize("ack", [True, False])
def test_a_double_buffer_needs_back_pressure(ack: bool) -> None:
    lowered = k.program(lambda bases, n: stream(bases, n, ack), ctas=2)
    wrong = 0
    for seed in range(8):
        memory = ex.Memory()
        slots = memory.array(0, "slots", np.zeros(32, np.int32))
        out = memory.array(0, "out", np.zeros(64, np.int32))
        ex.run(k.launch(lowered, [slots, out], 6), memory=memory, schedule=ex.Schedule.random(seed))
        wrong += not (out.array == 11 * 21).all()
    assert wrong == 0 if ack else wrong > 0


# ---- scopes, fences, atomics through the public API


@k.traced
def fenced(bases, n, release, acquire):
    tid, bid = fx.Int32(fx.thread_idx.x), fx.Int32(fx.block_idx.x)
    data, out, flag = (k.pointer(fx.Int32, each) for each in bases)
    order, agent = fx.AtomicOrdering, fx.rocdl.SyncScope.Agent
    fx.atomic_add(flag + 1, fx.Int32(1), syncscope=agent)
    if bid == 0:
        data[tid] = tid * 3 + n
        if const_expr(release):
            fx.memory_fence(ordering=order.Release, syncscope=agent)
        fx.gpu.barrier()
        if tid == 0:
            fx.generic_store(flag, n, memory_order=order.Monotonic, syncscope=agent)
    else:
        out[tid] = data[tid]
        seen = fx.generic_load(flag, memory_order=order.Monotonic, syncscope=agent)
        while seen != n:
            seen = fx.generic_load(flag, memory_order=order.Monotonic, syncscope=agent)
        if const_expr(acquire):
            fx.memory_fence(ordering=order.Acquire, syncscope=agent)
        out[tid] = data[tid]


@pytest.mark.parametrize(("release", "acquire"), [(True, True), (False, True), (True, False)])
def test_fences_write_back_and_invalidate(release: bool, acquire: bool) -> None:
    lowered = k.program(lambda bases, n: fenced(bases, n, release, acquire), ctas=2, threads=128, bases=3)
    right = 0
    for seed in range(6):
        memory = ex.Memory()
        data, out = (memory.array(0, name, np.zeros(128, np.int32)) for name in ("data", "out"))
        flag = memory.array(0, "flag", np.zeros(4, np.int32))
        schedule = ex.Schedule.random(seed)
        ex.run(k.launch(lowered, [data, out, flag], 9), memory=memory, schedule=schedule, model=NO_RACES)
        assert flag.array[1] == 256
        right += bool((out.array == np.arange(128) * 3 + 9).all())
    assert right == 6 if release and acquire else right < 6


def test_uncached_memory_bypasses_the_caches() -> None:
    lowered = handoffs.program(Handoff(writer=k.PLAIN, reader=k.PLAIN, flag=k.PLAIN))
    for seed in range(6):
        memory = ex.Memory()
        data = memory.array(0, "data", np.full((128, 4), -1, np.int32), uncached=True)
        out = memory.array(0, "out", np.zeros((65536 // 16 + 128, 4), np.int32))
        flag = memory.array(0, "flag", np.zeros(16, np.int32), uncached=True)
        ex.run(k.launch(lowered, [data, out, flag]), memory=memory, schedule=ex.Schedule.random(seed), model=NO_RACES)
        np.testing.assert_array_equal(out.array[:128], handoffs.expected())


def test_switches_are_named() -> None:
    assert replace(ex.MemoryModel.harsh(), torn=False) == ex.MemoryModel.harsh().without("torn")
    for wrong in (ex.MemoryModel.harsh().without, ex.MemoryModel.harsh().only):
        with pytest.raises(ex.BadLaunch, match="switch: found 'thunder', wanted one of delayed_stores, torn"):
            wrong("thunder")


# ---- what a wave may rely on about its own accesses


@k.traced
def same_words(bases, n):
    """Store, read back, overwrite without a wait: program order holds for one wave and one word."""
    t = fx.Int32(fx.thread_idx.x)
    data, out = k.resource(bases[0]), k.resource(bases[1])
    before = k.load(data, t * 4, fx.Int32, k.SYSTEM)
    k.store(data, t * 4, t + 1, k.SYSTEM)
    first = k.load(data, t * 4, fx.Int32, k.SYSTEM)
    k.store(data, t * 4, t + 2, k.SYSTEM)
    k.store(data, t * 4, t + 3, k.SYSTEM)
    k.store(out, t * 8, k.words(before, first), k.SYSTEM)


def test_a_wave_sees_its_own_accesses_in_program_order() -> None:
    lowered = k.program(same_words, bases=2)
    for seed in range(SEEDS):
        memory = ex.Memory()
        data = memory.array(0, "data", np.full(64, -7, np.int32))
        out = memory.array(0, "out", np.zeros((64, 2), np.int32))
        ex.run(k.launch(lowered, [data, out]), memory=memory, schedule=ex.Schedule.random(seed))
        np.testing.assert_array_equal(data.array, np.arange(64) + 3)
        np.testing.assert_array_equal(out.array, np.stack([np.full(64, -7), np.arange(64) + 1], 1))


@k.traced
def ack_before_use(bases, n):
    """CTA 0 reads a word, says so without waiting for the load, and uses it later; CTA 1 overwrites it then."""
    t, bid = fx.Int32(fx.thread_idx.x), fx.Int32(fx.block_idx.x)
    data, flag, out = (k.resource(each) for each in bases)
    if bid == 0:
        x = k.load(data, t * 4, fx.Int32, k.SYSTEM)
        if const_expr(n):
            k.drain()
        if t == 0:
            k.store(flag, 0, 1, k.SYSTEM)
        spin = k.load(flag, 64, fx.Int32, k.SYSTEM)
        begin = k.clock()
        now = begin
        while (spin == 0) & (now - begin < 10_000):
            spin = k.load(flag, 64, fx.Int32, k.SYSTEM)
            now = k.clock()
        k.store(out, t * 4, x)
    else:
        k.wait_for(flag)
        k.store(data, t * 4, -1, k.SYSTEM)


@pytest.mark.parametrize("waited", [True, False])
def test_a_load_may_complete_as_late_as_its_first_use(waited: bool) -> None:
    """Also in another block than the load's: the compiler waits at the use, not at the branch."""
    lowered = k.program(lambda bases, n: ack_before_use(bases, waited), ctas=2, bases=3)
    wrong = 0
    for seed in range(SEEDS):
        memory = ex.Memory()
        data = memory.array(0, "data", np.arange(64, dtype=np.int32))
        flag = memory.array(0, "flag", np.zeros(32, np.int32))
        out = memory.array(0, "out", np.zeros(64, np.int32))
        ex.run(k.launch(lowered, [data, flag, out]), memory=memory, schedule=ex.Schedule.random(seed))
        wrong += not (out.array == np.arange(64)).all()
    assert wrong == 0 if waited else wrong > 0
