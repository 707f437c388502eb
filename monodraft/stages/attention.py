"""Window attention over the draft pool and the block: one task a request and K/V head.

A wave owns row tiles of 16 query vectors (heads of the group x rows of the block); keys are walked 32 at a time,
twice: once for the largest score, once for the weights and the sum. Of a score tile, lane l holds keys 4 g .. 4 g + 3
(g = l // 16) of query l % 16; with keys dealt to K in the same order, these are the operand of the second product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import flydsl.expr as fx
from flydsl.expr import gpu

from monodraft.device import words as dw
from monodraft.device.bf16 import UNIT, mma_bf16
from monodraft.device.geometry import TILE_ROWS
from monodraft.device.memory import load_words, resource
from monodraft.device.numbers import pack_pairs, unpack_pairs
from monodraft.plan.layout import pool_bytes
from monodraft.plan.lds import PAD
from monodraft.stages.attention_shares import join, largest, largest_of_splits, store_partial
from monodraft.stages.exchange import publish_stage, wait_stage
from monodraft.stages.heads import VALUES, head_words, lane_values, lanes_of, normed_and_rotated
from monodraft.stages.scope import Step

NOTHING = float("-inf")


@dataclass(frozen=True)
class Task:
    """One request and K/V head of one layer, and which share of its keys; `start` is the anchor's position."""

    step: Step
    layer: Any
    request: Any
    head: Any
    start: Any
    split: Any

    @property
    def splits(self) -> int:
        """Shares that the keys are cut into; the last one has the block's own keys too."""
        return self.step.shape.key_splits

    @property
    def pair(self) -> Any:
        """Number of the request and K/V head."""
        return self.request * self.step.shape.kv_heads + self.head

    @property
    def query_vectors(self) -> int:
        """Query vectors: heads of the group times rows of the block."""
        return self.step.shape.group * self.step.shape.block


@dw.traced
def attention(step: Step, layer: Any) -> None:
    """Attention of one layer: local `qkv` and the pool to local `attention`."""
    shape = step.shape
    window = dw.first_lane(dw.ld(step.weights.at("windows"), layer))
    held = norm_words(step, layer, fx.Int32(step.cta))
    wait_stage(step, "attention", "qkv", layer)
    starts = step.local.at("starts")
    for index in range(step.cta, tasks_of(step), shape.ctas):
        pair, split = fx.Int32(index) // shape.key_splits, fx.Int32(index) % shape.key_splits
        request = pair // shape.kv_heads
        start = dw.first_lane(dw.ld(starts, request))
        task = Task(step, layer, request, pair % shape.kv_heads, start, split)
        gather_block(task, held)
        gpu.barrier()
        attend_tiles(task, window)
        held = norm_words(step, layer, fx.Int32(index) + shape.ctas)
        gpu.barrier()
    publish_stage(step, "attention", layer)
    if fx.const_expr(shape.key_splits > 1):
        join(step, layer)


def tasks_of(step: Step) -> int:
    """Tasks of attention: shares of the keys of every request and K/V head."""
    return step.shape.requests * step.shape.kv_heads * step.shape.key_splits


def norm_words(step: Step, layer: Any, task: Any) -> list[Any]:
    """`head_words` of the queries' and the keys' norms for a task, one after the other; nothing past the last task."""
    exists = task < tasks_of(step)
    return [word for name in ("q_norm", "k_norm") for word in head_words(step, name, layer, exists)]


def gather_block(task: Task, held: Sequence[Any]) -> None:
    """Queries and block keys, normed and rotated, to LDS `vectors`; block values, transposed, to LDS `values`.
    `held`: the task's `norm_words`."""
    gather_vectors(task, held)
    gather_values(task)


def qkv_resource(task: Task) -> tuple[Any, int]:
    """Resource of `qkv` and the bytes of a row."""
    shape = task.step.shape
    return resource(task.step.local.at("qkv"), shape.rows * shape.qkv_size * 2), shape.qkv_size * 2


def gather_vectors(task: Task, held: Sequence[Any]) -> None:
    """Vector v < 16 row_tiles: query of head v // block, row v % block, zeros past the last; then 32 block keys."""
    shape, step = task.step.shape, task.step
    lanes, queries = lanes_of(shape.head), shape.row_tiles * TILE_ROWS
    at_once = step.geo.threads // lanes
    raw, row_bytes = qkv_resource(task)
    words_each = VALUES // 2
    weights = unpack_pairs(held[:words_each]), unpack_pairs(held[words_each:])
    dim = fx.thread_idx.x % lanes * VALUES
    for first in range(0, queries + UNIT, at_once):
        vector = fx.thread_idx.x // lanes + first
        is_query = vector < queries
        key = vector - queries
        row = is_query.select(vector % shape.block, key)
        exists = is_query.select(vector < task.query_vectors, key < shape.block)
        query_column = (task.head * shape.group + vector // shape.block) * shape.head
        column = is_query.select(query_column, shape.q_size + task.head * shape.head) + dim
        place = (task.request * shape.block + row) * row_bytes + column * 2
        values = lane_values(raw, exists.select(place, fx.Int32(shape.rows * row_bytes)), dw.CM_DEV)
        chosen = [is_query.select(a, b) for a, b in zip(*weights, strict=True)]
        position = task.start + exists.select(row, fx.Int32(0))
        words = pack_pairs(normed_and_rotated(step, values, chosen, position))
        store_vector(step, vector, dim, words, vector < queries + UNIT)


@dw.traced
def store_vector(step: Step, vector: Any, dim: Any, words: Sequence[Any], inside: Any) -> None:
    """A lane's 8 bf16 values to row `vector` of LDS `vectors`."""
    if inside:
        place = step.lds.vectors + (vector * (step.shape.head + PAD) + dim) // 2
        fx.ptr_store(fx.Vector.from_elements(words, fx.Int32), place)


def gather_values(task: Task) -> None:
    """Block values [row][D] to LDS [D][32 + PAD], two keys a word; keys past the block are zeros."""
    shape, step = task.step.shape, task.step
    _, row_bytes = qkv_resource(task)
    pairs = UNIT // 2
    for first in range(0, shape.head * pairs, step.geo.threads):
        item = fx.thread_idx.x + first
        dim, pair = item % shape.head, item // shape.head
        column = shape.q_size + shape.kv_size + task.head * shape.head + dim
        low, high = (_raw_value(task, 2 * pair + half, column, row_bytes) for half in (0, 1))
        fx.ptr_store(low | (high << 16), step.lds.values + dim * ((UNIT + PAD) // 2) + pair)


def _raw_value(task: Task, key: Any, column: Any, row_bytes: int) -> Any:
    """bf16 bits of block row `key`, column `column` of `qkv`; 0 past the block."""
    shape = task.step.shape
    place = (task.request * shape.block + key) * (row_bytes // 2) + column
    place = (key < shape.block).select(place, fx.Int32(shape.rows * row_bytes // 2))
    base = task.step.local.at("qkv")
    return fx.Int32(dw.ldn(base, shape.rows * row_bytes, place, 1, fx.Uint16, cm=dw.CM_DEV))


@dw.traced
def attend_tiles(task: Task, window: Any) -> None:
    """All row tiles of this wave."""
    for tile in range(dw.wave(), task.step.shape.row_tiles, task.step.geo.waves):
        attend_tile(task, window, fx.Int32(tile))


@dw.traced
def attend_tile(task: Task, window: Any, tile: Any) -> None:
    """One row tile: two walks over the keys, then the result."""
    shape = task.step.shape
    queries = vector_operands(task, tile * TILE_ROWS)
    row = (tile * TILE_ROWS + dw.lane() % TILE_ROWS) % shape.block
    first, chunks = visible_chunks(task, window)
    best = fx.Float32(NOTHING)
    for chunk in range(first, chunks, fx.Int32(1)):
        scores = pool_scores(task, queries, row, window, fx.Int32(chunk))
        best = largest(best, scores)
    best = across_groups(largest(best, block_scores(task, queries, row, window)), fx.max)
    best = largest_of_splits(task, tile, best)
    total = fx.Float32(0.0)
    sums = [fx.Vector.filled(4, 0.0, fx.Float32) for _ in fx.range_constexpr(shape.head // TILE_ROWS)]
    for chunk in range(first, chunks, fx.Int32(1)):
        weights = softmax_weights(pool_scores(task, queries, row, window, fx.Int32(chunk)), best)
        total = total + plain_sum(weights)
        sums = accumulate(sums, weights, pool_values(task, window, fx.Int32(chunk)))
    weights = softmax_weights(block_scores(task, queries, row, window), best)
    total = across_groups(total + plain_sum(weights), lambda a, b: a + b)
    sums = accumulate(sums, weights, block_values(task))
    store_result(task, tile, sums, total)


def visible_chunks(task: Task, window: Any) -> tuple[Any, Any]:
    """First and one past the last 32-key chunk of this share of the context that some row of the block sees."""
    first, end = oldest(task, window) // UNIT, (task.start + (UNIT - 1)) // UNIT
    if task.splits == 1:
        return first, end
    share = (end - first + (task.splits - 1)) // task.splits
    begin = fx.min(first + task.split * share, end)
    return begin, fx.min(begin + share, end)


def oldest(task: Task, window: Any) -> Any:
    """First context position that row 0 sees."""
    return fx.max(task.start - (window - 1), fx.Int32(0))


def page_of(task: Task, chunk: Any) -> Any:
    """Physical page of a chunk of the request's context."""
    shape = task.step.shape
    logical = chunk // (shape.page_size // UNIT)
    table = task.step.local.at("page_table")
    return dw.first_lane(dw.ld(table, task.request * shape.table_pages + logical))


def vector_operands(task: Task, first: Any) -> list[Any]:
    """Operands of 16 LDS vectors from vector `first`: a Vector of 4 words for each 32 dims."""
    step = task.step
    row, part = dw.lane() % TILE_ROWS, dw.lane() // TILE_ROWS
    base = step.lds.vectors + ((first + row) * (step.shape.head + PAD) + 8 * part) // 2
    kind = fx.Vector.make_type(4, fx.Int32)
    steps = range(step.shape.head // UNIT)
    return [fx.Vector(fx.ptr_load(base + UNIT // 2 * i, result_type=kind), dtype=fx.Int32) for i in steps]


def score_tiles(queries: Sequence[Any], keys: Sequence[Sequence[Any]], scale: float) -> list[Any]:
    """Scaled scores of two tiles of 16 keys: 8 Float32 a lane, keys 4 g .. + 3 of tile 0, then of tile 1."""
    scores: list[Any] = []
    for tile in keys:
        acc = fx.Vector.filled(4, 0.0, fx.Float32)
        for key, query in zip(tile, queries, strict=True):
            acc = mma_bf16(acc, key, query)
        scores += [acc[i] * fx.Float32(scale) for i in range(4)]
    return scores


def lane_keys() -> list[Any]:
    """The 8 keys (0 .. 31 of a chunk) whose scores this lane holds."""
    first = dw.lane() // TILE_ROWS * 4
    return [first + TILE_ROWS * tile + i for tile in (0, 1) for i in range(4)]


def pool_scores(task: Task, queries: Sequence[Any], row: Any, window: Any, chunk: Any) -> list[Any]:
    """Scores of a context chunk; -inf where the row at start + `row` does not see the key."""
    shape = task.step.shape
    row_bytes, slots = 2 * shape.head, shape.page_size
    base = pool_base(task, task.step.keys, page_of(task, chunk))
    where = resource(base, slots * row_bytes)
    first = chunk * UNIT % slots + dw.lane() % TILE_ROWS
    part = dw.lane() // TILE_ROWS * 16
    keys = [
        [
            fx.Vector.from_elements(
                load_words(where, (first + TILE_ROWS * tile) * row_bytes + part + 2 * UNIT * i, 16, dw.CM_DEV), fx.Int32
            )
            for i in range(shape.head // UNIT)
        ]
        for tile in (0, 1)
    ]
    scores = score_tiles(queries, keys, shape.config.score_scale)
    return [
        _context_visible(task, row, window, chunk * UNIT + key).select(score, fx.Float32(NOTHING))
        for score, key in zip(scores, lane_keys(), strict=True)
    ]


def _context_visible(task: Task, row: Any, window: Any, position: Any) -> Any:
    return (position < task.start) & (task.start + row - position < window)


def block_scores(task: Task, queries: Sequence[Any], row: Any, window: Any) -> list[Any]:
    """Scores of the block's own keys; -inf past the block, outside the window, and in all shares but the last."""
    shape = task.step.shape
    block = fx.Int32(shape.block)
    if task.splits > 1:
        block = (task.split == task.splits - 1).select(block, fx.Int32(0))
    first = shape.row_tiles * TILE_ROWS
    keys = [vector_operands(task, first + TILE_ROWS * tile) for tile in (0, 1)]
    scores = score_tiles(queries, keys, shape.config.score_scale)
    return [
        _block_visible(block, row, window, key).select(score, fx.Float32(NOTHING))
        for score, key in zip(scores, lane_keys(), strict=True)
    ]


def _block_visible(block: Any, row: Any, window: Any, key: Any) -> Any:
    return (key < block) & (row - key < window) & (key - row < window)


def pool_base(task: Task, pool: Any, page: Any) -> Any:
    """Address of a page of this task's layer and K/V head: page_size x D bf16."""
    shape = task.step.shape
    page_bytes = shape.page_size * shape.head * 2
    return pool + fx.Int64(task.layer) * pool_bytes(shape) + fx.Int64(page * shape.kv_heads + task.head) * page_bytes


def pool_values(task: Task, window: Any, chunk: Any) -> list[Any]:
    """Value operands of a context chunk, one for each 16 dims; keys that no row sees are zeros, whatever is stored."""
    shape = task.step.shape
    row_bytes = 2 * shape.page_size
    where = resource(pool_base(task, task.step.values, page_of(task, chunk)), shape.head * row_bytes)
    dim, part = dw.lane() % TILE_ROWS, dw.lane() // TILE_ROWS * 8
    first = chunk * UNIT % shape.page_size * 2 + part
    keep = [_kept(task, window, chunk * UNIT + key) for key in lane_keys()[0::2]]
    operands = []
    for tile in range(shape.head // TILE_ROWS):
        place = (dim + TILE_ROWS * tile) * row_bytes + first
        halves = (load_words(where, place + 2 * TILE_ROWS * half, 8, dw.CM_DEV) for half in (0, 1))
        words = [word & mask for word, mask in zip((w for half in halves for w in half), keep, strict=True)]
        operands.append(fx.Vector.from_elements(words, fx.Int32))
    return operands


def _kept(task: Task, window: Any, position: Any) -> Any:
    """Mask of the bf16 pair of keys at `position` (low half) and position + 1."""
    first = oldest(task, window)
    low = (position >= first) & (position < task.start)
    high = (position + 1 >= first) & (position + 1 < task.start)
    zero = fx.Int32(0)
    return low.select(fx.Int32(0xFFFF), zero) | high.select(fx.Int32(-0x10000), zero)


def block_values(task: Task) -> list[Any]:
    """Value operands of the block's own keys, from LDS."""
    shape, step = task.step.shape, task.step
    dim, part = dw.lane() % TILE_ROWS, dw.lane() // TILE_ROWS * 2
    kind = fx.Vector.make_type(2, fx.Int32)
    operands = []
    for tile in range(shape.head // TILE_ROWS):
        base = step.lds.values + (dim + TILE_ROWS * tile) * ((UNIT + PAD) // 2) + part
        halves = [fx.Vector(fx.ptr_load(base + 8 * half, result_type=kind), dtype=fx.Int32) for half in (0, 1)]
        operands.append(fx.Vector.from_elements([word for half in halves for word in half], fx.Int32))
    return operands


def across_groups(x: Any, join: Callable[[Any, Any], Any]) -> Any:
    """`join` over the four groups of 16 lanes, which hold different keys of the same query."""
    for distance in (16, 32):
        x = join(x, fx.gpu.shuffle_xor(x, distance, 64))
    return x


def softmax_weights(scores: Sequence[Any], best: Any) -> list[Any]:
    """exp(score - best), Float32; 0 for -inf."""
    return [dw.exp(score - best) for score in scores]


def plain_sum(values: Sequence[Any]) -> Any:
    """Sum of a lane's values, in order."""
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def accumulate(sums: Sequence[Any], weights: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """sums [16 dims][16 queries] of each dim tile plus values times bf16(weights)."""
    operand = fx.Vector.from_elements(pack_pairs(weights), fx.Int32)
    return [mma_bf16(acc, value, operand) for acc, value in zip(sums, values, strict=True)]


def store_result(task: Task, tile: Any, sums: Sequence[Any], total: Any) -> None:
    """What the tile's walk gave: the result, or where keys are split this share's part of it."""
    if task.splits == 1:
        store_quotient(task, tile, sums, total)
    else:
        store_partial(task, tile, sums, total)


def store_quotient(task: Task, tile: Any, sums: Sequence[Any], total: Any) -> None:
    """bf16(sums / total) to local `attention` [row][head x D]; lane l holds query l % 16, dims 4 g .. 4 g + 3."""
    shape, step = task.step.shape, task.step
    vector = tile * TILE_ROWS + dw.lane() % TILE_ROWS
    head = task.head * shape.group + vector // shape.block
    row = task.request * shape.block + vector % shape.block
    nbytes = shape.rows * shape.o_depth * 2
    for index, acc in enumerate(sums):
        dim = TILE_ROWS * index + dw.lane() // TILE_ROWS * 4
        words = fx.Vector.from_elements(pack_pairs([acc[i] / total for i in range(4)]), fx.Int32)
        place = (row * shape.o_depth + head * shape.head + dim) // 2
        place = (vector < task.query_vectors).select(place, fx.Int32(nbytes // 4))
        dw.st(step.local.at("attention"), place, words, cm=dw.CM_DEV, nbytes=nbytes)
