"""Attention with the keys of a request and K/V head shared by several CTAs.

The shares agree on the largest score of every query (tagged pairs between CTAs of the rank, in the middle of a task: so
a CTA has one task only), and each leaves its part of the sums; then every row's parts are added in order and divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import flydsl.expr as fx

from monodraft.device import words as dw
from monodraft.device.geometry import TILE_ROWS
from monodraft.device.memory import load_words, resource
from monodraft.device.numbers import pack_pairs
from monodraft.stages.exchange import publish_stage, wait_stage
from monodraft.stages.scope import Step

if TYPE_CHECKING:
    from monodraft.stages.attention import Task


def largest(best: Any, scores: Sequence[Any]) -> Any:
    """Maximum of `best` and a lane's scores; NaN wins."""
    for score in scores:
        best = fx.max(best, score)
    return best


def largest_of_splits(task: Task, tile: Any, best: Any) -> Any:
    """The largest score of all shares, for query lane % 16 of row tile `tile`: put this share's, wait for others'."""
    step, splits = task.step, task.splits
    if splits == 1:
        return best
    vectors = step.shape.row_tiles * TILE_ROWS
    nbytes = vectors * splits * 8
    base = step.local.at("pairs.maxima", task.layer) + fx.Int64(task.pair) * nbytes
    first = (tile * TILE_ROWS + dw.lane() % TILE_ROWS) * splits
    step.note("put", "attention", "pairs.maxima")
    words = fx.Vector.from_elements([best.bitcast(fx.Int32), step.tag], fx.Int32)
    place = (dw.lane() < TILE_ROWS).select((first + task.split) * 2, fx.Int32(nbytes // 4))
    dw.st(base, place, words, cm=dw.CM_DEV, nbytes=nbytes)
    step.note("poll", "attention", "pairs.maxima")
    bases = [base + 64 * part for part in range(max(1, splits // 8))]
    limits = step.limits("attention<pairs.maxima", task.layer)
    rows = dw.poll_rows(bases, first, min(splits, 8), step.tag, *limits, cm=dw.CM_DEV)
    return largest(best, [word.bitcast(fx.Float32) for row in rows for word in row])


def store_partial(task: Task, tile: Any, sums: Sequence[Any], total: Any) -> None:
    """This share's sums and total, Float32, to local `partials` and `totals`; lanes as in `store_quotient`."""
    shape, step = task.step.shape, task.step
    vectors = shape.row_tiles * TILE_ROWS
    number = task.pair * task.splits + task.split
    vector = tile * TILE_ROWS + dw.lane() % TILE_ROWS
    nbytes = vectors * shape.head * 4
    base = step.local.at("partials") + fx.Int64(number) * nbytes
    for index, acc in enumerate(sums):
        place = vector * shape.head + TILE_ROWS * index + dw.lane() // TILE_ROWS * 4
        dw.st(base, place, acc, cm=dw.CM_DEV, nbytes=nbytes)
    totals = step.local.at("totals") + fx.Int64(number) * (vectors * 4)
    dw.st(totals, (dw.lane() < TILE_ROWS).select(vector, fx.Int32(vectors)), total, cm=dw.CM_DEV, nbytes=vectors * 4)


@dw.traced
def join(step: Step, layer: Any) -> None:
    """Shares added up in order and divided, row by row: local `partials` to `attention`."""
    wait_stage(step, "attention_join", "attention", layer)
    for t in range(step.cta, step.shape.rows, step.shape.ctas):
        join_row(step, fx.Int32(t))
    publish_stage(step, "attention_join", layer)


def join_row(step: Step, t: Any) -> None:
    """One query row, 4 values a thread."""
    shape = step.shape
    nbytes = shape.rows * shape.o_depth * 2
    for first in range(0, shape.q_size, 4 * step.geo.threads):
        column = fx.thread_idx.x * 4 + first
        head = column // shape.head
        vector = head % shape.group * shape.block + t % shape.block
        pair = t // shape.block * shape.kv_heads + head // shape.group
        inside = column < shape.q_size
        words = joined(step, pair, vector, column % shape.head, inside)
        place = inside.select((t * shape.o_depth + column) // 2, fx.Int32(nbytes // 4))
        dw.st(step.local.at("attention"), place, words, cm=dw.CM_DEV, nbytes=nbytes)


@dw.traced
def joined(step: Step, pair: Any, vector: Any, dim: Any, inside: Any) -> Any:
    """bf16 pair words of 4 values of a query vector (per lane): the shares' sums over their totals."""
    shape = step.shape
    splits, vectors = shape.key_splits, shape.row_tiles * TILE_ROWS
    count = shape.requests * shape.kv_heads * splits * vectors
    partials = resource(step.local.at("partials"), count * shape.head * 4)
    totals = resource(step.local.at("totals"), count * 4)
    sums = [fx.Float32(0.0) for _ in fx.range_constexpr(4)]
    total = fx.Float32(0.0)
    for split in range(fx.Int32(0), fx.Int32(splits), fx.Int32(1)):
        number = (pair * splits + fx.Int32(split)) * vectors + vector
        place = inside.select(number, fx.Int32(count))
        words = load_words(partials, (place * shape.head + dim) * 4, 16, dw.CM_DEV)
        total = total + load_words(totals, place * 4, 4, dw.CM_DEV)[0].bitcast(fx.Float32)
        sums = add_words(sums, words)
    return fx.Vector.from_elements(pack_pairs([value / total for value in sums]), fx.Int32)


def add_words(sums: Sequence[Any], words: Sequence[Any]) -> list[Any]:
    """sums plus the Float32 values of words."""
    return [value + word.bitcast(fx.Float32) for value, word in zip(sums, words, strict=True)]
