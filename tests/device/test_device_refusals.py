"""What a helper refuses while it is traced: argument, value and limit in the message, nothing compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("flydsl")

import flydsl.expr as fx
from device_compiled import M3, TINY

from monodraft.device import Geometry, probes
from monodraft.device import words as dw
from monodraft.device.flydsl_names import isa_text
from monodraft.errors import KernelError

pytestmark = pytest.mark.compile_only

Body = Callable[[probes.Arguments], Any]


def lanes(p: probes.Arguments) -> Any:
    """A base that differs between lanes."""
    return p.a + fx.Int64(p.tid)


def vector(n: int, kind: Any = fx.Float32) -> Any:
    return fx.Vector.filled(n, 0, kind)


CASES: list[tuple[str, Body, str, str, str]] = [
    ("ld", lambda p: dw.ld(lanes(p), 0), "base", "differs between lanes (from gpu.thread_id)", "wave-uniform"),
    ("ld", lambda p: dw.ld(p.n, 0), "base", "Int32", "Int64"),
    ("ld", lambda p: dw.ld(p.a, 0, 3), "n", "3 elements of 4 bytes", "1, 2, 4, 8 or a multiple of 16"),
    ("ld", lambda p: dw.ld(p.a, 0, 0), "n", "0 elements", "multiple of 16"),
    ("ld", lambda p: dw.ld(p.a, 0, dtype=fx.Float64), "dtype", "Float64", "one of Int8"),
    ("ld", lambda p: dw.ld(p.a, 0, cm=1), "cm", "1", "one of 0, 16, 17"),
    ("ld", lambda p: dw.ld(p.a + fx.Int64(dw.ld(p.b, 0)), 0), "base", "raw.ptr.buffer.load", "first_lane"),
    ("ldn", lambda p: dw.ldn(p.a, 24, 0, 4), "nbytes", "24", "a multiple of 16"),
    ("ldn", lambda p: dw.ldn(p.a, 2**32, 0, 4), "nbytes", str(2**32), str(2**31)),
    ("ld8", lambda p: dw.ld8(lanes(p), 0), "base", "gpu.thread_id", "wave-uniform"),
    ("st", lambda p: dw.st(lanes(p), 0, p.n), "base", "gpu.thread_id", "wave-uniform"),
    ("st", lambda p: dw.st(p.a, 0, vector(3)), "n", "12 elements of 1 bytes", "multiple of 16"),
    ("st", lambda p: dw.st(p.a, 0, fx.Int64(1)), "dtype", "Int64", "one of Int8"),
    ("gst32", lambda p: dw.gst32(p.n, p.n), "addr", "Int32", "Int64"),
    ("gst32", lambda p: dw.gst32(p.a, fx.Int64(1)), "v", "Int64", "Int32"),
    ("bf16_bits", lambda p: dw.bf16_bits(p.n), "x", "Int32", "Float32"),
    ("bfpair", lambda p: dw.bfpair(fx.Float32(0), p.n), "b", "Int32", "Float32"),
    ("exp", lambda p: dw.exp(p.n), "x", "Int32", "Float32"),
    ("hw_sqrt", lambda p: dw.hw_sqrt(p.n), "x", "Int32", "Float32"),
    ("mx_scale", lambda p: dw.mx_scale(p.n), "am", "Int32", "Float32"),
    ("poll_pairs", lambda p: dw.poll_pairs(p.a, p.i, 3, p.tag, p.bound, 1), "n", "3", "one of 1, 2, 4, 8"),
    ("poll_pairs", lambda p: dw.poll_pairs(p.a, p.i, 16, p.tag, p.bound, 1), "n", "16", "one of 1, 2, 4, 8"),
    ("poll_pairs", lambda p: dw.poll_pairs(lanes(p), p.i, 1, p.tag, p.bound, 1), "base", "gpu.thread_id", "uniform"),
    ("poll_pairs", lambda p: dw.poll_pairs(p.a, p.i, 1, p.tid, p.bound, 1), "tag", "gpu.thread_id", "uniform"),
    ("poll_pairs", lambda p: dw.poll_pairs(p.a, p.i, 1, p.tag, p.bound, -1), "site", "-1", "0 .. 2147483647"),
    ("poll_pairs", lambda p: dw.poll_pairs(p.a, p.i, 1, p.tag, p.bound, 1, cm=0), "cm", "0", "one of 16, 17"),
    ("poll_rows", lambda p: dw.poll_rows([], p.i, 1, p.tag, p.bound, 1), "len(bases)", "0", "1 .. 8"),
    ("poll_rows", lambda p: dw.poll_rows([p.a] * 9, p.i, 1, p.tag, p.bound, 1), "len(bases)", "9", "1 .. 8"),
    ("wait_flags", lambda p: dw.wait_flags(M3, p.a, 513, p.tag, p.bound, 1), "n", "513", "1 .. 512"),
    ("wait_flags", lambda p: dw.wait_flags(M3, p.a, p.n, p.tag, p.bound, 1), "n", "Int32", "a Python int"),
    ("wait_flags", lambda p: dw.wait_flags(M3, lanes(p), 4, p.tag, p.bound, 1), "base", "gpu.thread_id", "uniform"),
    ("publish", lambda p: dw.publish(lanes(p), 0, p.tag), "base", "gpu.thread_id", "uniform"),
    ("publish", lambda p: dw.publish(p.a, 0, p.tag, cm=0), "cm", "0", "one of 16, 17"),
    ("fail", lambda p: dw.fail(lanes(p), 0, 0), "health", "gpu.thread_id", "uniform"),
    ("w_chunk", lambda p: dw.w_chunk(M3, p.a, p.b, p.row, 8, 8192, 16), "c", "8", "0 .. 7"),
    ("w_chunk", lambda p: dw.w_chunk(M3, p.a, p.b, p.row, 0, 8192, 2**20), "rows", str(2**20), "1 .. 262144"),
    ("xq_chunk", lambda p: dw.xq_chunk(M3, lanes(p), p.row, 0, 128, 16), "base", "gpu.thread_id", "uniform"),
    ("mma8", lambda p: dw.mma8(vector(4), vector(4, fx.Int32), vector(8, fx.Int32), p.n, p.n), "a", "4", "8 words"),
    ("mma_chain", lambda p: dw.mma_chain([], []), "len(a)", "0", "1 .. "),
    ("mma_chain", lambda p: dw.mma_chain([(p.n, p.n)], []), "len(b)", "0", "len(a) = 1"),
    ("quant_store", lambda p: dw.quant_store(M3, [fx.Float32(0)] * 8, p.a, p.b, p.n), "len(values)", "8", "16"),
    ("quant_store", lambda p: dw.quant_store(M3, [p.n] * 16, p.a, p.b, p.n), "values", "Int32", "Float32"),
    (
        "quant_store",
        lambda p: dw.quant_store(M3, [fx.Float32(0)] * 16, p.a, p.b, p.tid),
        "t",
        "gpu.thread_id",
        "uniform",
    ),
    ("row_x", lambda p: dw.row_x(M3, p.a, p.tid), "t", "gpu.thread_id", "uniform"),
    ("row_sum4", lambda p: dw.row_sum4(M3, [p.a], p.n, p.tag, p.bound, 1), "len(partials)", "1", "geo.ranks = 4"),
    ("norm_w", lambda p: dw.norm_w(M3, lanes(p)), "w", "gpu.thread_id", "uniform"),
]


@pytest.mark.parametrize(("word", "body", "argument", "found", "wanted"), CASES)
def test_a_bad_argument_is_refused_by_name(word: str, body: Body, argument: str, found: str, wanted: str) -> None:
    with pytest.raises(KernelError) as caught:
        isa_text(probes.launcher(body, TINY), probes.placeholders())  # type: ignore[arg-type]
    assert word in str(caught.value)
    (fault,) = caught.value.faults
    assert fault.where == argument
    assert found in fault.found
    assert wanted in fault.wanted


def test_a_depth_that_does_not_fit_is_refused_while_tracing() -> None:
    with pytest.raises(KernelError, match="k: found 200, wanted a positive multiple of 128"):
        isa_text(
            probes.launcher(lambda p: dw.w_chunk(M3, p.a, p.b, p.row, 0, 200, 16), TINY),  # type: ignore[arg-type]
            probes.placeholders(),
        )


UNIFORM: list[Body] = [
    lambda p: dw.ld(p.a + fx.Int64(fx.block_idx.x) * 64, 0),
    lambda p: dw.ld(p.a + fx.Int64(dw.wave()) * 64, 0),
    lambda p: dw.ld(p.a + fx.Int64(dw.first_lane(dw.ld(p.b, fx.block_idx.x))), 0),
]


@pytest.mark.parametrize("body", UNIFORM)
def test_a_base_made_of_uniform_values_is_taken(body: Body) -> None:
    """Of the CTA's number, of the wave's, of a loaded word that was read from the first lane."""
    text = isa_text(probes.launcher(lambda p: dw.st(p.c, p.i, body(p)), TINY), probes.placeholders())
    assert probes.parse(text)[0].loops() == []


def test_geometry_of_a_word_is_checked_before_tracing() -> None:
    with pytest.raises(KernelError, match=r"Geometry.hidden: found 6000"):
        probes.probe_isa("row_x", Geometry(hidden=6000))
