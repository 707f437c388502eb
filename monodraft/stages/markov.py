"""LM head, the serial Markov chain with its exchange of (score, id), and the confidence head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import flydsl.expr as fx
from flydsl.expr import gpu

from monodraft.checkpoint.config import MarkovKind
from monodraft.device import words as dw
from monodraft.device.bf16 import UNIT, mma_bf16
from monodraft.device.flydsl_names import wait_vmcnt_zero
from monodraft.device.gemv import row_base
from monodraft.device.geometry import TILE_ROWS
from monodraft.device.memory import load_words, resource
from monodraft.device.numbers import bf16r, unpack_pairs
from monodraft.device.random import gumbel, philox4x32
from monodraft.plan.lds import LANES
from monodraft.plan.shape import TILE
from monodraft.stages.exchange import wait_stage
from monodraft.stages.linear import bf16_group, bf16_tile
from monodraft.stages.markov_inner import (
    bias_operands,
    clear_state,
    hidden_ahead,
    hidden_part,
    serial_ahead,
    serial_part,
)
from monodraft.stages.scope import Step

NOTHING = float("-inf")
GREEDY_BELOW = 1e-5
"""Temperatures below this draft greedily."""
MOST = 3.4028234663852886e38
Pick = tuple[Any, Any]
"""(score Float32, id Int32): the best so far. Higher scores win, then lower ids."""


@dw.traced
def lm_head(step: Step) -> None:
    """Base logits of this CTA's vocabulary tiles: bf16 as Float32 to local `base` [tile][token][row]; own CTA reads.

    The first weights are requested before the wait for the rows, those of the next tile behind a tile. So are those of
    the inner linear of a gated or rnn head, which goes first: its hand-off is over when the base logits are done.
    """
    inner = hidden_ahead(step, fx.Int32(step.cta))
    held = base_ahead(step, fx.Int32(step.cta))
    wait_stage(step, "lm_head", "input", 0, of=step.shape.layers)
    if fx.const_expr(step.shape.inner_rows > 0):
        hidden_part(step, inner)
    for tile in range(step.cta, step.shape.vocab_tiles, step.shape.ctas):
        base_tile(step, fx.Int32(tile), held)
        held = base_ahead(step, fx.Int32(tile) + step.shape.ctas)
    own_stores_done()


def base_weights(step: Step, tile: Any) -> Any:
    """Address of the LM head's rows of a tile."""
    return step.weights.at("lm_head") + fx.Int64(tile) * (TILE * step.shape.hidden * 2)


def base_ahead(step: Step, tile: Any) -> list[Any]:
    """The first weight operands of a tile of base logits; nothing is read past the last tile."""
    exists = tile < step.shape.vocab_tiles
    weights = base_weights(step, exists.select(tile, fx.Int32(0)))
    return bf16_group(step, weights, step.shape.hidden, 0, exists)


def base_tile(step: Step, tile: Any, held: Sequence[Any]) -> None:
    """One tile of base logits; `held`: its `base_ahead`."""
    shape, tile_bytes = step.shape, 4 * TILE * TILE
    weights = base_weights(step, tile)
    acc = bf16_tile(step, weights, step.local.at("final"), shape.hidden, shape.rows, held=held)
    dw.red_store(step.geo, step.lds.red, 0, acc)
    gpu.barrier()
    place = fx.thread_idx.x % (TILE * TILE)
    value = bf16r(dw.red_sum(step.geo, step.lds.red, 0, place % TILE, place // TILE))
    base = step.local.at("base") + fx.Int64(tile) * tile_bytes
    dw.st(base, fx.thread_idx.x, value, cm=dw.CM_DEV, nbytes=tile_bytes)
    gpu.barrier()


def own_stores_done() -> None:
    """This CTA's stores are visible to its own later loads: every wave drains, then the CTA barrier."""
    wait_vmcnt_zero()
    gpu.barrier()


def chain_ahead(step: Step, slot: Any) -> list[Any]:
    """What a slot multiplies first, and nothing from slot `block` on: this wave's first rows of w2, then of the serial
    columns of the inner linear."""
    exists = slot < step.shape.block
    bias_tiles, inner_tiles = (
        exists.select(fx.Int32(tiles), fx.Int32(0)) for tiles in (step.shape.vocab_tiles, step.shape.inner_rows // TILE)
    )
    bias = bias_ahead(step, first_bias_tile(step), bias_tiles)
    return bias + serial_ahead(step, dw.wave(), inner_tiles)


@dw.traced
def chain(step: Step, held: Sequence[Any]) -> list[Any]:
    """Slot after slot: bias of the last token, this CTA's best, exchange, the next token. Ids end in LDS `chosen`.

    `held`: `chain_ahead` of slot 0. Gives `confidence_ahead` of this CTA's first row, requested before the last wait.
    """
    shape = step.shape
    anchors = dw.ld(step.local.at("anchors"), fx.thread_idx.x % TILE)
    if fx.const_expr(shape.config.markov is MarkovKind.RNN):
        clear_state(step)
    first_ids(step, anchors)
    weights = confidence_ahead(step, fx.Int32(shape.rows))
    gpu.barrier()
    for slot in range(fx.Int32(0), fx.Int32(shape.block), fx.Int32(1)):
        held, weights = draft_slot(step, fx.Int32(slot), held)
        gpu.barrier()
    return weights


def draft_slot(step: Step, slot: Any, held: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """One slot of the chain; `held`: its `chain_ahead`. Gives that of the next slot, and after the last one the
    `confidence_ahead` of this CTA's first row: both requested before the wait for the candidates."""
    rows_of_w2 = step.shape.markov_rank // UNIT
    if step.shape.inner_rows:
        serial_part(step.pinned(slot), slot, held[rows_of_w2:])
    offer(step.pinned(slot), slot, best_of_tiles(step.pinned(slot), slot, held[:rows_of_w2]))
    held = chain_ahead(step.pinned(slot), slot + 1)
    last = slot + 1 == step.shape.block
    weights = confidence_ahead(step.pinned(slot), last.select(fx.Int32(step.cta), fx.Int32(step.shape.rows)))
    take(step.pinned(slot), slot)
    return held, weights


def first_bias_tile(step: Step) -> Any:
    """The first tile of w2 that this wave takes."""
    return fx.Int32(step.cta) + step.shape.ctas * dw.wave()


def bias_ahead(step: Step, tile: Any, tiles: Any) -> list[Any]:
    """Weight operands of a tile of w2, 16 rows; nothing is read from tile `tiles` on."""
    row_bytes = 2 * step.shape.markov_rank
    exists = tile < tiles
    rows = step.weights.at("markov_w2") + fx.Int64(exists.select(tile, fx.Int32(0))) * (TILE * row_bytes)
    weights = resource(rows, TILE * row_bytes)
    lane = dw.lane()
    place = exists.select(lane % TILE_ROWS * row_bytes + 16 * (lane // TILE_ROWS), fx.Int32(TILE * row_bytes))
    units = range(step.shape.markov_rank // UNIT)
    return [fx.Vector.from_elements(load_words(weights, place + 2 * UNIT * i, 16, 0), fx.Int32) for i in units]


@dw.traced
def first_ids(step: Step, anchors: Any) -> None:
    """The anchors are what slot 0 follows."""
    if fx.thread_idx.x < TILE:
        fx.ptr_store(anchors, step.lds.chosen + fx.thread_idx.x)


@dw.traced
def best_of_tiles(step: Step, slot: Any, held: Sequence[Any]) -> Pick:
    """A lane's best of this wave's tiles for request lane % 16: corrected logits = base + bf16(w2 e). `held`: w2's rows
    of the first tile."""
    shape, ctas = step.shape, step.shape.ctas
    column, part = dw.lane() % TILE, dw.lane() // TILE_ROWS
    request = (column < shape.requests).select(column, fx.Int32(0))
    previous = fx.ptr_load(step.lds.chosen + slot * TILE + request)
    e = embedding_operands(step, previous, column, part) if not shape.inner_rows else bias_operands(step, column, part)
    noise = Noise.of(step, slot, column)
    best, chosen = fx.Float32(NOTHING), fx.Int32(shape.config.vocab_size)
    first_id = step.rank * shape.vocab
    for tile in range(step.cta + ctas * dw.wave(), shape.vocab_tiles, ctas * step.geo.waves):
        corrected = corrected_logits(step, fx.Int32(tile), slot, column, part, e, held)
        held = bias_ahead(step, fx.Int32(tile) + ctas * step.geo.waves, fx.Int32(shape.vocab_tiles))
        first = fx.Int32(tile) * TILE + part * 4
        scores = scores_of(step, corrected, first, first_id + first, noise)
        for i in fx.range_constexpr(4):
            row = first + i
            score = scores[i]
            better = score > best
            chosen = (better | (chosen == shape.config.vocab_size)).select(first_id + row, chosen)
            best = better.select(score, best)
    return best, chosen


@dataclass(frozen=True)
class Noise:
    """What keys a lane's draws: its request's temperature, seed (two words) and query position."""

    temperature: Any
    seed: tuple[Any, Any]
    position: Any

    @staticmethod
    def of(step: Step, slot: Any, column: Any) -> Noise | None:
        """Of request `column` in `slot`; None where launches of the plan cannot sample."""
        if not step.shape.sampled:
            return None
        seed = dw.ld(step.local.at("seeds"), column * 2, 2)
        temperature = dw.ld(step.local.at("temperatures"), column, dtype=fx.Float32)
        return Noise(temperature, (seed[0], seed[1]), dw.ld(step.local.at("starts"), column) + slot)


def scores_of(step: Step, logits: Sequence[Any], first: Any, first_id: Any, noise: Noise | None) -> list[Any]:
    """Scores of vocabulary rows first .. first + 3, ids first_id ..: usable logits, with a temperature fl32(logit / T)
    plus Gumbel noise."""
    exists = [first + i < step.shape.vocab for i in range(4)]
    greedy = [usable(logit, there) for logit, there in zip(logits, exists, strict=True)]
    if noise is None:
        return greedy
    warm = noise.temperature >= fx.Float32(GREEDY_BELOW)
    divisor = warm.select(noise.temperature, fx.Float32(1.0))
    words = philox4x32([first_id // 4, noise.position, fx.Int32(0), fx.Int32(0)], noise.seed)
    sampled = [
        usable(logit / divisor, there) + gumbel(word) for logit, there, word in zip(logits, exists, words, strict=True)
    ]
    return [warm.select(a, b) for a, b in zip(sampled, greedy, strict=True)]


def usable(logit: Any, exists: Any) -> Any:
    """The logit as a score: NaN and rows past the vocabulary are -inf, +inf the greatest finite number."""
    logit = (logit > fx.Float32(MOST)).select(fx.Float32(MOST), logit)
    return (exists & (logit == logit)).select(logit, fx.Float32(NOTHING))


def embedding_operands(step: Step, previous: Any, column: Any, part: Any) -> list[Any]:
    """w1 rows of the previous ids as matrix columns: 4 words for each 32 values; zeros past the last request."""
    shape = step.shape
    row_bytes = 2 * shape.markov_rank
    nbytes = shape.config.vocab_size * row_bytes
    where = resource(step.weights.at("markov_w1"), nbytes)
    place = (column < shape.requests).select(previous * row_bytes + 16 * part, fx.Int32(nbytes))
    steps = range(shape.markov_rank // UNIT)
    return [fx.Vector.from_elements(load_words(where, place + 2 * UNIT * i, 16, 0), fx.Int32) for i in steps]


def corrected_logits(
    step: Step, tile: Any, slot: Any, column: Any, part: Any, e: Sequence[Any], weights: Sequence[Any]
) -> list[Any]:
    """fl32(base + bf16(w2 e)) of vocabulary rows 16 tile + 4 part .. + 3, request `column`; to local `logits` too.
    `weights`: `bias_ahead` of the tile."""
    shape = step.shape
    acc = fx.Vector.filled(4, 0.0, fx.Float32)
    for rows, operand in zip(weights, e, strict=True):
        acc = mma_bf16(acc, rows, operand)
    token = column * shape.block + slot
    base = resource(step.local.at("base") + fx.Int64(tile) * (4 * TILE * TILE), 4 * TILE * TILE)
    logits = load_words(base, (token * TILE + 4 * part) * 4, 16, dw.CM_DEV)
    corrected = [logits[i].bitcast(fx.Float32) + bf16r(acc[i]) for i in range(4)]
    width = shape.vocab_tiles * TILE
    nbytes = shape.rows * width * 4
    place = (column < shape.requests).select(token * width + tile * TILE + 4 * part, fx.Int32(nbytes // 4))
    dw.st(step.local.at("logits"), place, fx.Vector.from_elements(corrected, fx.Float32), nbytes=nbytes)
    return corrected


def better_pick(a: Pick, b: Pick) -> Pick:
    """The higher score, then the lower id."""
    first = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
    return first.select(a[0], b[0]), first.select(a[1], b[1])


def best_of_lanes(pick: Pick, distances: Sequence[int]) -> Pick:
    """The best over lanes `distances` apart, in all of them."""
    for distance in distances:
        other = fx.gpu.shuffle_xor(pick[0], distance, LANES), fx.gpu.shuffle_xor(pick[1], distance, LANES)
        pick = better_pick(pick, other)
    return pick


def best_of_waves(step: Step, column: Any) -> Pick:
    """The best of the CTA's waves, from LDS `picks` [wave][16][score, id], for entry `column` (per lane)."""
    kind = fx.Vector.make_type(2, fx.Int32)
    picks: list[Pick] = []
    for wave in range(step.geo.waves):
        pair = fx.Vector(fx.ptr_load(step.lds.picks + (wave * TILE + column) * 2, result_type=kind), dtype=fx.Int32)
        picks.append((pair[0].bitcast(fx.Float32), pair[1]))
    best = picks[0]
    for pick in picks[1:]:
        best = better_pick(best, pick)
    return best


@dw.traced
def keep_pick(step: Step, pick: Pick, column: Any, writes: Any) -> None:
    """This wave's pick of entry `column` to LDS, from the lanes where `writes`."""
    if writes:
        words = fx.Vector.from_elements([pick[0].bitcast(fx.Int32), pick[1]], fx.Int32)
        fx.ptr_store(words, step.lds.picks + (dw.wave() * TILE + column) * 2)


def candidate_bytes(step: Step) -> int:
    """Bytes of the candidates of one slot and request: 16 an entry, one entry a CTA of every rank."""
    return step.shape.ranks * step.shape.ctas * 16


def candidates(step: Step, memory: Any, slot: Any, request: Any) -> Any:
    """Address of the candidates of one slot and request."""
    index = fx.Int64(slot * step.shape.requests + request)
    return memory.at("candidates") + index * candidate_bytes(step)


def offer(step: Step, slot: Any, pick: Pick) -> None:
    """This CTA's best of every request to every rank."""
    pick = best_of_lanes(pick, (16, 32))
    column = dw.lane() % TILE
    keep_pick(step, pick, column, dw.lane() < TILE)
    gpu.barrier()
    score, chosen = best_of_waves(step, column)
    step.note("put", "chain", "candidates")
    words = fx.Vector.from_elements([score.bitcast(fx.Int32), step.tag, chosen, step.tag], fx.Int32)
    entry = step.rank * step.shape.ctas + step.cta
    nbytes = step.shape.requests * candidate_bytes(step)
    place = column * candidate_bytes(step) // 4 + entry * 4
    stores = (fx.thread_idx.x < step.shape.requests).select(place, fx.Int32(nbytes // 4))
    for peer in step.peers:
        dw.st(candidates(step, peer, slot, fx.Int32(0)), stores, words, cm=dw.CM_SYS, nbytes=nbytes)


def take(step: Step, slot: Any) -> None:
    """Waits for all candidates of a slot; the winners become the ids that the next slot follows."""
    entries = step.shape.ranks * step.shape.ctas
    each = next(n for n in (1, 2, 4) if n * step.geo.threads >= entries)
    for request in range(step.shape.requests):
        step.note("poll", "chain", "candidates")
        base = candidates(step, step.own, slot, fx.Int32(request))
        limits = step.limits("chain<candidates", slot)
        words = dw.poll_rows(
            [base], fx.thread_idx.x * 2 * each, 2 * each, step.tag, *limits, nbytes=candidate_bytes(step)
        )[0]
        picks: list[Pick] = []
        for i in range(each):
            exists = fx.thread_idx.x * each + i < entries
            score = exists.select(words[2 * i].bitcast(fx.Float32), fx.Float32(NOTHING))
            picks.append((score, exists.select(words[2 * i + 1], fx.Int32(step.shape.config.vocab_size))))
        pick = picks[0]
        for other in picks[1:]:
            pick = better_pick(pick, other)
        pick = best_of_lanes(pick, (1, 2, 4, 8, 16, 32))
        gpu.barrier()
        keep_pick(step, pick, fx.Int32(request), dw.lane() == 0)
        gpu.barrier()
        settle(step, slot, request, best_of_waves(step, fx.Int32(request))[1])


@dw.traced
def settle(step: Step, slot: Any, request: int, chosen: Any) -> None:
    """The id of a slot: to LDS for the next slot, and (CTA 0) to local `tokens`. Always an id of the vocabulary."""
    last, tokens = step.shape.config.vocab_size - 1, step.local.at("tokens")
    # What a failed wait leaves behind is no id.
    chosen = fx.max(fx.min(chosen, fx.Int32(last)), fx.Int32(0))
    if fx.thread_idx.x == 0:
        fx.ptr_store(chosen, step.lds.chosen + (slot + 1) * TILE + request)
        if step.cta == 0:
            dw.st(tokens, slot + request * step.shape.block, chosen)


@dw.traced
def confidence(step: Step, held: Sequence[Any]) -> None:
    """Logit of P(accepted) of every query row: p . [h; w1 row of the previous id] + b, Float32; the CTA's own rows.
    `held`: `confidence_ahead` of the first."""
    for t in range(step.cta, step.shape.rows, step.shape.ctas):
        confidence_row(step, fx.Int32(t), held)
        held = confidence_ahead(step, fx.Int32(t) + step.shape.ctas)


def confidence_ahead(step: Step, t: Any) -> list[Any]:
    """Weights of query row `t`: the bias, then a thread's 16 of the hidden part and (with_markov) of w1's, as words;
    nothing is read past the last row. Empty without a confidence head."""
    shape = step.shape
    if not shape.config.has_confidence:
        return []
    exists = t < shape.rows
    bias = load_words(resource(step.weights.at("confidence_bias"), 4), exists.select(fx.Int32(0), fx.Int32(4)), 4, 0)
    weight = step.weights.at("confidence")
    words = bias + sixteen_weights(weight, shape.hidden, exists)
    if shape.config.confidence_with_markov:
        words += sixteen_weights(weight + 2 * shape.hidden, shape.markov_rank, exists)
    return words


def sixteen_weights(weight: Any, size: int, exists: Any) -> list[Any]:
    """A thread's 16 values of bf16 weight[size] as 8 words; zeros, and no bytes read, where they do not exist."""
    place = exists.select(fx.thread_idx.x * 32, fx.Int32(2 * size))
    return load_words(resource(weight, 2 * size), place, 32, 0)


def confidence_row(step: Step, t: Any, held: Sequence[Any]) -> None:
    """Confidence of query row `t`; `held`: its `confidence_ahead`."""
    shape = step.shape
    request, slot = t // shape.block, t % shape.block
    total = dot_row(step.local.at("final"), t, held[1:9], shape.hidden, dw.CM_DEV)
    if shape.config.confidence_with_markov:
        previous = dw.first_lane(fx.ptr_load(step.lds.chosen + slot * TILE + request))
        total = total + dot_row(step.weights.at("markov_w1"), previous, held[9:], shape.markov_rank, 0)
    result = cta_sum(step, total) + held[0].bitcast(fx.Float32)
    place = (fx.thread_idx.x == 0).select(t, fx.Int32(shape.rows))
    dw.st(step.local.at("confidence"), place, result, nbytes=4 * shape.rows)


def dot_row(rows: Any, t: Any, weights: Sequence[Any], size: int, cm: int) -> Any:
    """A thread's part of bf16 row `t` of rows[..][size] times `sixteen_weights`, Float32."""
    row = resource(row_base(rows, t, 2 * size), 2 * size)
    x, w = unpack_pairs(load_words(row, fx.thread_idx.x * 32, 32, cm)), unpack_pairs(weights)
    total = x[0] * w[0]
    for a, b in zip(x[1:], w[1:], strict=True):
        total = fx.fma(a, b, total)
    return total


@dw.traced
def cta_sum(step: Step, x: Any) -> Any:
    """Sum of `x` over the threads of the CTA: lanes pairwise, then waves in order; the same bits in every thread."""
    for distance in fx.range_constexpr(6):
        x = x + fx.gpu.shuffle_xor(x, 1 << distance, LANES)
    gpu.barrier()
    if dw.lane() == 0:
        fx.ptr_store(x, step.lds.norm + dw.wave())
    gpu.barrier()
    return wave_total(step)


def wave_total(step: Step) -> Any:
    """Sum of the waves' words in LDS `norm`, in order."""
    total = fx.ptr_load(step.lds.norm)
    for wave in range(1, step.geo.waves):
        total = total + fx.ptr_load(step.lds.norm + wave)
    return total
