"""Every finding: raised where it should be, with line, rank, CTA, wave, lanes and seed, and only there."""

from __future__ import annotations

from typing import Any

import flydsl.expr as fx
import handoffs
import kernel_words as k
import numpy as np
import pytest
from handoffs import Handoff
from kernel_words import run
from shared_words import Shared

import monodraft.executor as ex

pytestmark = pytest.mark.executed


def line_of(error: ex.ExecutorError) -> str:
    """Where the first place is, as file:line."""
    return error.where.line.split()[0]


# ---- bounds


def past_the_end(bases, n):
    t = fx.Int32(fx.thread_idx.x)
    k.pointer(fx.Int32, bases[0])[t + n] = t


def test_out_of_bounds_names_region_line_and_lanes() -> None:
    run(past_the_end, np.zeros(64, np.int32))
    with pytest.raises(ex.OutOfBounds, match="0 bytes past the end of a") as caught:
        run(past_the_end, np.zeros(64, np.int32), n=2, schedule=ex.Schedule.random(5))
    error = caught.value
    assert error.where.lanes == (62, 63)
    assert (error.where.rank, error.where.cta, error.where.wave) == (0, 0, 0)
    assert error.seed == 5
    assert "seed 5" in str(error)
    assert "test_executor_detectors.py" in error.where.line
    assert "`k.pointer(fx.Int32, bases[0])[t + n] = t`" in error.where.line


def test_out_of_bounds_before_a_region_and_nowhere() -> None:
    with pytest.raises(ex.OutOfBounds, match=r"bytes before a"):
        run(past_the_end, np.zeros(64, np.int32), n=-2)
    with pytest.raises(ex.OutOfBounds, match="no region near"):
        run(past_the_end, n=0)


def buffer_edge(bases, n):
    t = fx.Int32(fx.thread_idx.x)
    source = k.resource(bases[0], 40)
    k.store(k.resource(bases[1]), t * 16, k.load(source, t * 8, fx.Int32x4))
    k.store(source, t * 4, t)


def test_buffer_bounds_read_zero_and_drop_stores_by_dword() -> None:
    a, b = np.arange(1, 65, dtype=np.int32), np.full(256, -1, np.int32)
    memory = ex.Memory()
    run(buffer_edge, a, b, memory=memory, model=ex.MemoryModel.harsh().without("races"))
    regions = {each.name: each.array for each in memory.regions}
    want = np.zeros((64, 4), np.int32)
    for lane in range(64):
        for word in range(4):
            want[lane, word] = a[2 * lane + word] if 8 * lane + 4 * word + 4 <= 40 else 0
    np.testing.assert_array_equal(regions["b"].reshape(64, 4), want)
    np.testing.assert_array_equal(regions["a"], np.concatenate([np.arange(10), a[10:]]))


def lds_overrun(bases, n):
    t = fx.Int32(fx.thread_idx.x)
    lds = fx.SharedAllocator().allocate(Shared).peek()
    lds.words[t + n] = t
    k.store(k.resource(bases[0]), t * 4, lds.words[t + n])


def test_out_of_bounds_in_lds() -> None:
    run(lds_overrun, np.zeros(64, np.int32), n=64)
    with pytest.raises(ex.OutOfBounds, match="LDS offset 512 of 512") as caught:
        run(lds_overrun, np.zeros(64, np.int32), n=65)
    assert caught.value.where.lanes == (63,)


def misaligned(bases, n):
    t = fx.Int32(fx.thread_idx.x)
    k.store(k.resource(bases[0]), t * 4 + n, t)


def test_misaligned_access() -> None:
    with pytest.raises(ex.OutOfBounds, match="misaligned store"):
        run(misaligned, np.zeros(65, np.int32), n=2)


def wide_offsets(bases, n):
    t = fx.Int32(fx.thread_idx.x)
    out = k.pointer(fx.Int32, bases[0])
    out[fx.Int64(t) + fx.Int64(n)] = t


@pytest.mark.parametrize("boundary", [2**31, 2**32])
def test_addresses_across_2_and_4_gib(boundary: int) -> None:
    """A region that straddles the boundary in its low 32 address bits, and an index past it in bytes."""
    memory = ex.Memory()
    region = memory.array(0, "a", np.zeros(64, np.int32), address=boundary - 128)
    lowered = k.program(k.traced(wide_offsets), bases=1)
    ex.run(k.launch(lowered, [region]), memory=memory)
    np.testing.assert_array_equal(region.array, np.arange(64))
    far = ex.Memory()
    low = far.array(0, "low", np.zeros(4, np.int32), address=256)
    high = far.array(0, "high", np.zeros(64, np.int32), address=256 + boundary)
    ex.run(k.launch(lowered, [low], boundary // 4), memory=far)
    np.testing.assert_array_equal(high.array, np.arange(64))


# ---- uninitialised


def copy(bases, n):
    t = fx.Int32(fx.thread_idx.x)
    a, b = (k.pointer(fx.Int32, each) for each in bases[:2])
    b[t] = a[t]


def test_uninitialised_read_and_its_switch() -> None:
    def launch(model: ex.MemoryModel, written: int) -> None:
        memory = ex.Memory()
        a = memory.array(0, "a", np.zeros(64, np.int32), initialised=False)
        b = memory.array(0, "b", np.zeros(64, np.int32), initialised=False)
        assert a.written is not None
        a.written[: 4 * written] = True
        ex.run(k.launch(k.program(copy), [a, b]), memory=memory, model=model)
        assert b.written is not None
        assert b.written.all()

    launch(ex.MemoryModel.harsh(), 64)
    with pytest.raises(ex.UninitialisedRead, match="byte 248 of a") as caught:
        launch(ex.MemoryModel.harsh(), 62)
    assert caught.value.where.lanes == (62, 63)
    launch(ex.MemoryModel.harsh().without("uninitialised"), 62)


def lds_before_writing(bases, n):
    t = fx.Int32(fx.thread_idx.x)
    lds = fx.SharedAllocator().allocate(Shared).peek()
    if t < n:
        lds.words[t] = t
    fx.gpu.barrier()
    k.store(k.resource(bases[0]), t * 4, lds.words[t])


def test_uninitialised_lds() -> None:
    run(lds_before_writing, np.zeros(64, np.int32), n=64)
    with pytest.raises(ex.UninitialisedRead, match="LDS") as caught:
        run(lds_before_writing, np.zeros(64, np.int32), n=60)
    assert caught.value.where.lanes == (60, 61, 62, 63)


# ---- barriers


def barrier_in_one_wave(bases, n):
    t = fx.Int32(fx.thread_idx.x)
    wave = fx.Int32(fx.rocdl.readfirstlane(fx.Int32.ir_type, t // 64))
    if wave == 0:
        fx.gpu.barrier()
    k.store(k.resource(bases[0]), t * 4, t)


def barrier_in_half_a_wave(bases, n):
    t = fx.Int32(fx.thread_idx.x)
    if t < n:
        fx.gpu.barrier()
    k.store(k.resource(bases[0]), t * 4, t)


def test_barrier_not_reached_by_all_waves() -> None:
    with pytest.raises(ex.BarrierMismatch, match="1 of 2 wait") as caught:
        run(barrier_in_one_wave, np.zeros(128, np.int32), threads=128)
    assert caught.value.where.wave == 0


def test_barrier_not_reached_by_all_lanes() -> None:
    run(barrier_in_half_a_wave, np.zeros(64, np.int32), n=64)
    with pytest.raises(ex.BarrierMismatch) as caught:
        run(barrier_in_half_a_wave, np.zeros(64, np.int32), n=40)
    assert caught.value.where.lanes == tuple(range(40, 64))


# ---- no end


def wait_for_ever(bases, n):
    t = fx.Int32(fx.thread_idx.x)
    flag = k.resource(bases[0])
    seen = k.load(flag, 0, fx.Int32, k.SYSTEM)
    while seen != n:
        k.intrinsic(None, "llvm.amdgcn.s.sleep", fx.Int32(1))
        seen = k.load(flag, 0, fx.Int32, k.SYSTEM)
    k.store(k.resource(bases[1]), t * 4, t)


@pytest.mark.parametrize("schedule", [ex.Schedule.round_robin(), ex.Schedule.random(4)], ids=["round robin", "random"])
def test_deadlock_is_told_with_the_polling_line(schedule: ex.Schedule) -> None:
    with pytest.raises(ex.Deadlock, match="2 waves poll memory that nobody will write") as caught:
        run(wait_for_ever, np.zeros(16, np.int32), np.zeros(128, np.int32), n=3, threads=128, schedule=schedule)
    assert "test_executor_detectors.py" in caught.value.where.line
    assert caught.value.seed == schedule.seed
    assert caught.value.where.lanes == tuple(range(64))


def poll_by_atomics(bases, n):
    t = fx.Int32(fx.thread_idx.x)
    flag = k.pointer(fx.Int32, bases[0])
    seen = fx.Int32(fx.atomic_or(flag, fx.Int32(0)))
    while seen != n:
        seen = fx.Int32(fx.atomic_or(flag, fx.Int32(0)))
    k.store(k.resource(bases[1]), t * 4, t)


def poll_lds_by_atomics(bases, n):
    t = fx.Int32(fx.thread_idx.x)
    lds = fx.SharedAllocator().allocate(Shared).peek()
    lds.words[t] = fx.Int32(0)
    fx.gpu.barrier()
    seen = fx.Int32(fx.atomic_or(lds.words.ptr, fx.Int32(0)))
    while seen != n:
        seen = fx.Int32(fx.atomic_or(lds.words.ptr, fx.Int32(0)))
    k.store(k.resource(bases[1]), t * 4, t)


@pytest.mark.parametrize("engine", ["reference", "fast"])
@pytest.mark.parametrize("body", [poll_by_atomics, poll_lds_by_atomics])
def test_a_poll_by_atomics_that_change_nothing_is_a_deadlock(body: Any, engine: str) -> None:
    limits = ex.Limits(wave_ops=20_000_000)
    with pytest.raises(ex.Deadlock, match="2 waves poll memory that nobody will write"):
        run(body, np.zeros(16, np.int32), np.zeros(128, np.int32), n=3, threads=128, engine=engine, limits=limits)


def odd_lanes_wait_for_ever(bases, n):
    t = fx.Int32(fx.thread_idx.x)
    if t % 2 == 1:
        k.traced(wait_for_ever)(bases, n)


def odd_lanes_count_for_ever(bases, n):
    t = fx.Int32(fx.thread_idx.x)
    if t % 2 == 1:
        k.traced(count_for_ever)(bases, n)


@pytest.mark.parametrize("engine", ["reference", "fast"])
def test_a_run_without_an_end_names_the_lanes_that_go_round(engine: str) -> None:
    buffers = [np.zeros(64, np.int32), np.zeros(64, np.int32)]
    for kernel, error in ((odd_lanes_wait_for_ever, ex.Deadlock), (odd_lanes_count_for_ever, ex.Livelock)):
        with pytest.raises(error, match="rank 0, cta 0, wave 0, lanes 1,3,5") as caught:
            run(kernel, *buffers, n=3, engine=engine, limits=ex.Limits(wave_ops=20_000))
        assert caught.value.where.lanes == tuple(range(1, 64, 2))


def test_a_plain_poll_on_a_held_line_is_a_deadlock() -> None:
    """Without the coherent bit the poll reads its own old line for ever."""
    lowered = handoffs.program(Handoff(flag=k.PLAIN, bounded=False))
    with pytest.raises((ex.Deadlock, ex.Race)):
        handoffs.run(lowered, ex.Schedule.random(1), ex.MemoryModel.harsh().without("races"))


def count_for_ever(bases, n):
    t = fx.Int32(fx.thread_idx.x)
    counter = k.pointer(fx.Int32, bases[0])
    i = fx.Int32(0)
    while i >= 0:
        i = fx.Int32(fx.atomic_add(counter, fx.Int32(1))) & 255
    counter[t] = i


def test_livelock_at_the_work_limit() -> None:
    with pytest.raises(ex.Livelock, match="more than 20000 operations"):
        run(count_for_ever, np.zeros(64, np.int32), limits=ex.Limits(wave_ops=20_000))


def bounded_by_the_far_future(bases, n):
    t = fx.Int32(fx.thread_idx.x)
    flag = k.resource(bases[0])
    seen = k.load(flag, 0, fx.Int32, k.SYSTEM)
    begin = k.clock()
    now = begin
    while (seen != n) & (now - begin < 2**40):
        seen = k.load(flag, 0, fx.Int32, k.SYSTEM)
        now = k.clock()
    k.store(k.resource(bases[1]), t * 4, t)


def test_livelock_when_only_the_clock_moves() -> None:
    with pytest.raises(ex.Livelock, match="only polls"):
        run(
            bounded_by_the_far_future,
            np.zeros(16, np.int32),
            np.zeros(64, np.int32),
            n=3,
            limits=ex.Limits(idle_ticks=10**8),
        )


# ---- residency


def all_meet(bases, n):
    """Every CTA counts itself in and waits for all `n`."""
    t = fx.Int32(fx.thread_idx.x)
    counter = k.pointer(fx.Int32, bases[0])
    if t == 0:
        fx.atomic_add(counter, fx.Int32(1))
    seen = fx.generic_load(counter, memory_order=fx.AtomicOrdering.Monotonic)
    while seen != n:
        seen = fx.generic_load(counter, memory_order=fx.AtomicOrdering.Monotonic)
    k.store(k.resource(bases[1]), (fx.Int32(fx.block_idx.x) * 64 + t) * 4, seen)


def meet(ctas: int, **options: Any) -> ex.Report:
    """On two compute units that hold one CTA of 16 waves each."""
    memory = ex.Memory()
    counter = memory.array(0, "counter", np.zeros(16, np.int32))
    out = memory.array(0, "out", np.zeros(ctas * 64 + 1024, np.int32))
    lowered = k.program(k.traced(all_meet), ctas=ctas, threads=64)
    gpu = ex.Gpu(cus=2, xcds=2, waves_per_cu=1)
    return ex.run(k.launch(lowered, [counter, out], ctas), memory=memory, gpu=gpu, **options)


def test_a_grid_that_does_not_fit_is_refused_or_hangs_visibly() -> None:
    assert meet(2).resident == 2
    with pytest.raises(ex.NotResident, match=r"3 CTAs of 1 waves.*at most 2 at once"):
        meet(3)
    with pytest.raises(ex.Deadlock, match="1 CTAs wait for room"):
        meet(3, not_resident="wait")


def test_ctas_start_as_others_end() -> None:
    def body(bases, n):
        k.store(k.resource(bases[0]), (fx.Int32(fx.block_idx.x) * 64 + fx.Int32(fx.thread_idx.x)) * 4, 1)

    memory = ex.Memory()
    out = memory.array(0, "out", np.zeros(640, np.int32))
    lowered = k.program(body, ctas=10, bases=1)
    gpu = ex.Gpu(cus=2, xcds=2, waves_per_cu=1)
    report = ex.run(k.launch(lowered, [out]), memory=memory, gpu=gpu, not_resident="wait")
    assert out.array.all()
    assert report.resident == 2


def big_lds(bases, n):
    lds = fx.SharedAllocator().allocate(Shared).peek()
    t = fx.Int32(fx.thread_idx.x)
    lds.words[t] = t
    k.store(k.resource(bases[0]), t * 4, lds.words[t])


def test_lds_limits_residency() -> None:
    memory = ex.Memory()
    out = memory.array(0, "out", np.zeros(64, np.int32))
    lowered = k.program(big_lds, ctas=3, bases=1)
    with pytest.raises(ex.NotResident, match="512 bytes of LDS"):
        ex.run(k.launch(lowered, [out]), memory=memory, gpu=ex.Gpu(cus=1, xcds=1, lds_per_cu=1100))
    with pytest.raises(ex.BadLaunch, match="LDS: found 512 bytes, wanted at most 256"):
        ex.run(k.launch(lowered, [out]), memory=memory, gpu=ex.Gpu(cus=1, xcds=1, lds_per_cu=256))
