"""The linears: MXFP8 tiles of the layers, whose weights are asked for one tile ahead, and bf16 tiles of the heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import flydsl.expr as fx
from flydsl.expr import gpu

from monodraft.device import words as dw
from monodraft.device.bf16 import UNIT, mma_bf16
from monodraft.device.geometry import TILE_ROWS
from monodraft.device.memory import load_words, resource
from monodraft.plan.shape import MX_BLOCK
from monodraft.stages.scope import Step

Matrix = tuple[Any, Any]
"""Bases of MXFP8 elements and scales, uniform Int64, of row 0 of the tiles."""
Tokens = Callable[[int], Any]
"""Operand of chunk c of the token rows."""
MOST_OPERAND_REGISTERS = 180
"""VGPRs of a lane that operands of a tile loop may take, of the 256 that 8 waves a CTA leave to each."""
OUT_OF_RESOURCE = 2**31 - 256
PAIRS = TILE_ROWS // 2


def quantised_tokens(step: Step, name: str, k: int, rows: int) -> Tokens:
    """Token rows that `quant_store` left in local array `name`."""
    x8, e8 = step.local.at(name), step.local.at(f"{name}.scales")
    row = dw.lane() % TILE_ROWS
    return lambda c: dw.w_chunk(step.geo, x8, e8, row, c, k, rows, cm=dw.CM_DEV)


def bf16_tokens(step: Step, name: str, k: int, rows: int) -> Tokens:
    """bf16 token rows in local array `name`, quantised in registers."""
    x = step.local.at(name)
    row = dw.lane() % TILE_ROWS
    return lambda c: dw.xq_chunk(step.geo, x, row, c, k, rows)


def tile_operands(step: Step, matrices: Sequence[Matrix], tile: Any, tiles: int, k: int) -> list[Any]:
    """Weight operands of one tile of every matrix: words, scale of each chunk. Past the last tile zeros, no bytes."""
    exists = tile < tiles
    place = fx.Int64(exists.select(tile, fx.Int32(0))) * (TILE_ROWS * k)
    # A row past the tile's resource reads zeros without touching memory.
    row = exists.select(fx.Int32(0), fx.Int32(TILE_ROWS)) + dw.lane() % TILE_ROWS
    flat: list[Any] = []
    for elements, scales in matrices:
        tile_scales = scales + place // MX_BLOCK
        for c in range(step.geo.chunks(k)):
            flat += dw.w_chunk(step.geo, elements + place, tile_scales, row, c, k, TILE_ROWS)
    return flat


def tile_partials(step: Step, held: Sequence[Any], tokens: Sequence[Any], count: int) -> None:
    """This wave's partials of `count` tiles to LDS `red`."""
    chunks = len(tokens)
    pairs = list(zip(held[0::2], held[1::2], strict=True))
    for t in range(count):
        dw.red_store(step.geo, step.lds.red, t, dw.mma_chain(pairs[t * chunks : (t + 1) * chunks], tokens))


@dw.traced
def mx_tiles(
    step: Step,
    matrices: Sequence[Matrix],
    tiles: int,
    k: int,
    wait: Callable[[], None],
    tokens: Tokens,
    finish: Callable[[Any], None],
) -> None:
    """This CTA's tiles (cta, cta + ctas, ...) of MXFP8 `matrices` side by side, each [tiles * 16][k], times tokens.

    The first tile's weights are requested before `wait` waits for the tokens, later ones before the sums of the one
    before (`asks_ahead`). `finish(tile)` is called by all threads with tile t of every matrix summed up in LDS `red`.
    """
    ctas = step.shape.ctas
    ahead = asks_ahead(step, len(matrices), tiles, k)
    held = tile_operands(step, matrices, step.cta, tiles, k)
    wait()
    columns = [tokens(c) for c in fx.range_constexpr(step.geo.chunks(k))]
    for tile in range(step.cta, tiles, ctas):
        tile_partials(step, held, columns, len(matrices))
        following = fx.Int32(tile) + ctas
        held = tile_operands(step, matrices, following, tiles, k) if ahead else held
        gpu.barrier()
        finish(fx.Int32(tile))
        held = held if ahead else tile_operands(step, matrices, following, tiles, k)
        gpu.barrier()


def asks_ahead(step: Step, matrices: int, tiles: int, k: int) -> bool:
    """Whether the next tile's weights are requested before this one's sums: where there is one, and registers are."""
    operand = 9
    registers = operand * step.geo.chunks(k) * (2 * matrices + 1)
    return tiles > step.shape.ctas and registers <= MOST_OPERAND_REGISTERS


def tile_word(step: Step, t: int, change: Callable[[Any], Any] = lambda value: value) -> tuple[Any, Any, Any]:
    """(word, token, pair): rows 2 pair, 2 pair + 1 of tile `t` in column `token`, as a bf16 pair, thread by thread.

    Thread i holds pair i % 8 of token i // 8; tokens of 16 and more are duplicates that callers must not store.
    """
    pair, token = fx.thread_idx.x % PAIRS, fx.thread_idx.x // PAIRS
    low, high = (dw.red_sum(step.geo, step.lds.red, t, 2 * pair + half, token % TILE_ROWS) for half in (0, 1))
    return dw.bfpair(change(low), change(high)), token, pair


def store_tile(step: Step, name: str, tile: Any, rows: int, stride: int, first: int = 0) -> None:
    """Tile 0 in LDS to columns first + 16 tile .. of bf16 local array `name` [rows][stride], for other CTAs."""
    word, token, pair = tile_word(step, 0)
    place = token * (stride // 2) + tile * PAIRS + pair + first // 2
    dw.st(step.local.at(name), place, word, cm=dw.CM_DEV, nbytes=rows * stride * 2)


@dw.traced
def bf16_tile(
    step: Step, weights: Any, x: Any, k: int, rows: int, cm: int = dw.CM_DEV, held: Sequence[Any] | None = None
) -> Any:
    """This wave's partial of the 16 bf16 weight rows at `weights` [16][k] times bf16 x[rows][k]; Float32 Vector of 4.

    Wave w walks a consecutive eighth of K, 32 values an instruction, in order. `held`: `bf16_group` 0 of the tile,
    where it was requested before.
    """
    share, group = _share(step, k)
    columns = resource(x, rows * k * 2)
    first = bf16_group(step, weights, k, 0) if held is None else held
    products = [_vector(load_words(columns, place, 16, cm)) for place in _group_places(step, k, 0)]
    acc = chain_bf16(fx.Vector.filled(4, 0.0, fx.Float32), first, products)
    for g in range(fx.Int32(1), fx.Int32(-(-share // group)), fx.Int32(1)):
        a = bf16_group(step, weights, k, fx.Int32(g))
        b = [_vector(load_words(columns, place, 16, cm)) for place in _group_places(step, k, fx.Int32(g))]
        acc = chain_bf16(acc, a, b)
    return acc


def bf16_group(step: Step, weights: Any, k: int, g: Any, exists: Any = None) -> list[Any]:
    """Weight operands of group `g` (up to 8 units of 32 values) of this wave's share of a `bf16_tile`; zeros, and no
    bytes read, where it does not exist."""
    tile = resource(weights, TILE_ROWS * k * 2)
    places = _group_places(step, k, g)
    if exists is not None:
        places = [exists.select(place, fx.Int32(OUT_OF_RESOURCE)) for place in places]
    return [_vector(load_words(tile, place, 16, 0)) for place in places]


def _share(step: Step, k: int) -> tuple[int, int]:
    """Units of 32 values that a wave walks, and how many of them are loaded at a time."""
    share = -(-(k // UNIT) // step.geo.waves)
    return share, min(share, 8)


def _group_places(step: Step, k: int, g: Any) -> list[Any]:
    """Byte offsets of a lane's 16 bytes of each unit of group `g`."""
    share, group = _share(step, k)
    lane = dw.lane()
    row_part = lane % TILE_ROWS * (2 * k) + lane // TILE_ROWS * 16
    first = dw.wave() * share
    return [_unit_place(first, fx.Int32(g) * group + j, share, k // UNIT, row_part) for j in range(group)]


def chain_bf16(acc: Any, a: Sequence[Any], b: Sequence[Any]) -> Any:
    """acc plus the products of operand lists, in order."""
    for left, right in zip(a, b, strict=True):
        acc = mma_bf16(acc, left, right)
    return acc


def _unit_place(first: Any, index: Any, share: int, units: int, row_part: Any) -> Any:
    """Byte offset of a lane's 16 bytes of unit `first + index` of its row; past the resource where there is none."""
    inside = (index < share) & (first + index < units)
    return inside.select(row_part + (first + index) * (2 * UNIT), fx.Int32(OUT_OF_RESOURCE))


def _vector(words: list[Any]) -> Any:
    return fx.Vector.from_elements(words, fx.Int32)
