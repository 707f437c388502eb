"""Lines of the arithmetic words, sabotaged: the named test must fail. The hand-offs have `test_device_mutations`."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

pytest.importorskip("flydsl")

import device_harness
import test_device_gemv
import test_device_memory
import test_device_numbers
import test_device_rows
from device_harness import SMALL
from device_mutants import Sabotage, mutant

from monodraft.executor import ExecutorError

pytestmark = pytest.mark.executed

TESTS = {
    name: test
    for module in (test_device_numbers, test_device_memory, test_device_gemv, test_device_rows)
    for name, test in vars(module).items()
    if name.startswith("test_") and callable(test)
}
BF16, PAIR = "test_bf16_rounding_is_nearest_even_on_every_pattern_and_tie", "test_bfpair_packs_two_roundings"
SCALE = "test_mx_scale_gives_the_code_and_its_inverse_on_every_edge"
XQ, STORE = "test_xq_chunk_quantizes_like_the_model", "test_quant_store_writes_the_bytes_of_the_model"
W, TILE = "test_w_chunk_gives_every_lane_its_bytes_and_scale", "test_mma8_is_the_exact_sum_rounded_once"
CHAIN, PARTIAL = "test_mma_chain_adds_a_waves_chunks_in_order", "test_red_store_puts_a_partial_by_wave_row_and_token"
SUM4, NORM = "test_row_sum4_adds_in_rank_order_and_rounds_once", "test_norm_row_twice_with_the_residual_between"
ROW = {"geo": SMALL}
OPERAND: dict[str, Any] = {"k": 1152, "rows": 16}

# (word, file, text, what it becomes, the test that must fail, its arguments)
CASES: list[tuple[str, str, str, str, str, dict[str, Any]]] = [
    (
        "bf16_bits",
        "numbers.py",
        "fx.Int32(x.to(fx.BFloat16).bitcast(fx.Uint16))",
        "x.bitcast(fx.Int32) >> 16 & 0xFFFF",
        BF16,
        {"name": "bf16_bits"},
    ),
    ("bf16r", "numbers.py", "(bf16_bits(x) << 16)", "(bf16_bits(x) << 16 | 1)", BF16, {"name": "bf16r"}),
    ("bfpair", "numbers.py", "from_elements([a, b]", "from_elements([b, a]", PAIR, {}),
    (
        "exp",
        "flydsl_names.py",
        '"llvm.exp2.f32"',
        '"llvm.amdgcn.exp2.f32"',
        "test_exp_is_exp2_of_the_rounded_product_within_one_ulp",
        {},
    ),
    ("hw_sqrt", "numbers.py", "llvm.amdgcn.sqrt.f32", "llvm.amdgcn.rsq.f32", "test_hw_sqrt_is_within_one_ulp", {}),
    ("mx_scale rounds down", "numbers.py", "(v + 0x7FFFFF) >> 23", "v >> 23", SCALE, {}),
    ("mx_scale least code", "numbers.py", "fx.Int32(LEAST_CODE)", "fx.Int32(0)", SCALE, {}),
    (
        "mx_scale takes NaN for a number",
        "numbers.py",
        ".select(fx.Int32(NAN_CODE), code)",
        ".select(code, code)",
        SCALE,
        {},
    ),
    ("mx_scale inverse", "numbers.py", "(fx.Int32(254) - code) << 23", "(fx.Int32(253) - code) << 23", SCALE, {}),
    ("ld", "memory.py", "offset + PIECE * p", "offset + 8 * p", "test_ld_of_sixteen_bf16_arrives_in_order", {}),
    (
        "ldn",
        "memory.py",
        '_load("ldn", base, nbytes,',
        '_load("ldn", base, None,',
        "test_ldn_reads_zero_past_its_bytes",
        {"nbytes": 64},
    ),
    (
        "ld8",
        "memory.py",
        "fx.Int32(fx.Uint8(byte))",
        "fx.Int32(fx.Uint8(byte)) & 0x7F",
        "test_ld8_zero_extends_every_byte",
        {},
    ),
    (
        "st",
        "memory.py",
        "    where = resource(base, nbytes)\n    for piece",
        "    where = resource(base)\n    for piece",
        "test_st_leaves_what_lies_past_its_bytes",
        {},
    ),
    (
        "gst32",
        "memory.py",
        "fx.AddressSpace.Global), addr)\n    word",
        "fx.AddressSpace.Global), addr ^ 4)\n    word",
        "test_gst32_lanes_go_to_their_own_addresses",
        {},
    ),
    (
        "w_chunk contiguous bytes",
        "gemv.py",
        "load_words(elements, first + CHUNK // 2, 16, cm)",
        "load_words(elements, first + 16, 16, cm)",
        W,
        OPERAND,
    ),
    (
        "w_chunk scale of its own bytes",
        "gemv.py",
        "chunk * (CHUNK // BLOCK) + group)",
        "chunk * (CHUNK // BLOCK) + group // 2)",
        W,
        OPERAND,
    ),
    (
        "w_chunk idle waves",
        "gemv.py",
        "(chunk < count).select(offset, fx.Int32(BUFFER_LIMIT - 256))",
        "offset",
        W,
        OPERAND,
    ),
    ("xq_chunk other block's scale", "gemv.py", ".select(low, high)", ".select(high, low)", XQ, OPERAND),
    ("xq_chunk without exchange", "gemv.py", "joined = fx.max(mine, other)", "joined = mine", XQ, OPERAND),
    (
        "quantize signed zeros",
        "numbers.py",
        "(amax_bits != 0) & (amax_bits < INFINITY_BITS)",
        "amax_bits < INFINITY_BITS",
        XQ,
        OPERAND,
    ),
    ("quantize NaN bytes", "numbers.py", "0x7F7F7F7F", "0x7E7E7E7E", XQ, OPERAND),
    (
        "quantize sign in the maximum",
        "numbers.py",
        "most = values[0].bitcast(fx.Int32) & MAGNITUDE",
        "most = values[0].bitcast(fx.Int32)",
        XQ,
        OPERAND,
    ),
    ("mma8", "gemv.py", "(acc, a, b, sa, sb)\n", "(acc, a, b, sb, sa)\n", TILE, {"span": (120, 135)}),
    (
        "mma_chain",
        "gemv.py",
        "in zip(a, b, strict=True):",
        "in zip(a[::-1], b[::-1], strict=True):",
        CHAIN,
        {"k": 1536},
    ),
    ("red_store", "gemv.py", "lane() // TILE_ROWS * 4", "lane() // TILE_ROWS", PARTIAL, {}),
    (
        "red_sum",
        "gemv.py",
        "for v in range(geo.waves)]\n    total",
        "for v in reversed(range(geo.waves))]\n    total",
        "test_red_sum_adds_the_waves_in_order",
        {"geo": device_harness.M3},
    ),
    (
        "quant_store",
        "gemv.py",
        "amax = fx.max(amax, fly.dpp(amax, SWAP_NEIGHBOURS))",
        "amax = fx.max(amax, amax)",
        STORE,
        ROW,
    ),
    (
        "row_x",
        "rows.py",
        "resource(row_base(x_in, t, 2 * geo.hidden), 2 * geo.hidden)",
        "resource(row_base(x_in, t, 2 * geo.hidden))",
        "test_row_x_is_the_row_and_zeros_past_it",
        ROW,
    ),
    (
        "norm_w",
        "rows.py",
        "resource(w, 2 * geo.hidden)",
        "resource(w)",
        "test_norm_w_gives_pairs_and_zeros_past_the_row",
        ROW,
    ),
    ("row_sum4 order", "rows.py", "for source in words[1:]:", "for source in words[:0:-1]:", SUM4, {"ranks": 4}),
    ("row_sum4 unrounded", "rows.py", "[bf16r(value) for value in total]", "total", SUM4, {"ranks": 2}),
    ("norm_row eps", "rows.py", " + fx.Float32(eps))", ")", NORM, ROW),
    ("norm_row 1 + w in bf16", "rows.py", "weight + 1.0 for", "bf16r(weight + 1.0) for", NORM, ROW),
    (
        "norm_row rounded sum",
        "rows.py",
        "square_sum(geo, s, red)",
        "square_sum(geo, unpack_pairs(words), red)",
        NORM,
        ROW,
    ),
    ("norm_row residual", "rows.py", "own + half)\n    rstd", "own + (4 - half))\n    rstd", NORM, ROW),
    (
        "norm_row barrier after the partial",
        "rows.py",
        "red + wave())\n    gpu.barrier()\n",
        "red + wave())\n",
        NORM,
        ROW,
    ),
    (
        "norm_row barrier before the partial",
        "rows.py",
        "total = _wave_sum(total)\n    gpu.barrier()\n",
        "total = _wave_sum(total)\n",
        NORM,
        ROW,
    ),
]


@pytest.mark.parametrize(("word", "file", "old", "new", "test", "arguments"), CASES, ids=[case[0] for case in CASES])
def test_sabotage_makes_its_test_fail(
    word: str, file: str, old: str, new: str, test: str, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = mutant(
        Sabotage(word.replace(" ", "-").replace("'", "").replace("+", "and"), file, old, new, test)
    ).__name__
    broken = {name: importlib.import_module(f"{package}.{name}") for name in ("probes", "words")}
    module = importlib.import_module(TESTS[test].__module__)
    monkeypatch.setattr(device_harness, "ENGINES", ("reference",))
    monkeypatch.setattr(device_harness, "probes", broken["probes"])
    monkeypatch.setattr(module, "probes", broken["probes"], raising=False)
    monkeypatch.setattr(module, "dw", broken["words"], raising=False)
    with pytest.raises((AssertionError, ExecutorError)):
        TESTS[test](**arguments)
