"""Lowering, arguments, grids, and what is refused before anything runs."""

from __future__ import annotations

from typing import Any

import handoffs
import kernel_words as k
import launchers
import numpy as np
import pytest
import torch

import monodraft.executor as ex

pytestmark = pytest.mark.executed


def test_numpy_arguments_are_placed_and_written_back() -> None:
    a, b = np.arange(600, dtype=np.float32), np.zeros(600, np.float32)
    ex.run(ex.Launch(launchers.scale, (a, b, 600, 2.5, 3)))
    np.testing.assert_array_equal(b, a * np.float32(2.5) + 3)


def test_torch_arguments_regions_and_names() -> None:
    a, b = torch.arange(600, dtype=torch.float32), torch.zeros(600)
    ex.run(ex.Launch(launchers.scale, {"a": a, "b": b, "n": 512, "factor": 2.0, "offset": 0}))
    assert torch.equal(b[:512], a[:512] * 2)
    assert not b[512:].any()
    memory = ex.Memory(ranks=2)
    x = memory.array(1, "x", np.arange(256, dtype=np.float32))
    y = memory.array(1, "y", np.zeros(256, np.float32))
    lowered = ex.lower(launchers.scale, x, y, 256, 1.0, 7)
    ex.run(ex.Launch(lowered, (x, y, 256, 3.0), rank=1), memory=memory)
    np.testing.assert_array_equal(y.array, x.array * 3 + 7)
    # The constant may stay in the call: it was baked in.
    ex.run(ex.Launch(lowered, (x, y, 256, 4.0, 7), rank=1), memory=memory)
    np.testing.assert_array_equal(y.array, x.array * 4 + 7)


@pytest.mark.parametrize("schedule", [ex.Schedule.round_robin(), ex.Schedule.random(3)], ids=["round_robin", "random"])
@pytest.mark.parametrize("engine", ["reference", "fast"])
def test_loads_are_counted_by_byte_and_instruction(engine: str, schedule: ex.Schedule) -> None:
    """A byte counts once a load of a wave, however many of its lanes take it; regions that do not count stay as is."""
    memory = ex.Memory()
    x = memory.array(0, "x", np.ones(128, np.float32))
    y = memory.array(0, "y", np.zeros(64, np.float32))
    x.count_loads()
    assert x.loads is not None
    wanted = np.zeros(128, np.uint32)
    wanted[0], wanted[8:24], wanted[40:104] = 1, 1, 3
    for runs in (1, 2):
        ex.run(ex.Launch(launchers.shared_reads, (x, y, 3)), memory=memory, engine=engine, schedule=schedule)
        np.testing.assert_array_equal(y.array, np.full(64, 5, np.float32))
        np.testing.assert_array_equal(x.loads, np.repeat(runs * wanted, 4))
    assert y.loads is None


def test_grid_and_block_in_three_dimensions() -> None:
    memory = ex.Memory()
    out = memory.array(0, "out", np.zeros(3 * 2 * 4 * 128, np.int32))
    ex.run(ex.Launch(launchers.identity, (out, 3, 2, 4)), memory=memory)
    np.testing.assert_array_equal(out.array, np.arange(out.array.size))


def test_a_wave_that_is_not_full() -> None:
    memory = ex.Memory()
    out = memory.array(0, "out", np.zeros(300, np.int32))
    for schedule in (ex.Schedule.round_robin(), ex.Schedule.random(1)):
        out.array[:] = 0
        ex.run(ex.Launch(launchers.tail, (out,)), memory=memory, schedule=schedule)
        np.testing.assert_array_equal(out.array, np.arange(1, 301))


def test_a_dump_runs_like_the_traced_module() -> None:
    lowered = handoffs.program(handoffs.Handoff())
    again = ex.read_mlir(lowered.text)
    assert again.count() == lowered.count()
    assert handoffs.run(again, ex.Schedule.random(2))[0]


def test_a_dump_takes_tensors_as_addresses_sizes_and_strides() -> None:
    a, b = np.arange(600, dtype=np.float32), np.zeros(600, np.float32)
    again = ex.read_mlir(ex.lower(launchers.scale, a, b, 600, 1.0, 3).text)
    memory = ex.Memory()
    x, y = memory.array(0, "x", a), memory.array(0, "y", b)
    ex.run(ex.Launch(again, (x, 600, y, [600], 600, 2.0)), memory=memory)
    np.testing.assert_array_equal(y.array, a * 2 + 3)
    with pytest.raises(ex.BadLaunch, match=r"argument arg1: .* wanted 1 numbers"):
        ex.run(ex.Launch(again, (x, (600, 1), y, [600], 600, 2.0)), memory=memory)


def test_lowering_by_flydsl_dump() -> None:
    """The way for versions of FlyDSL whose internals differ: documented variables only."""
    from monodraft.executor.lower import bind, environment, lower_by_dump

    with environment():
        bound = bind(launchers.identity, (), {})
        lowered = lower_by_dump(launchers.identity, *bound.args, **bound.kwargs)
    memory = ex.Memory()
    out = memory.array(0, "out", np.zeros(128, np.int32))
    names = [parameter.name for parameter in lowered.parameters]
    ex.run(ex.Launch(lowered, dict(zip(names, [out.address, 1, 1, 1], strict=True))), memory=memory)
    np.testing.assert_array_equal(out.array, np.arange(128))
    assert "launchers.py" in str(lowered.kernel.places[-1])


def test_source_places_name_helper_and_kernel() -> None:
    lowered = handoffs.program(handoffs.Handoff())
    stores = [op for block in lowered.kernel.blocks for op in block.ops if "buffer.store" in op.name]
    line = lowered.kernel.line(stores[0])
    assert line.startswith("kernel_words.py:")
    assert "called from handoffs.py:" in line


def test_unknown_operations_are_all_named_before_anything_runs() -> None:
    memory = ex.Memory()
    out = memory.array(0, "out", np.zeros(128, np.int32))
    with pytest.raises(ex.UnknownOperation, match="cubesc") as caught:
        ex.run(ex.Launch(launchers.unknown, (out,)), memory=memory)
    assert "launchers.py" in str(caught.value)
    assert not out.array.any()


REFUSED: dict[str, tuple[Any, str]] = {
    "missing": (lambda a, b: (a, b, 600), "argument factor: found nothing, wanted f32"),
    "too many": (lambda a, b: (a, b, 600, 1.0, 3, 4, 5), "arguments: found 7, wanted at most 4"),
    "wrong dtype": (lambda a, b: (a, b.astype(np.float64), 600, 1.0, 3), "argument b: found float64 array"),
    "wrong rank": (lambda a, b: (a, b.reshape(2, 300), 600, 1.0, 3), "argument b: .* wanted 1 dimensions"),
    "not an array": (lambda a, b: (a, 5, 600, 1.0, 3), "argument b: found 5, wanted a region"),
    "a float for an integer": (lambda a, b: (a, b, 1.5, 1.0, 3), "argument n: found 1.5, wanted an integer of 32 bits"),
    "too large": (lambda a, b: (a, b, 1 << 32, 1.0, 3), "argument n: found 4294967296, wanted an integer of 32 bits"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_arguments_are_refused_by_name(case: str) -> None:
    a, b = np.zeros(600, np.float32), np.zeros(600, np.float32)
    lowered = ex.lower(launchers.scale, a, b, 600, 1.0, 3)
    make, message = REFUSED[case]
    before = b.copy()
    with pytest.raises(ex.BadLaunch, match=message):
        ex.run(ex.Launch(lowered, make(a, b)))
    np.testing.assert_array_equal(b, before)


def test_arrays_and_tensors_stand_for_addresses() -> None:
    for array in (np.zeros(128, np.int32), torch.zeros(128, dtype=torch.int32)):
        ex.run(ex.Launch(launchers.identity, (array, 1, 1, 1)))
        np.testing.assert_array_equal(array, np.arange(128))


@pytest.mark.parametrize("value", [None, "out"])
def test_what_is_no_number_is_refused_before_tracing(value: Any) -> None:
    with pytest.raises(ex.BadLaunch, match=rf"argument out: found {value!r}, wanted Int64: a number, or a region"):
        ex.run(ex.Launch(launchers.identity, (value, 1, 1, 1)))


def test_an_address_needs_64_bits() -> None:
    memory = ex.Memory()
    out = memory.array(0, "out", np.zeros(8, np.int32))
    lowered = k.program(lambda bases, n: None, bases=1)
    with pytest.raises(ex.BadLaunch, match=r"argument n: .* wanted i32 \(an address needs 64 bits\)"):
        ex.run(ex.Launch(lowered, (out, 0, 0, 0, out)), memory=memory)


def test_a_misaligned_tensor_is_refused() -> None:
    memory = ex.Memory()
    a = memory.array(0, "a", np.zeros(64, np.float32))
    b = memory.array(0, "b", np.zeros(64, np.float32), address=4098)
    lowered = ex.lower(launchers.scale, a, a, 64, 1.0, 3)
    with pytest.raises(ex.BadLaunch, match=r"argument b: found float32 .* a multiple of 4, not 0x7f0000001002"):
        ex.run(ex.Launch(lowered, (a, b, 64, 1.0)), memory=memory)


def test_an_array_too_small_for_its_grid_is_found() -> None:
    memory = ex.Memory()
    out = memory.array(0, "out", np.zeros(100, np.int32))
    with pytest.raises(ex.OutOfBounds, match="0 bytes past the end of out") as caught:
        ex.run(ex.Launch(launchers.identity, (out, 1, 1, 1)), memory=memory)
    assert caught.value.where.lanes[0] == 100 - 64


def test_grids_blocks_ranks_and_kernels_that_cannot_be() -> None:
    memory = ex.Memory()
    out = memory.array(0, "out", np.zeros(128, np.int32))
    with pytest.raises(ex.BadLaunch, match=r"grid: found \(0, 1, 1\)"):
        ex.run(ex.Launch(launchers.identity, (out, 0, 1, 1)), memory=memory)
    with pytest.raises(ex.BadLaunch, match=r"block: .*wanted \(8, 16, 1\), which the kernel was compiled for"):
        ex.run(ex.Launch(launchers.identity, (out, 1, 1, 1), block=(16, 16, 1)), memory=memory)
    with pytest.raises(ex.BadLaunch, match="rank: found 1, wanted 0 to 0"):
        ex.run(ex.Launch(launchers.identity, (out, 1, 1, 1), rank=1), memory=memory)
    with pytest.raises(ex.BadLaunch, match="exactly one kernel"):
        ex.run(ex.Launch(launchers.twice, (out,)), memory=memory)
    with pytest.raises(ex.BadLaunch, match=r"@flyc\.jit"):
        ex.run(ex.Launch(print, (out,)), memory=memory)
    with pytest.raises(ex.BadLaunch, match="launches: found none"):
        ex.run([], memory=memory)
    with pytest.raises(ex.BadLaunch, match="engine: found 'slow'"):
        ex.run(ex.Launch(launchers.identity, (out, 1, 1, 1)), memory=memory, engine="slow")  # type: ignore[arg-type]


OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "not_resident": ({"not_resident": "maybe"}, "not_resident: found 'maybe', wanted 'refuse' or 'wait'"),
    "schedule": ({"schedule": 7}, "schedule: found 7, wanted a Schedule"),
    "model": ({"model": "harsh"}, "model: found 'harsh', wanted a MemoryModel"),
    "region": (
        {"schedule": ex.Schedule.adversarial(1, delay="in")},
        "delay: found 'in', wanted 'store' or a region: out",
    ),
    "rank": (
        {"schedule": ex.Schedule.adversarial(1, starve=ex.Pick(rank=2))},
        r"starve: found Pick\(rank=2.* wanted a wave that is launched \(rank 0: 1 CTAs of 2 waves\)",
    ),
    "wave": ({"schedule": ex.Schedule.adversarial(1, starve=ex.Pick(wave=2))}, "starve: found Pick"),
}


@pytest.mark.parametrize("engine", ["reference", "fast"])
@pytest.mark.parametrize("case", OPTIONS)
def test_options_that_would_do_nothing_are_refused_by_name(case: str, engine: Any) -> None:
    memory = ex.Memory()
    out = memory.array(0, "out", np.zeros(128, np.int32))
    options, message = OPTIONS[case]
    with pytest.raises(ex.BadLaunch, match=message):
        ex.run(ex.Launch(launchers.identity, (out, 1, 1, 1)), memory=memory, engine=engine, **options)
    assert not out.array.any()


def test_memory_refuses_what_it_cannot_place() -> None:
    memory = ex.Memory(ranks=1, capacity=1 << 20)
    memory.array(0, "a", np.zeros(16, np.int32), address=4096)
    refusals = [
        ({"rank": 1, "name": "b", "values": np.zeros(4)}, "rank: found 1, wanted 0 to 0"),
        ({"rank": 0, "name": "a", "values": np.zeros(4)}, "name: used already|found used already"),
        ({"rank": 0, "name": "b", "values": np.zeros(4), "align": 3}, "align: found 3, wanted a power of two"),
        ({"rank": 0, "name": "b", "values": np.zeros(0)}, "values: found float64 of 0 bytes"),
        (
            {"rank": 0, "name": "b", "values": np.zeros(4), "address": 4100},
            "address: found 0x1004, wanted 256 bytes away from <a",
        ),
        ({"rank": 0, "name": "b", "values": np.zeros(4), "address": 1 << 21}, "address: found 0x200000"),
        ({"rank": 0, "name": "b", "values": np.zeros(1 << 20)}, "out of memory"),
    ]
    for arguments, message in refusals:
        with pytest.raises(ex.BadLaunch, match=message):
            memory.array(**arguments)
    with pytest.raises(ex.BadLaunch, match="ranks: found 0"):
        ex.Memory(ranks=0)
    aligned = memory.array(0, "c", np.zeros(3, np.uint8), align=4096)
    assert aligned.address % 4096 == 0


def test_gpu_limits_and_schedule_refuse_nonsense() -> None:
    with pytest.raises(ex.BadLaunch, match="jump: found 0, wanted at least 1"):
        ex.Limits(jump=0)
    with pytest.raises(ex.BadLaunch, match="cus: found 12, wanted a multiple of xcds = 8"):
        ex.Gpu(cus=12)
    with pytest.raises(ex.BadLaunch, match="seed: found -1"):
        ex.Schedule.random(-1)
    with pytest.raises(ex.BadLaunch, match="starve: found 'everyone'"):
        ex.Schedule.adversarial(1, starve="everyone")  # type: ignore[arg-type]
