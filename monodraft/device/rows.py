"""Rows of the hidden state, 16 values a thread, and their norm.

Thread i holds values 16 i .. 16 i + 15 of a row. Threads past the row (`geo.row_threads`) hold zeros and take part in
everything; their loads are cut off by the buffer resource, without a branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flydsl.expr as fx
from flydsl.expr import const_expr, gpu

from monodraft.device import flydsl_names as fly
from monodraft.device.checks import refuse, require_uniform
from monodraft.device.flydsl_names import traced
from monodraft.device.gemv import SWAP_NEIGHBOURS, lane, require_values, row_base, wave
from monodraft.device.geometry import ROW_VALUES, Geometry
from monodraft.device.memory import CM_SYS, load_words, require_policy, resource
from monodraft.device.numbers import bf16r, hw_rsqrt, pack_pairs, unpack_pairs
from monodraft.device.waits import Bound, poll_rows

SWAP_PAIRS, HALF_MIRROR, MIRROR = 0x4E, 0x141, 0x140
"""DPP controls quad_perm [2, 3, 0, 1], row_half_mirror and row_mirror."""


def row_x(geo: Geometry, x_in: Any, t: Any, cm: int = 0) -> list[Any]:
    """A thread's 16 values (Float32, exact) of row `t` of bf16 x_in[rows][hidden]. `t` is uniform; base 16-aligned."""
    require_uniform("row_x", "x_in", x_in)
    require_uniform("row_x", "t", t, fx.Int32)
    require_policy("row_x", cm)
    row = resource(row_base(x_in, t, 2 * geo.hidden), 2 * geo.hidden)
    return unpack_pairs(load_words(row, fx.thread_idx.x * (2 * ROW_VALUES), 2 * ROW_VALUES, cm))


def row_sum4(
    geo: Geometry, partials: Sequence[Any], t: Any, tag: Any, bound: Bound, site: int, cm: int = CM_SYS
) -> list[Any]:
    """A thread's 16 values of row `t`: the bf16 of the sum of the source ranks' bf16 partials, added in rank order.

    `partials`: one base a rank (`geo.ranks` of them; 4 gave the helper its name), each a region of tagged pairs
    [rows][hidden / 2] whose value words are bf16 pairs; waits for all of them in one batch (`poll_rows`). Sums are f32,
    from rank 0 on, rounded to bf16 once and returned as Float32. Threads past the row hold zeros. Bases 16-aligned.
    """
    if len(partials) != geo.ranks:
        raise refuse("row_sum4", "len(partials)", len(partials), f"geo.ranks = {geo.ranks}")
    require_uniform("row_sum4", "t", t, fx.Int32)
    row_bytes = 4 * geo.hidden
    bases = [row_base(partial, t, row_bytes) for partial in partials]
    pairs = ROW_VALUES // 2
    words = poll_rows(bases, fx.thread_idx.x * pairs, pairs, tag, bound, site, cm, nbytes=row_bytes)
    total = unpack_pairs(words[0])
    for source in words[1:]:
        total = [a + b for a, b in zip(total, unpack_pairs(source), strict=True)]
    return [bf16r(value) for value in total]


def norm_w(geo: Geometry, w: Any) -> list[Any]:
    """A thread's 16 norm weights of bf16 w[hidden], as 8 bf16-pair words (Int32). Base 16-aligned."""
    require_uniform("norm_w", "w", w)
    row = resource(w, 2 * geo.hidden)
    return load_words(row, fx.thread_idx.x * (2 * ROW_VALUES), 2 * ROW_VALUES, 0)


@traced
def norm_row(
    geo: Geometry,
    values: Sequence[Any],
    w: Sequence[Any],
    res: Any,
    red: Any,
    eps: float,
    add: bool = True,
    unit_offset: bool = True,
) -> list[Any]:
    """RMSNorm of a row held 16 values a thread; returns the thread's 16 values, each a bf16 as Float32.

    s = values + residual in f32 (`add=False`: s = values, the old residual is ignored); bf16(s) becomes the new
    residual, the norm reads the unrounded s (vLLM's fused add and norm, the contract of `monodraft.reference`).
    Result, Gemma (`unit_offset`): bf16(s * rstd * (1 + w)), 1 + w in f32; otherwise bf16(s * rstd * w). rstd =
    `v_rsq_f32`(sum * fl(1 / hidden) + eps), sum = f32 sum of s^2 in the order of `square_sum`.

    `w`: 8 words of `norm_w`. `res`: LDS Int32 pointer, `geo.residual_words()` bf16-pair words, a thread's own 8 at
    8 tid, 16-aligned. `red`: LDS Float32 pointer, `geo.waves` words of scratch; a barrier before they are written makes
    them free for reuse. All threads of the CTA must call it.
    """
    require_values("norm_row", values)
    own = res + fx.thread_idx.x * (ROW_VALUES // 2)
    s = list(values)
    if const_expr(add):
        s = [a + b for a, b in zip(s, unpack_pairs(_lds_words(own)), strict=True)]
    words = pack_pairs(s)
    for half in (0, 4):
        fx.ptr_store(fx.Vector.from_elements(words[half : half + 4], fx.Int32), own + half)
    rstd = hw_rsqrt(square_sum(geo, s, red) * fx.Float32(1.0 / geo.hidden) + fx.Float32(eps))
    weights = unpack_pairs(w)
    if const_expr(unit_offset):
        weights = [weight + 1.0 for weight in weights]
    return [bf16r(x * rstd * weight) for x, weight in zip(s, weights, strict=True)]


@traced
def square_sum(geo: Geometry, values: Sequence[Any], red: Any) -> Any:
    """f32 sum of squares over the CTA, the same bits in every thread.

    A thread: fma(v, v, sum) from 0 over its 16 values in order. A wave: six rounds of lane + partner, partners at
    distance 1, 2, then mirrored in 8 and in 16 lanes, then groups of 16 and of 32 swapped. The CTA: waves 0 on, in
    order, through LDS `red`.
    """
    total = fx.Float32(0.0)
    for value in values:
        total = fx.fma(value, value, total)
    total = _wave_sum(total)
    gpu.barrier()
    if lane() == 0:
        fx.ptr_store(total, red + wave())
    gpu.barrier()
    parts = [fx.ptr_load(red + v) for v in range(geo.waves)]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole + part
    return whole


def _wave_sum(x: Any) -> Any:
    for control in (SWAP_NEIGHBOURS, SWAP_PAIRS, HALF_MIRROR, MIRROR):
        x = x + fly.dpp(x, control)
    for rows in (16, 32):
        bits = x.bitcast(fx.Int32)
        a, b = fly.permlane_swap(bits, bits, rows)
        x = a.bitcast(fx.Float32) + b.bitcast(fx.Float32)
    return x


def _lds_words(pointer: Any) -> list[Any]:
    kind = fx.Vector.make_type(4, fx.Int32)
    return [word for half in (0, 4) for word in fx.ptr_load(pointer + half, result_type=kind)]
