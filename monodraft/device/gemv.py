"""The MXFP8 GEMV: 16 weight rows by up to 16 token columns a tile, K walked in chunks of 128, chunks dealt to waves.

Operand layout of `v_mfma_scale_f32_16x16x128_f8f6f4` with e4m3 (both operands alike): lane l holds row l % 16 of the
operand, and with g = l // 16 the bytes k = 16 g .. 16 g + 15 in words 0-3 and k = 64 + 16 g .. in words 4-7. The scale
of row r, 32-block b sits in lane 16 b + r, so a lane's scale is not the scale of its own bytes. Of the result, lane l
holds rows 4 g .. 4 g + 3 of column l % 16.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flydsl.expr as fx

from monodraft.device import flydsl_names as fly
from monodraft.device.checks import refuse, require_range, require_type, require_uniform
from monodraft.device.geometry import BLOCK, BUFFER_LIMIT, CHUNK, TILE_ROWS, Geometry, check_depth
from monodraft.device.memory import CM_DEV, load_words, require_policy, resource, st
from monodraft.device.numbers import magnitude_bits, quantize_words, scale_code, unpack_pairs

Operand = tuple[Any, Any]
"""(8 operand words as an Int32 Vector, e8m0 scale in the low byte of an Int32)."""


def lane() -> Any:
    """Int32 lane of its wave, 0 .. 63."""
    return fx.thread_idx.x % 64


def wave() -> Any:
    """Int32 wave of the CTA, uniform."""
    return fly.first_lane(fx.thread_idx.x // 64)


def w_chunk(geo: Geometry, w: Any, scales: Any, row: Any, c: int, k: int, rows: int, cm: int = 0) -> Operand:
    """Operand and scale of row `row` (per lane), chunk `c` of this wave, of MXFP8 w[rows][k], scales[rows][k / 32].

    Two 16-byte loads and one byte load; over a tile each byte is read once. Chunk c of wave v is number
    `geo.waves * c + v` of the row. Rows past `rows` and chunks past `k` are zeros (byte 0, scale byte 0). Also reads
    the token rows that `quant_store` wrote (`cm=CM_DEV` then). Bases aligned to 16 bytes.
    """
    count = _check_operand(geo, "w_chunk", w, c, k, rows, 1)
    require_uniform("w_chunk", "scales", scales)
    require_policy("w_chunk", cm)
    chunk = geo.waves * c + wave()
    group = lane() // TILE_ROWS
    elements, codes = resource(w, rows * k), resource(scales, rows * k // BLOCK)
    first = _inside(geo, c, count, chunk, row * k + chunk * CHUNK + group * 16)
    words = [*load_words(elements, first, 16, cm), *load_words(elements, first + CHUNK // 2, 16, cm)]
    place = _inside(geo, c, count, chunk, row * (k // BLOCK) + chunk * (CHUNK // BLOCK) + group)
    code = fx.Int32(fx.Uint8(fly.buffer_load(codes, place, fx.Uint8.ir_type, cm)))
    return fx.Vector.from_elements(words, fx.Int32), code


def xq_chunk(geo: Geometry, x: Any, row: Any, c: int, k: int, rows: int, cm: int = CM_DEV) -> Operand:
    """bf16 row `row` (per lane) of x[rows][k], chunk `c` of this wave, quantized to MXFP8 in registers.

    Same lanes, chunks and zeros as `w_chunk`; bytes and scales as `monodraft.formats.mxfp8.encode` of the row. A zero
    row or chunk has scale byte 1. Four 16-byte loads; lanes 16 apart share a 32-block and exchange its largest
    magnitude. Base aligned to 16 bytes.
    """
    count = _check_operand(geo, "xq_chunk", x, c, k, rows, 2)
    require_policy("xq_chunk", cm)
    chunk = geo.waves * c + wave()
    group = lane() // TILE_ROWS
    elements = resource(x, 2 * rows * k)
    first = _inside(geo, c, count, chunk, (row * k + chunk * CHUNK + group * 16) * 2)
    halves = [unpack_pairs(load_words(elements, first + CHUNK * h, 32, cm)) for h in (0, 1)]
    amax, own = _block_maxima(magnitude_bits(halves[0]), magnitude_bits(halves[1]), group)
    words = [
        word
        for values, most in zip(halves, amax, strict=True)
        for word in quantize_words(values, most, scale_code(most))
    ]
    return fx.Vector.from_elements(words, fx.Int32), scale_code(own)


def mma8(acc: Any, a: Any, b: Any, sa: Any, sb: Any) -> Any:
    """acc + A B of one 16x16x128 tile, e4m3 with e8m0 scales: `v_mfma_scale_f32_16x16x128_f8f6f4`.

    `acc`: Float32 Vector of 4; `a`, `b`: Int32 Vectors of 8; `sa`, `sb`: Int32, scale in the low byte. Accumulates in
    f32; the executor rounds once an instruction (docs/executor.md), hardware's own order is not documented.
    """
    for name, words in (("a", a), ("b", b)):
        if not isinstance(words, fx.Vector) or words.numel != 8:
            raise refuse("mma8", name, getattr(words, "numel", type(words).__name__), "an Int32 Vector of 8 words")
    require_type("mma8", "sa", sa, fx.Int32)
    require_type("mma8", "sb", sb, fx.Int32)
    return fly.mfma_scale_16x16x128(acc, a, b, sa, sb)


def mma_chain(a: Sequence[Operand], b: Sequence[Operand]) -> Any:
    """One tile's partial sums over chunks 0 .. nc-1 of this wave, in order, from zero: Float32 Vector of 4 a lane."""
    require_range("mma_chain", "len(a)", len(a), 1, 1 << 16)
    if len(a) != len(b):
        raise refuse("mma_chain", "len(b)", len(b), f"len(a) = {len(a)}")
    acc = fx.Vector.filled(4, 0.0, fx.Float32)
    for (words_a, code_a), (words_b, code_b) in zip(a, b, strict=True):
        acc = mma8(acc, words_a, words_b, code_a, code_b)
    return acc


def red_store(geo: Geometry, red: Any, t: int, acc: Any) -> None:
    """This wave's partial of tile `t` to LDS red[waves t + wave][row][token] (Float32 pointer, 16 x 16 a partial).

    The caller puts a CTA barrier between these stores and `red_sum`, and one before the next `red_store`.
    """
    require_range("red_store", "t", t, 0, 1 << 16)
    geo.partial_words(t + 1)
    column, first_row = lane() % TILE_ROWS, lane() // TILE_ROWS * 4
    partial = red + ((geo.waves * t + wave()) * TILE_ROWS + first_row) * TILE_ROWS + column
    for i in range(4):
        fx.ptr_store(acc[i], partial + TILE_ROWS * i)


def red_sum(geo: Geometry, red: Any, t: Any, row: Any, token: Any) -> Any:
    """Float32 of tile `t`'s (row, token), summed over waves 0 .. waves-1 in that order: the same bits in every run.

    `t`, `row`, `token`: Int32 a lane (or ints).
    """
    place = red + (t * geo.waves * TILE_ROWS + row) * TILE_ROWS + token
    parts = [fx.ptr_load(place + TILE_ROWS * TILE_ROWS * v) for v in range(geo.waves)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def quant_store(geo: Geometry, values: Sequence[Any], x8: Any, e8: Any, t: Any, cm: int = CM_DEV) -> None:
    """MXFP8 of a thread's 16 Float32 values of row `t`: e4m3 to x8[t][16 tid ..], e8m0 to e8[t][tid // 2].

    x8 [rows][hidden] and e8 [rows][hidden / 32] are bases, x8 aligned to 16 bytes; `t` is uniform. Neighbouring threads
    share a 32-block, the even one stores its scale. Threads past the row store nothing. Bytes as
    `monodraft.formats.mxfp8.encode`.
    """
    require_values("quant_store", values)
    require_uniform("quant_store", "t", t, fx.Int32)
    require_uniform("quant_store", "e8", e8)
    thread = fx.thread_idx.x
    amax = magnitude_bits(values)
    amax = fx.max(amax, fly.dpp(amax, SWAP_NEIGHBOURS))
    code = scale_code(amax)
    words = fx.Vector.from_elements(quantize_words(values, amax, code), fx.Int32)
    st(row_base(x8, t, geo.hidden), thread * 4, words, cm, nbytes=geo.hidden)
    blocks = geo.hidden // BLOCK
    place = (thread % 2 == 0).select(thread // 2, fx.Int32(blocks))
    st(row_base(e8, t, blocks), place, code.to(fx.Int8), cm, nbytes=blocks)


SWAP_NEIGHBOURS = 0xB1
"""DPP control quad_perm [1, 0, 3, 2]: lane l reads lane l ^ 1."""


def row_base(base: Any, t: Any, row_bytes: int) -> Any:
    """Int64 address of row `t` of rows of `row_bytes`."""
    return base + fx.Int64(t) * row_bytes


def require_values(helper: str, values: Sequence[Any]) -> None:
    """Refuse anything but 16 Float32 values."""
    if len(values) != 16:
        raise refuse(helper, "len(values)", len(values), "16")
    for value in values:
        require_type(helper, "values", value, fx.Float32)


def _check_operand(geo: Geometry, helper: str, base: Any, c: int, k: int, rows: int, width: int) -> int:
    """Refuse what cannot be an operand; returns the chunks of a row."""
    require_uniform(helper, "base", base)
    check_depth(k)
    require_range(helper, "c", c, 0, geo.chunks(k) - 1)
    require_range(helper, "rows", rows, 1, BUFFER_LIMIT // (width * k))
    return k // CHUNK


def _inside(geo: Geometry, c: int, count: int, chunk: Any, offset: Any) -> Any:
    """`offset`, or one past every resource for a wave whose chunk `c` lies past the row's `count` chunks."""
    if geo.waves * (c + 1) <= count:
        return offset
    return (chunk < count).select(offset, fx.Int32(BUFFER_LIMIT - 256))


def _block_maxima(first: Any, second: Any, group: Any) -> tuple[tuple[Any, Any], Any]:
    """Maxima of the 32-blocks of a lane's two 16-byte pieces, and of block `group`, from the pieces' own maxima.

    Groups 0, 1 hold blocks 0 (first piece) and 2 (second), groups 2, 3 blocks 1 and 3.
    """
    mine, other = fly.permlane_swap(first, second, 16)  # groups: (0a 0b 2a 2b), (1a 1b 3a 3b)
    joined = fx.max(mine, other)  # blocks by group: 0 2 1 3
    amax_first, amax_second = fly.permlane_swap(joined, joined, 16)  # 0 0 1 1, 2 2 3 3
    low, high = fly.permlane_swap(amax_first, amax_second, 32)  # 0 0 2 2, 1 1 3 3
    own = (group % 2 == 0).select(low, high)
    return (amax_first, amax_second), own
