"""The stages of one decoder layer between the hand-offs of attention and the all-reduces."""

from __future__ import annotations

from typing import Any

import flydsl.expr as fx

from monodraft.checkpoint.config import Activation
from monodraft.device import words as dw
from monodraft.device.numbers import bf16r
from monodraft.plan.shape import MX_BLOCK, TILE
from monodraft.stages.exchange import publish_stage, put_pair, put_to_owner, sum_rows, sum_slice, wait_stage
from monodraft.stages.linear import (
    PAIRS,
    Matrix,
    bf16_tokens,
    mx_tiles,
    quantised_tokens,
    store_tile,
    tile_word,
)
from monodraft.stages.rows import Values, embedded, normed_rows, plain, quantised
from monodraft.stages.scope import Step


def matrix(step: Step, name: str, layer: Any, row: int = 0, k: int = 0) -> Matrix:
    """Bases of an MXFP8 weight of `layer`, from row `row` of depth `k` on."""
    elements, scales = step.weights.at(name, layer), step.weights.at(f"{name}.scales", layer)
    return elements + row * k, scales + row * (k // MX_BLOCK)


def embed(step: Step) -> None:
    """Embedding rows and the first input norm: local `x8`."""
    weights = dw.norm_w(step.geo, step.weights.at("input_norm", 0))
    normed_rows(step, step.shape.rows, embedded(step), weights, quantised(step, "x8"), add=False)
    publish_stage(step, "embed", 0)


def qkv(step: Step, layer: Any) -> None:
    """q, k, v of the normed rows: local `qkv`, not normed yet."""
    shape = step.shape
    tokens = quantised_tokens(step, "x8", shape.hidden, shape.rows)

    def wait() -> None:
        wait_stage(step, "qkv", "input", layer)

    def finish(tile: Any) -> None:
        store_tile(step, "qkv", tile, shape.rows, shape.qkv_size)

    mx_tiles(step, [matrix(step, "qkv", layer)], shape.qkv_size // TILE, shape.hidden, wait, tokens, finish)
    publish_stage(step, "qkv", layer)


def o(step: Step, layer: Any) -> None:
    """This rank's partial of the o projection, to every rank."""
    tokens = bf16_tokens(step, "attention", step.shape.o_depth, step.shape.rows)
    producer = "attention" if step.shape.key_splits == 1 else "attention_join"
    row_parallel(step, "o", producer, "pairs.o", layer, step.shape.o_depth, tokens)


def down(step: Step, layer: Any) -> None:
    """This rank's partial of the down projection, to every rank."""
    tokens = bf16_tokens(step, "act", step.shape.ffn_depth, step.shape.rows)
    row_parallel(step, "down", "gate_up", "pairs.down", layer, step.shape.ffn_depth, tokens)


def row_parallel(step: Step, stage: str, producer: str, region: str, layer: Any, depth: int, tokens: Any) -> None:
    """Tiles of a linear cut along K, as tagged bf16 pairs into this rank's part of `region` on every rank."""
    shape = step.shape
    part = shape.rows * shape.hidden * 4

    def wait() -> None:
        wait_stage(step, stage, producer, layer)

    def finish(tile: Any) -> None:
        word, token, pair = tile_word(step, 0)
        if not shape.two_stage:
            put_pair(step, stage, region, layer, token * (shape.hidden // 2) + tile * PAIRS + pair, word, part)
            return
        slice_tiles = shape.hidden // TILE // shape.ranks
        index = token * (shape.hidden // shape.ranks // 2) + tile % slice_tiles * PAIRS + pair
        put_to_owner(step, stage, region, layer, index, word, tile // slice_tiles, part // shape.ranks)

    mx_tiles(step, [matrix(step, stage, layer)], shape.hidden // TILE, depth, wait, tokens, finish)


def gate_up(step: Step, layer: Any) -> None:
    """Gate and up side by side and their activation: local `act`, bf16."""
    shape = step.shape
    k, rows = shape.hidden, shape.rows
    tokens = quantised_tokens(step, "x8", k, rows)
    matrices = [matrix(step, "gate_up", layer), matrix(step, "gate_up", layer, shape.ffn, k)]

    def wait() -> None:
        wait_stage(step, "gate_up", "post", layer)

    def finish(tile: Any) -> None:
        store_activation(step, tile)

    mx_tiles(step, matrices, shape.ffn // TILE, k, wait, tokens, finish)
    publish_stage(step, "gate_up", layer)


def store_activation(step: Step, tile: Any) -> None:
    """bf16 of the activation of the gate (tile 0 in LDS) and up (tile 1) sums."""
    shape = step.shape
    token, pair = fx.thread_idx.x // PAIRS, fx.thread_idx.x % PAIRS
    row = [2 * pair, 2 * pair + 1]
    gates, ups = (
        [bf16r(dw.red_sum(step.geo, step.lds.red, t, r, token % TILE)) for r in row] for t in (0, 1)
    )  # fmt: skip
    word = dw.bfpair(*[gated(step, gate, up) for gate, up in zip(gates, ups, strict=True)])
    place = token * (shape.ffn_depth // 2) + tile * PAIRS + pair
    dw.st(step.local.at("act"), place, word, cm=dw.CM_DEV, nbytes=shape.rows * shape.ffn_depth * 2)


def gated(step: Step, gate: Any, up: Any) -> Any:
    """silu(gate) * up, or SwiGLU-OAI, in f32 one operation after another, as the reference."""
    config = step.shape.config
    if config.activation is Activation.SILU:
        return gate * sigmoid(gate) * up
    swiglu = config.swiglu
    assert swiglu is not None, "DraftConfig with SWIGLU_OAI has swiglu"
    limit = fx.Float32(swiglu.limit)
    gate = (gate > limit).select(limit, gate)
    up = (up > limit).select(limit, up)
    up = (up < -limit).select(-limit, up)
    return gate * sigmoid(gate * fx.Float32(swiglu.alpha)) * (up + fx.Float32(swiglu.beta))


def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x), Float32."""
    return fx.Float32(1.0) / (dw.exp(-x) + fx.Float32(1.0))


def reduced(step: Step, stage: str, region: str, layer: Any) -> Any:
    """Row source: the all-reduce of `region`."""

    def source(t: Any) -> Values:
        return sum_rows(step, stage, region, layer, t)

    return source


@dw.traced
def reduce_slice(step: Step, linear: str, layer: Any) -> None:
    """The stage between the two of an all-reduce: own rows of this rank's slice, summed and put to every rank."""
    for t in range(step.cta, step.shape.rows, step.shape.ctas):
        sum_slice(step, f"{linear}_sum", f"pairs.{linear}", f"pairs.{linear}.sum", layer, fx.Int32(t))


def o_sum(step: Step, layer: Any) -> None:
    """`reduce_slice` of o."""
    if step.shape.two_stage:
        reduce_slice(step, "o", layer)


def down_sum(step: Step, layer: Any) -> None:
    """`reduce_slice` of down."""
    if step.shape.two_stage:
        reduce_slice(step, "down", layer)


def reduced_region(step: Step, linear: str) -> str:
    """Where the all-reduce of o or down ends."""
    return f"pairs.{linear}.sum" if step.shape.two_stage else f"pairs.{linear}"


def post(step: Step, layer: Any) -> None:
    """All-reduce of o, residual, the norm before the FFN: local `x8`."""
    weights = dw.norm_w(step.geo, step.weights.at("post_norm", layer))
    source, store = reduced(step, "post", reduced_region(step, "o"), layer), quantised(step, "x8")
    normed_rows(step, step.shape.rows, source, weights, store, add=True)
    publish_stage(step, "post", layer)


def next_input(step: Step, layer: Any) -> None:
    """All-reduce of down, residual, the next layer's input norm: local `x8`; after the last layer the final norm.

    Rows are stored as bf16 in local `final` too: what the LM head reads after the last layer.
    """
    last = layer == step.shape.layers - 1
    following = last.select(fx.Int32(0), layer + 1)
    weight = last.select(step.weights.at("final_norm"), step.weights.at("input_norm", following))
    weights = dw.norm_w(step.geo, weight)
    quantise, keep = quantised(step, "x8"), plain(step, "final")

    def store(t: Any, values: Values) -> None:
        quantise(t, values)
        keep(t, values)

    normed_rows(
        step, step.shape.rows, reduced(step, "input", reduced_region(step, "down"), layer), weights, store, add=True
    )
    publish_stage(step, "input", layer + 1)
