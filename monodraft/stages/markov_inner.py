"""The inner linear of the gated and the rnn Markov head (`monodraft.reference.heads.MarkovHead`).

Its columns for the hidden row are multiplied once for all rows, tiles dealt to CTAs. Its columns for what the chain
makes (e, or the state s and e) are few: every CTA multiplies them again in every slot, so that no hand-off is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flydsl.expr as fx
from flydsl.expr import gpu

from monodraft.checkpoint.config import MarkovKind
from monodraft.device import words as dw
from monodraft.device.bf16 import UNIT, mma_bf16
from monodraft.device.geometry import TILE_ROWS
from monodraft.device.memory import load_words, resource
from monodraft.device.numbers import bf16r, bf_high, bf_low
from monodraft.plan.lds import PAD
from monodraft.plan.shape import TILE
from monodraft.stages.exchange import publish_stage
from monodraft.stages.layer import sigmoid
from monodraft.stages.linear import bf16_group, bf16_tile
from monodraft.stages.scope import Step

SMALL = 0.1
"""Below it tanh is its series: 1 - 2 / (e^2x + 1) would cancel."""


@dw.traced
def hidden_part(step: Step, held: Sequence[Any]) -> None:
    """Inner linear of the final rows: Float32 sums, not rounded, to local `inner` [tile][token][row]. `held`: the
    `hidden_ahead` of this CTA's first tile."""
    for tile in range(step.cta, step.shape.inner_rows // TILE, step.shape.ctas):
        hidden_tile(step, fx.Int32(tile), held)
        held = hidden_ahead(step, fx.Int32(tile) + step.shape.ctas)
    publish_stage(step, "inner")


def hidden_weights(step: Step, tile: Any) -> Any:
    """Address of the rows of a tile of `hidden_part`."""
    return step.weights.at("markov_inner_hidden") + fx.Int64(tile) * (TILE * step.shape.hidden * 2)


def hidden_ahead(step: Step, tile: Any) -> list[Any]:
    """The first weight operands of a tile of `hidden_part`; nothing is read past the last tile. Empty for a vanilla
    head."""
    if not step.shape.inner_rows:
        return []
    exists = tile < step.shape.inner_rows // TILE
    return bf16_group(step, hidden_weights(step, exists.select(tile, fx.Int32(0))), step.shape.hidden, 0, exists)


def hidden_tile(step: Step, tile: Any, held: Sequence[Any]) -> None:
    """One tile of `hidden_part`; `held`: its `hidden_ahead`."""
    shape, tile_bytes = step.shape, 4 * TILE * TILE
    acc = bf16_tile(
        step, hidden_weights(step, tile), step.local.at("final"), shape.hidden, shape.rows, held=held
    )  # fmt: skip
    dw.red_store(step.geo, step.lds.red, 0, acc)
    gpu.barrier()
    place = fx.thread_idx.x % (TILE * TILE)
    value = dw.red_sum(step.geo, step.lds.red, 0, place % TILE, place // TILE)
    base = step.local.at("inner") + fx.Int64(tile) * tile_bytes
    dw.st(base, fx.thread_idx.x, value, cm=dw.CM_DEV, nbytes=tile_bytes)
    gpu.barrier()


def serial_words(step: Step) -> int:
    """Words of one request's serial input in LDS."""
    return (step.shape.inner_depth + PAD) // 2


@dw.traced
def clear_state(step: Step) -> None:
    """The rnn's state before slot 0: zeros."""
    words = step.shape.requests * serial_words(step)
    for place in range(fx.Int32(fx.thread_idx.x), fx.Int32(words), fx.Int32(step.geo.threads)):
        fx.ptr_store(fx.Int32(0), step.lds.serial + fx.Int32(place))
    gpu.barrier()


def serial_part(step: Step, slot: Any, held: Sequence[Any]) -> None:
    """One slot: e of the last id, the inner linear, then what w2 is multiplied by, to LDS `bias_input`. `held`: the
    `serial_ahead` of this wave's first tile."""
    fetch_embedding(step, slot)
    gpu.barrier()
    inner_tiles(step, slot, held)
    gpu.barrier()
    gate(step)
    gpu.barrier()


@dw.traced
def fetch_embedding(step: Step, slot: Any) -> None:
    """w1 rows of the last ids to LDS `serial`, behind the state where there is one."""
    shape = step.shape
    pairs = shape.markov_rank // 2
    table = resource(step.weights.at("markov_w1"), shape.config.vocab_size * shape.markov_rank * 2)
    first = shape.inner_depth // 2 - pairs
    for index in range(fx.Int32(fx.thread_idx.x), fx.Int32(shape.requests * pairs), fx.Int32(step.geo.threads)):
        request, pair = fx.Int32(index) // pairs, fx.Int32(index) % pairs
        previous = fx.ptr_load(step.lds.chosen + slot * TILE + request)
        word = load_words(table, (previous * pairs + pair) * 4, 4, 0)[0]
        fx.ptr_store(word, step.lds.serial + request * serial_words(step) + first + pair)


@dw.traced
def inner_tiles(step: Step, slot: Any, held: Sequence[Any]) -> None:
    """bf16(hidden part + serial part + bias) as Float32 to LDS `inner` [row][request]; a wave a tile. `held`: the
    `serial_ahead` of the first."""
    tiles = fx.Int32(step.shape.inner_rows // TILE)
    for tile in range(dw.wave(), step.shape.inner_rows // TILE, step.geo.waves):
        inner_tile(step, slot, fx.Int32(tile), held)
        held = serial_ahead(step, fx.Int32(tile) + step.geo.waves, tiles)


def serial_operands(step: Step) -> int:
    """Operands of one tile of the inner linear's serial columns; 0 for a vanilla head."""
    return step.shape.inner_depth // UNIT if step.shape.inner_rows else 0


def serial_ahead(step: Step, tile: Any, tiles: Any) -> list[Any]:
    """Weight operands of one tile of the serial columns, 16 rows, and the bias of this lane's four rows; nothing is
    read from tile `tiles` on. Empty for a vanilla head."""
    row_bytes = 2 * step.shape.inner_depth
    if not serial_operands(step):
        return []
    exists = tile < tiles
    rows = step.weights.at("markov_inner_serial") + fx.Int64(exists.select(tile, fx.Int32(0))) * (TILE * row_bytes)
    weights = resource(rows, TILE * row_bytes)
    place = dw.lane() % TILE * row_bytes + 16 * (dw.lane() // TILE_ROWS)
    place = exists.select(place, fx.Int32(TILE * row_bytes))
    units = range(serial_operands(step))
    operands = [fx.Vector.from_elements(load_words(weights, place + 2 * UNIT * i, 16, 0), fx.Int32) for i in units]
    nbytes = 4 * step.shape.inner_rows
    bias = resource(step.weights.at("markov_inner_bias"), nbytes)
    where = exists.select((tile * TILE + 4 * (dw.lane() // TILE_ROWS)) * 4, fx.Int32(nbytes))
    return [*operands, fx.Vector.from_elements(load_words(bias, where, 16, 0), fx.Int32)]


def inner_tile(step: Step, slot: Any, tile: Any, held: Sequence[Any]) -> None:
    """One tile of 16 rows: lane l holds rows 4 (l // 16) .. + 3 of request l % 16. `held`: its `serial_ahead`."""
    shape = step.shape
    column, part = dw.lane() % TILE, dw.lane() // TILE_ROWS
    acc = fx.Vector.filled(4, 0.0, fx.Float32)
    serial = lds_operands(step.lds.serial, serial_words(step), shape.inner_depth, shape.requests, column, part)
    for rows, operand in zip(held[:-1], serial, strict=True):
        acc = mma_bf16(acc, rows, operand)
    token = (column < shape.requests).select(column * shape.block + slot, fx.Int32(0))
    base = resource(step.local.at("inner") + fx.Int64(tile) * (4 * TILE * TILE), 4 * TILE * TILE)
    hidden = load_words(base, (token * TILE + 4 * part) * 4, 16, dw.CM_DEV)
    values = [
        bf16r(hidden[i].bitcast(fx.Float32) + acc[i] + held[-1][i].bitcast(fx.Float32)) for i in range(4)
    ]  # fmt: skip
    store_inner(step, tile * TILE + 4 * part, column, values, column < shape.requests)


@dw.traced
def store_inner(step: Step, row: Any, column: Any, values: Any, writes: Any) -> None:
    """Four rows of a request's column to LDS."""
    if writes:
        for i in fx.range_constexpr(4):
            fx.ptr_store(values[i], step.lds.inner + (row + i) * step.shape.requests + column)


def lds_operands(base: Any, row_words: int, depth: int, requests: int, column: Any, part: Any) -> list[Any]:
    """bf16 rows [request][depth] in LDS as matrix columns: 4 words for each 32 values; zeros past the last request."""
    exists = column < requests
    row = exists.select(column, fx.Int32(0))
    kind = fx.Vector.make_type(4, fx.Int32)
    keep = exists.select(fx.Int32(-1), fx.Int32(0))
    operands = []
    for i in range(depth // UNIT):
        words = fx.Vector(
            fx.ptr_load(base + row * row_words + 4 * part + UNIT // 2 * i, result_type=kind), dtype=fx.Int32
        )
        operands.append(fx.Vector.from_elements([word & keep for word in words], fx.Int32))
    return operands


def bias_words(step: Step) -> int:
    """Words of one request's row in LDS `bias_input`."""
    return (step.shape.markov_rank + PAD) // 2


def bias_operands(step: Step, column: Any, part: Any) -> list[Any]:
    """What w2 is multiplied by, as matrix columns."""
    shape = step.shape
    return lds_operands(step.lds.bias_input, bias_words(step), shape.markov_rank, shape.requests, column, part)


@dw.traced
def gate(step: Step) -> None:
    """The head's elementwise part: LDS `inner` to `bias_input`, and for rnn the next state."""
    pairs = step.shape.markov_rank // 2
    for index in range(fx.Int32(fx.thread_idx.x), fx.Int32(step.shape.requests * pairs), fx.Int32(step.geo.threads)):
        gate_pair(step, fx.Int32(index) // pairs, fx.Int32(index) % pairs)


def gate_pair(step: Step, request: Any, pair: Any) -> None:
    """Values 2 pair, 2 pair + 1 of one request."""
    shape = step.shape
    place = step.lds.serial + request * serial_words(step) + pair
    word = fx.ptr_load(place)
    old = [bf_low(word), bf_high(word)]
    if shape.config.markov is MarkovKind.GATED:
        gates = [sigmoid(inner_value(step, 0, request, 2 * pair + half)) for half in (0, 1)]
        result = dw.bfpair(*[g * e for g, e in zip(gates, old, strict=True)])
    else:
        a, candidate, output = (
            [inner_value(step, which, request, 2 * pair + half) for half in (0, 1)] for which in (0, 1, 2)
        )
        gates = [sigmoid(value) for value in a]
        state = [
            g * s + (fx.Float32(1.0) - g) * tanh(u) for g, s, u in zip(gates, old, candidate, strict=True)
        ]  # fmt: skip
        fx.ptr_store(dw.bfpair(*state), place)
        result = dw.bfpair(*[tanh(value) for value in output])
    fx.ptr_store(result, step.lds.bias_input + request * bias_words(step) + pair)


def inner_value(step: Step, which: int, request: Any, row: Any) -> Any:
    """Float32 of the inner linear's row `row` of part `which`."""
    place = (row + which * step.shape.markov_rank) * step.shape.requests + request
    return fx.ptr_load(step.lds.inner + place)


def tanh(x: Any) -> Any:
    """tanh of Float32: a series below `SMALL`, else 1 - 2 / (e^2x + 1), the error about 2^-23 relative."""
    square = x * x
    series = fx.fma(square, fx.Float32(-17.0 / 315.0), fx.Float32(2.0 / 15.0))
    series = fx.fma(square, series, fx.Float32(-1.0 / 3.0))
    series = fx.fma(x * square, series, x)
    far = fx.Float32(1.0) - fx.Float32(2.0) / (dw.exp(x + x) + fx.Float32(1.0))
    small = (square < fx.Float32(SMALL * SMALL)) & (square == square)
    return small.select(series, far)
