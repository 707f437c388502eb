"""What the fast engine refuses, and what it reports with line, rank, CTA, wave and lanes."""

from collections.abc import Callable
from typing import Any

import flydsl.expr as fx
import kernel_words as k
import numpy as np
import pytest
from flydsl._mlir.dialects import llvm
from flydsl.expr import rocdl

import monodraft.executor as ex
from monodraft.executor.fast import prepare
from monodraft.executor.schedule import Schedule

pytestmark = pytest.mark.executed
LIMITS = ex.Limits(wave_ops=200_000)


def run(body: Callable[..., None], words: int = 256, *, ctas: int = 1, threads: int = 128, **options: Any) -> ex.Report:
    """Run `body(bases, n)` over one array of int32 on the fast engine."""
    memory = ex.Memory()
    data = memory.array(0, "data", np.zeros(words, np.int32))
    lowered = k.program(k.traced(body), ctas=ctas, threads=threads, bases=1)
    return ex.run(k.launch(lowered, [data], 5), memory=memory, engine="fast", limits=LIMITS, **options)


def test_out_of_bounds_names_line_wave_and_lanes() -> None:
    def body(bases: list[Any], n: Any) -> None:
        t = fx.Int32(fx.thread_idx.x)
        k.store(k.resource(bases[0]), t * 4, t)

    with pytest.raises(ex.OutOfBounds, match=r"store of 4 bytes .* past the end of data") as caught:
        run(body, 100)
    where = caught.value.where
    assert (where.rank, where.cta, where.wave, where.lanes) == (0, 0, 1, tuple(range(36, 64)))
    assert "test_fast_findings.py" in where.line


def test_misaligned() -> None:
    def body(bases: list[Any], n: Any) -> None:
        t = fx.Int32(fx.thread_idx.x)
        k.store(k.resource(bases[0]), t * 4 + (t == 9).to(fx.Int32), t)

    with pytest.raises(ex.OutOfBounds, match="misaligned store of 4 bytes") as caught:
        run(body)
    assert caught.value.where.lanes == (9,)


def test_lanes_past_a_buffer_read_zero_and_are_not_stored() -> None:
    def body(bases: list[Any], n: Any) -> None:
        t = fx.Int32(fx.thread_idx.x)
        small = k.resource(bases[0], 40)  # ten words: lanes 0 and 1 whole, lane 2 half
        v = k.load(small, t * 16, fx.Int32x4)
        for i in range(4):
            k.store(k.resource(bases[0]), 1024 + t * 16 + i * 4, v[i])
        k.store(small, t * 16, k.words(t + 100, t + 100, t + 100, t + 100))

    for engine in ("reference", "fast"):
        memory = ex.Memory()
        data = memory.array(0, "data", np.arange(1, 513, dtype=np.int32))
        lowered = k.program(k.traced(body), bases=1)
        ex.run(k.launch(lowered, [data]), memory=memory, engine=engine)  # type: ignore[arg-type]
        seen = data.array[256:].reshape(64, 4)
        np.testing.assert_array_equal(seen.reshape(-1)[:12], [*range(1, 11), 0, 0])
        assert not seen[3:].any()
        np.testing.assert_array_equal(data.array[:12], [100] * 4 + [101] * 4 + [102] * 2 + [11, 12])


def test_barrier_that_half_a_wave_misses() -> None:
    def body(bases: list[Any], n: Any) -> None:
        if fx.Int32(fx.thread_idx.x) % 2 == 0:
            fx.gpu.barrier()
        k.store(k.resource(bases[0]), 0, n)

    with pytest.raises(ex.BarrierMismatch, match="these lanes of the wave") as caught:
        run(body)
    assert caught.value.where.lanes == tuple(range(1, 64, 2))


def test_barrier_that_a_wave_misses() -> None:
    def body(bases: list[Any], n: Any) -> None:
        if fx.Int32(rocdl.readfirstlane(fx.Int32.ir_type, fx.thread_idx.x)) < 64:
            fx.gpu.barrier()
        k.store(k.resource(bases[0]), 0, n)

    with pytest.raises(ex.BarrierMismatch, match="1 of 2 wait, ended: wave 1 after 0 barriers") as caught:
        run(body)
    assert caught.value.where.lanes == tuple(range(64))


def test_unbounded_poll_is_a_deadlock_and_a_bounded_one_expires() -> None:
    def unbounded(bases: list[Any], n: Any) -> None:
        seen = k.load(k.resource(bases[0]), 0, fx.Int32, k.SYSTEM)
        while seen != 1:
            seen = k.load(k.resource(bases[0]), 0, fx.Int32, k.SYSTEM)
            rocdl.s_sleep(1)

    def bounded(bases: list[Any], n: Any) -> None:
        seen = k.load(k.resource(bases[0]), 0, fx.Int32, k.SYSTEM)
        start = k.clock()
        now = start
        while (seen != 1) & (now - start < 50_000_000):
            seen = k.load(k.resource(bases[0]), 0, fx.Int32, k.SYSTEM)
            now = k.clock()

    for schedule in (ex.Schedule.round_robin(), ex.Schedule.random(3)):
        with pytest.raises(ex.Deadlock, match="2 waves poll memory that nobody will write") as caught:
            run(unbounded, schedule=schedule)
        assert caught.value.seed == schedule.seed
        report = run(bounded, schedule=schedule)
        assert 50_000_000 <= report.ticks < 60_000_000


def test_endless_work_is_a_livelock() -> None:
    def body(bases: list[Any], n: Any) -> None:
        i = fx.Int32(0)
        while i < n:
            k.store(k.resource(bases[0]), 0, i)
            i = i - 0

    with pytest.raises(ex.Livelock, match="more than 200000 operations"):
        run(body)


def test_refusals_name_what_to_use_instead() -> None:
    def body(bases: list[Any], n: Any) -> None:
        k.store(k.resource(bases[0]), 0, n)

    with pytest.raises(ex.BadLaunch, match=r"(?s)no race detector.*engine='reference'"):
        run(body, model=ex.MemoryModel.harsh())
    with pytest.raises(ex.BadLaunch, match=r"(?s)records no decisions.*engine='reference'"):
        run(body, schedule=Schedule.replay([1, 2, 3]))
    with pytest.raises(ex.BadLaunch, match="delay: found 'dat', wanted 'store' or a region: data"):
        run(body, schedule=ex.Schedule.adversarial(1, delay="dat"))
    assert run(body).engine == "fast"  # without a model it is the harsh one without its races


def test_unknown_operations_are_refused_before_anything_runs() -> None:
    def body(bases: list[Any], n: Any) -> None:
        k.store(k.resource(bases[0]), 0, n)
        k.intrinsic(None, "llvm.amdgcn.s.sethalt", fx.Int32(1))

    memory = ex.Memory()
    data = memory.array(0, "data", np.zeros(64, np.int32))
    lowered = k.program(k.traced(body), bases=1)
    with pytest.raises(ex.UnknownOperation, match=r"llvm\.amdgcn\.s\.sethalt") as caught:
        ex.run(k.launch(lowered, [data], 5), memory=memory, engine="fast")
    assert "test_fast_findings.py" in str(caught.value)
    assert not data.array.any()


def test_both_engines_know_the_same_operations() -> None:
    from monodraft.executor.fast.layout import CONSTANTS, TERMINATORS
    from monodraft.executor.fast.translate import HANDLERS
    from monodraft.executor.operations import KNOWN

    assert set(HANDLERS) == set(KNOWN) - CONSTANTS - TERMINATORS


def test_every_unknown_form_is_named_with_its_line() -> None:
    def body(bases: list[Any], n: Any) -> None:
        kind = fx.Int32.ir_type
        x = fx.Int32(llvm.inline_asm(kind, [n.ir_value()], "v_first $0, $1", "=v,v", has_side_effects=False))
        y = fx.Int32(llvm.inline_asm(kind, [x.ir_value()], "v_second $0, $1", "=v,v", has_side_effects=False))
        k.store(k.resource(bases[0]), 0, x + y)

    with pytest.raises(ex.UnknownOperation, match=r"(?s)v_first.*v_second") as caught:
        run(body)
    assert len(caught.value.places) == 2
    assert "test_fast_findings.py" in caught.value.where.line


def test_a_grid_that_is_not_resident_waits_its_turn() -> None:
    def body(bases: list[Any], n: Any) -> None:
        t, bid = fx.Int32(fx.thread_idx.x), fx.Int32(fx.block_idx.x)
        k.store(k.resource(bases[0]), (bid * 128 + t) * 4, bid * 1000 + t)

    memory = ex.Memory()
    data = memory.array(0, "data", np.zeros(40 * 128, np.int32))
    lowered = k.program(k.traced(body), ctas=40, threads=128, bases=1)
    gpu = ex.Gpu.mi355x(cus=1)
    launch = k.launch(lowered, [data], 5)
    with pytest.raises(ex.NotResident):
        prepare(launch, memory=memory, gpu=gpu)
    report = prepare(launch, memory=memory, gpu=gpu, not_resident="wait").run(ex.Schedule.random(1))
    assert report.resident == 16
    np.testing.assert_array_equal(data.array.reshape(40, 128), np.arange(40)[:, None] * 1000 + np.arange(128))


def test_counts_equal_the_reference_engines() -> None:
    def body(bases: list[Any], n: Any) -> None:
        t = fx.Int32(fx.thread_idx.x)
        x = k.load(k.resource(bases[0]), t * 4, fx.Int32, k.DEVICE)
        for i in range(n):
            x = x + i
        fx.gpu.barrier()
        k.store(k.resource(bases[0]), t * 4, x, k.SYSTEM)

    reports = []
    for engine in ("reference", "fast"):
        memory = ex.Memory()
        data = memory.array(0, "data", np.zeros(128, np.int32))
        lowered = k.program(k.traced(body), threads=128, bases=1)
        reports.append(ex.run(k.launch(lowered, [data], 5), memory=memory, engine=engine))  # type: ignore[arg-type]
    assert reports[0].instructions == reports[1].instructions
    assert reports[0].bytes == reports[1].bytes
