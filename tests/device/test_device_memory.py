"""Loads and stores, executed: every width, bounds, bytes, addresses a lane."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("flydsl")

import flydsl.expr as fx
from device_harness import M3, SMALL, body_program, run, run_word

from monodraft.device import words as dw

pytestmark = pytest.mark.executed

RNG = np.random.default_rng(3)


def junk(count: int, dtype: Any = np.uint8) -> np.ndarray:
    return RNG.integers(0, np.iinfo(dtype).max, count, dtype, endpoint=True)


def test_ld8_zero_extends_every_byte() -> None:
    a = np.tile(np.arange(256, dtype=np.uint8), 2)
    found = run_word("ld8", a=a, b=np.full(512, -1, np.int32))
    np.testing.assert_array_equal(found["b"], a)


def test_ld_of_sixteen_bf16_arrives_in_order() -> None:
    a = junk(512 * 16, np.uint16)
    np.testing.assert_array_equal(run_word("ld", a=a, c=np.zeros_like(a))["c"], a)


WIDTHS = [("Int8", 1), ("Int8", 2), ("Int8", 4), ("Int8", 16), ("Int16", 1), ("Int16", 2), ("BFloat16", 1)]
WIDTHS += [("BFloat16", 8), ("BFloat16", 16), ("Int32", 1), ("Int32", 2), ("Int32", 4), ("Int32", 8), ("Int32", 16)]
WIDTHS += [("Float32", 1), ("Float32", 2), ("Float32", 4), ("Float32", 16), ("Uint32", 4), ("Uint8", 1)]


@pytest.mark.parametrize(("dtype", "n"), WIDTHS)
@pytest.mark.parametrize("cm", [0, dw.CM_DEV, dw.CM_SYS])
def test_ld_then_st_copies_every_width(dtype: str, n: int, cm: int) -> None:
    kind = getattr(fx, dtype)

    def copy(p: Any) -> None:
        dw.st(p.b, p.i * n, dw.ld(p.a, p.i * n, n, kind, cm=cm), cm=cm)

    nbytes = SMALL.threads * n * {"8": 1, "6": 2, "2": 4}[dtype[-1]]
    a = junk(nbytes)
    np.testing.assert_array_equal(run(body_program(copy, SMALL), a=a, b=np.zeros_like(a))["b"], a)


@pytest.mark.parametrize("nbytes", [8, 64, 4096 - 8, 4096])
def test_ldn_reads_zero_past_its_bytes(nbytes: int) -> None:
    a = RNG.standard_normal(1024).astype(np.float32)
    found = run_word("ldn", a=a, n=nbytes, b=np.full(1024, 7, np.float32))["b"]
    np.testing.assert_array_equal(found[: nbytes // 4], a[: nbytes // 4])
    assert not found[nbytes // 4 :].any()


def test_st_leaves_what_lies_past_its_bytes() -> None:
    def store(p: Any) -> None:
        dw.st(p.b, p.i, p.i, nbytes=40)

    found = run(body_program(store, SMALL), b=np.full(512, -1, np.int32))["b"]
    np.testing.assert_array_equal(found[:10], np.arange(10))
    assert (found[10:] == -1).all()


def test_st_of_a_pair_is_value_and_tag() -> None:
    a = junk(512, np.int32)
    found = run_word("st", a=a, b=np.zeros((512, 2), np.int32), tag=9)["b"]
    np.testing.assert_array_equal(found, np.stack([a, np.full(512, 9)], 1))


def test_gst32_lanes_go_to_their_own_addresses() -> None:
    """The addresses are only known once the memory is laid out: the test writes them into c first."""
    from device_harness import arguments, program

    import monodraft.executor as ex

    memory = ex.Memory(ranks=2)
    near = memory.array(0, "near", np.zeros(256, np.int32))
    far = memory.array(1, "far", np.zeros(256, np.int32))
    order = RNG.permutation(512)
    targets = np.where(order < 256, near.address + 4 * order, far.address + 4 * (order - 256)).astype(np.uint64)
    a = junk(512, np.int32)
    regions = {"a": memory.array(0, "a", a), "c": memory.array(0, "c", targets)}
    ex.run(ex.Launch(program("gst32", M3), arguments(memory, regions)), memory=memory, engine="reference")
    found = np.concatenate([near.array, far.array])
    np.testing.assert_array_equal(found[order], a)


@pytest.mark.parametrize("rounds", [0, 1, 5])
def test_opaque_changes_nothing(rounds: int) -> None:
    a = junk(512, np.int32) >> 8
    np.testing.assert_array_equal(run_word("opaque", a=a, n=rounds, b=np.zeros(512, np.int32))["b"], a * rounds)
