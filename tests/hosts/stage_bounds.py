"""Every stage of a launch against float64 of the kernel's own inputs to that stage, within what the stage may round.

What a stage is given is read from memory (`left_behind`); what never gets there (the residual stream, normed rows,
queries and block keys) is made from what does, as intervals. Stages of a layer are those of the last: its arrays are
what is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from head_bounds import UNIT, WAVES, Block, Heads, possible, tile_roundings
from intervals import Interval, U, concatenated, dot, exp, quantised, rsqrt, sigmoid, total
from left_behind import Launch, decoded, mx_values

from monodraft.checkpoint.config import Activation, Norm
from monodraft.formats import mxfp8_torch
from monodraft.plan.shape import CHUNK, TILE
from monodraft.reference.numerics import select
from monodraft.reference.rope import Rope

ROW_SQUARES = 16 + 6 + WAVES - 1
"""Roundings of a square in a row's norm: 16 fused in a thread, 6 over the lanes, 7 over the waves (docs/device.md)."""


def mx_roundings(depth: int) -> int:
    """Roundings of a term of an MXFP8 tile, whose instructions sum 128 values of K."""
    return tile_roundings(depth, CHUNK)


@dataclass
class Found:
    """What the checks of launches proved: values of every stage, and those where more than one value was left."""

    launch: Launch
    values: Counter[str] = field(default_factory=Counter)
    open: Counter[str] = field(default_factory=Counter)

    @property
    def shares(self) -> dict[str, float]:
        """Share of a stage's values that was left open."""
        return {stage: self.open[stage] / count for stage, count in self.values.items()}

    def check(self, stage: str, rank: int, found: torch.Tensor, wanted: Interval) -> None:
        """`found` lies inside `wanted`."""
        wanted.check(found, f"{stage} of rank {rank}")
        self.values[stage] += found.numel()
        self.open[stage] += int(wanted.open.sum())

    def same(self, stage: str, rank: int, found: torch.Tensor, wanted: torch.Tensor) -> None:
        """`found` equals `wanted`: the stage moves or quantises bits that are given."""
        self.check(stage, rank, found, Interval.of(wanted))


def normed(launch: Launch, rows: Interval, weight: torch.Tensor, roundings: int) -> Interval:
    """RMS norm over the last axis, float32, not rounded to bf16. `roundings`: of a square in its sum."""
    config, count = launch.shape.config, rows.low.shape[-1]
    squares = Interval(rows.least_magnitude**2, rows.magnitude**2)
    mean = total(squares, roundings)
    # Times fl(1 / n), or divided by n: the constant and the product are off by u each.
    mean = Interval(mean.low / count * (1 - 2 * U), mean.high / count * (1 + 2 * U)).float32()
    y = rows * rsqrt(mean + config.rms_norm_eps)[..., None]
    factor = Interval.of(weight)
    return y * (factor + 1.0 if config.norm is Norm.GEMMA else factor)


def head_vectors(launch: Launch, raw: torch.Tensor, weight: torch.Tensor, positions: torch.Tensor) -> Interval:
    """Norm and RoPE of vectors [row, head, D] at the rows' positions, rounded to bf16 once."""
    config, size = launch.shape.config, raw.shape[-1]
    lanes = size // 8
    y = normed(launch, Interval.of(raw), weight, 8 + lanes.bit_length() - 1)
    cos, sin = (Interval.of(t)[:, None] for t in Rope(config, torch.device("cpu")).tables(select("bf16"), positions))
    half = config.rotary_dim // 2
    a, b, rest = y[..., :half], y[..., half : 2 * half], y[..., 2 * half :]
    return concatenated([a * cos - b * sin, b * cos + a * sin, rest], -1).bf16()


def stream(launch: Launch, rank: int) -> list[Interval]:
    """Rows before each norm, unrounded, as a rank has them: the embedding, then after o and after down of every layer.

    Sums of float32 in a stated order are exact to say: bf16 of the partials' sum in rank order, plus the residual.
    """
    shape = launch.shape
    tokens = torch.full((len(launch.anchors), shape.block), shape.config.mask_token_id)
    tokens[:, 0] = torch.tensor([anchor.token for anchor in launch.anchors])
    rows = [launch.weights.embed[tokens.flatten()].float()]
    for layer in range(shape.layers):
        for linear in ("o", "down"):
            residual = rows[-1].bfloat16().float()
            rows.append(residual + all_reduced(launch, rank, linear, layer).float())
    return [Interval.of(each) for each in rows]


def all_reduced(launch: Launch, rank: int, linear: str, layer: int) -> torch.Tensor:
    """bf16 sum over ranks of what rank `rank` was given, float64 [row][column]."""
    if launch.shape.two_stage:
        return launch.sums(rank, linear, layer)
    return in_rank_order(launch.partials(rank, linear, layer))


def in_rank_order(partials: torch.Tensor) -> torch.Tensor:
    """Partials [rank][..] added in float32 from rank 0 on, rounded to bf16, as float64."""
    result = partials[0].float()
    for partial in partials[1:]:
        result = result + partial.float()
    return result.bfloat16().double()


def quantised_rows(found: Found, stage: str, rank: int, name: str, rows: Interval) -> None:
    """A stored MXFP8 array holds rows that `rows` (bf16) allow; where these are points, byte for byte."""
    stored = found.launch.mxfp8(rank, name, len(rows.low))
    found.check(stage, rank, mx_values(stored), quantised(rows))
    elements, scales = mxfp8_torch.encode(rows.low.bfloat16())
    sure = ~rows.open.unflatten(-1, (-1, 32)).any(-1)
    assert bool((stored[1] == scales)[sure].all()), f"scales of {name}, rank {rank}"
    sure = sure.repeat_interleave(32, -1)
    assert bool((stored[0] == elements)[sure].all()), f"elements of {name}, rank {rank}"


MOST_CHOICES = 10
"""Open values of a row whose choices, 2 to that power, are tried one by one."""


def check_quantised(
    found: Found, stage: str, rank: int, values: torch.Tensor, rows: Interval, make: Callable[[Interval], Interval]
) -> None:
    """`values` lie inside what `make` makes of the MXFP8 of rows (bf16) that never get to memory.

    An open value of a row, once quantised, would leave all that the row is multiplied by open; but the kernel had one
    of the two. So every choice is tried, and one must fit the whole row.
    """
    wanted = make(Interval.of(quantised(Interval.of(rows.low)).low))
    for row in rows.open.any(-1).nonzero().flatten().tolist():
        places = rows.open[row].nonzero().flatten()
        assert len(places) <= MOST_CHOICES, f"{stage} of rank {rank}: {len(places)} open values in row {row}"
        choices = rows.low[row].repeat(1 << len(places), 1)
        for bit, place in enumerate(places.tolist()):
            upper = torch.arange(len(choices)) >> bit & 1 == 1
            choices[upper, place] = rows.high[row, place]
        candidates = make(Interval.of(quantised(Interval.of(choices)).low.unique(dim=0)))
        outside = ((values[row] < candidates.low) | (values[row] > candidates.high)).sum(-1)
        best = candidates[outside.argmin()]
        wanted.low[row], wanted.high[row] = best.low, best.high
    found.check(stage, rank, values, wanted)


def fc(found: Found, rank: int) -> None:
    """Target features to context rows."""
    launch, weight = found.launch, found.launch.weights.fc
    features = launch.array(rank, "features", launch.context)
    wanted = dot(Interval.of(features), weight, tile_roundings(weight.shape[1])).bf16()
    found.check("fc", rank, launch.array(rank, "fc_rows", launch.context), wanted)


def context_norm(found: Found, rank: int) -> None:
    """Context rows normed and quantised."""
    launch = found.launch
    rows = Interval.of(launch.array(rank, "fc_rows", launch.context))
    wanted = normed(launch, rows, launch.weights.hidden_norm, ROW_SQUARES).bf16()
    quantised_rows(found, "context_norm", rank, "context8", wanted)


def context_kv(found: Found, rank: int) -> None:
    """Keys and values of the context rows, of every layer."""
    launch, shape = found.launch, found.launch.shape
    rows = Interval.of(mx_values(launch.mxfp8(rank, "context8", launch.context)))
    kv = launch.array(rank, "context_kv", launch.context)
    for layer in range(shape.layers):
        weights = launch.layer(rank, layer)
        both = torch.cat([decoded(weights.k), decoded(weights.v)])
        found.check("context_kv", rank, kv[:, layer], dot(rows, both, mx_roundings(shape.hidden)).bf16())


def pool(found: Found, rank: int) -> None:
    """Context keys normed and turned, and values, to their slots in the pool."""
    launch, shape = found.launch, found.launch.shape
    kv = launch.array(rank, "context_kv", launch.context).unflatten(-1, (2, shape.kv_heads, shape.head))
    for layer in range(shape.layers):
        keys, values = launch.pool_slots(rank, layer, launch.context_slots())
        raw, weight = kv[:, layer], launch.layer(rank, layer).k_norm
        found.check("pool", rank, keys, head_vectors(launch, raw[:, 0], weight, launch.context_positions))
        found.same("pool values", rank, values, raw[:, 1])


def qkv(found: Found, rank: int) -> None:
    """Input norm, quantisation, q, k and v."""
    launch, weights = found.launch, found.launch.layer(rank)
    shape = launch.shape
    rows = normed(launch, stream(launch, rank)[-3], weights.input_norm, ROW_SQUARES).bf16()
    matrix = torch.cat([decoded(each) for each in (weights.q, weights.k, weights.v)])

    def make(given: Interval) -> Interval:
        return dot(given, matrix, mx_roundings(shape.hidden)).bf16()

    check_quantised(found, "qkv", rank, launch.array(rank, "qkv", shape.rows), rows, make)


def attention(found: Found, rank: int) -> None:
    """Head norms, RoPE and window attention over pool and block."""
    launch, shape, weights = found.launch, found.launch.shape, found.launch.layer(rank)
    raw = launch.array(rank, "qkv", shape.rows).split([shape.q_size, shape.kv_size, shape.kv_size], 1)
    q, k = (
        head_vectors(launch, part.unflatten(1, (-1, shape.head)), weight, launch.positions)
        for part, weight in ((raw[0], weights.q_norm), (raw[1], weights.k_norm))
    )
    v = raw[2].unflatten(1, (-1, shape.head))
    blocks = []
    for index, anchor in enumerate(launch.anchors):
        rows = slice(index * shape.block, (index + 1) * shape.block)
        keys, values = launch.pool(rank, shape.layers - 1, anchor.request, anchor.position)
        keys_here = concatenated([Interval.of(keys), k[rows]], 0)
        seen = visible(launch, anchor.position)
        heads = [
            attend(launch, q[rows, head], keys_here[:, kv], torch.cat([values, v[rows]])[:, kv], seen)
            for kv in range(shape.kv_heads)
            for head in range(kv * shape.group, (kv + 1) * shape.group)
        ]
        blocks.append(concatenated(heads, 1))
    found.check(
        "attention", rank, launch.array(rank, "attention", shape.rows)[:, : shape.q_size], concatenated(blocks, 0)
    )


def visible(launch: Launch, start: int) -> torch.Tensor:
    """bool [row, key]: which of positions 0 .. start - 1 and of the block a row sees, nearer than the window."""
    window, block = launch.shape.config.windows[-1], launch.shape.block
    distance = (start + torch.arange(block)[:, None] - torch.arange(start + block)[None]).abs()
    return torch.ones_like(distance, dtype=torch.bool) if window is None else distance < window


def attend(launch: Launch, q: Interval, keys: Interval, values: torch.Tensor, seen: torch.Tensor) -> Interval:
    """One query head [row, D] over keys and values [key, D]: bf16 [row, D].

    A weight's sum takes 7 roundings in a chunk of 32 keys, one a chunk, two over the lanes and one a share of the keys;
    a product's one a chunk and one a share.
    """
    shape = launch.shape
    chunks = -(-int(seen[0].sum()) // UNIT) + 2
    scores = dot(q, keys, shape.head // UNIT) * shape.config.score_scale
    hidden = ~seen
    scores = Interval(scores.low.masked_fill(hidden, -torch.inf), scores.high.masked_fill(hidden, -torch.inf))
    best = Interval(scores.low.amax(-1, keepdim=True), scores.high.amax(-1, keepdim=True))
    weights = exp(scores - best)
    whole = total(weights, 7 + chunks + 2 + shape.key_splits)
    return (dot(weights.bf16(), values.mT, chunks + shape.key_splits) / whole[:, None]).bf16()


def row_parallel(found: Found, rank: int, linear: str, source: str) -> None:
    """A rank's partial of o or down, from its own bf16 rows, as every rank was given it."""
    launch, shape = found.launch, found.launch.shape
    weight = decoded(getattr(launch.layer(rank), linear))
    rows = launch.array(rank, source, shape.rows)
    depth = rows.shape[1]
    given = mx_values(mxfp8_torch.encode(rows.bfloat16()))[:, : weight.shape[1]]
    wanted = dot(Interval.of(given), weight, mx_roundings(depth)).bf16()
    for reader in range(shape.ranks):
        part = launch.partials(reader, linear, shape.layers - 1)[rank]
        columns = slice(reader * part.shape[1], (reader + 1) * part.shape[1]) if shape.two_stage else slice(None)
        found.check(linear, rank, part, wanted[:, columns])


def o(found: Found, rank: int) -> None:
    """`row_parallel` of o."""
    row_parallel(found, rank, "o", "attention")


def down(found: Found, rank: int) -> None:
    """`row_parallel` of down."""
    row_parallel(found, rank, "down", "act")


def all_reduce(found: Found, rank: int) -> None:
    """Every rank was given the same partials; in two stages, sums that are those of the owners' partials."""
    launch, shape = found.launch, found.launch.shape
    for layer in range(shape.layers):
        for linear in ("o", "down"):
            if shape.two_stage:
                slices = [in_rank_order(launch.partials(owner, linear, layer)) for owner in range(shape.ranks)]
                found.same("all-reduce", rank, launch.sums(rank, linear, layer), torch.cat(slices, 1))
            else:
                found.same("all-reduce", rank, launch.partials(rank, linear, layer), launch.partials(0, linear, layer))


def gate_up(found: Found, rank: int) -> None:
    """All-reduce of o, residual, norm, quantisation, gate and up, activation."""
    launch, shape, weights = found.launch, found.launch.shape, found.launch.layer(rank)
    rows = normed(launch, stream(launch, rank)[-2], weights.post_norm, ROW_SQUARES).bf16()
    matrices = decoded(weights.gate), decoded(weights.up)

    def make(given: Interval) -> Interval:
        gate, up = (dot(given, matrix, mx_roundings(shape.hidden)).bf16() for matrix in matrices)
        return activated(launch, gate, up)

    check_quantised(found, "gate_up", rank, launch.array(rank, "act", shape.rows)[:, : shape.ffn], rows, make)


def activated(launch: Launch, gate: Interval, up: Interval) -> Interval:
    """silu(gate) * up or SwiGLU-OAI, float32 operations one after another, rounded to bf16 once."""
    config = launch.shape.config
    if config.activation is Activation.SILU:
        return (gate * sigmoid(gate) * up).bf16()
    assert config.swiglu is not None
    limit = config.swiglu.limit
    gate, up = gate.clamp(most=limit), up.clamp(-limit, limit)
    return (gate * sigmoid(gate * config.swiglu.alpha) * (up + config.swiglu.beta)).bf16()


def final_norm(found: Found, rank: int) -> None:
    """All-reduce of down, residual, final norm; the same rows quantised."""
    launch = found.launch
    wanted = normed(launch, stream(launch, rank)[-1], launch.weights.final_norm, ROW_SQUARES).bf16()
    rows = launch.array(rank, "final", launch.shape.rows)
    found.check("final_norm", rank, rows, wanted)
    quantised_rows(found, "x8", rank, "x8", Interval.of(rows))


def lm_head(found: Found, rank: int) -> None:
    """Base logits of the rank's part of the vocabulary."""
    launch, shape = found.launch, found.launch.shape
    tiles = launch.array(rank, "base", shape.vocab_tiles)[:, : shape.rows]
    wanted = dot(
        Interval.of(launch.array(rank, "final", shape.rows)), launch.shards[rank].lm_head, tile_roundings(shape.hidden)
    )
    found.check("lm_head", rank, tiles.permute(1, 0, 2).flatten(1)[:, : shape.vocab], wanted.bf16())


def inner(found: Found, rank: int) -> None:
    """The gated and rnn heads' inner linear of the final rows, float32."""
    launch, shape = found.launch, found.launch.shape
    if shape.inner_rows:
        wanted = Heads(shape.config, launch.weights).inner_sums(launch.array(rank, "final", shape.rows))
        wanted.check(inner_sums(launch, rank), f"inner of rank {rank}")


def inner_sums(launch: Launch, rank: int) -> torch.Tensor:
    """What `inner` left, [row][inner row]."""
    shape = launch.shape
    return launch.array(rank, "inner", shape.inner_rows // TILE)[:, : shape.rows].permute(1, 0, 2).flatten(1)


def markov(found: Found, rank: int) -> None:
    """Logits: base plus the bias of the token before, along the kernel's own chain and from its own `inner` sums."""
    launch, shape = found.launch, found.launch.shape
    rows = launch.array(rank, "final", shape.rows).split(shape.block)
    heads = Heads(shape.config, launch.weights)
    sums = inner_sums(launch, rank).split(shape.block) if shape.inner_rows else [None] * len(rows)
    inputs = concatenated(
        [
            heads.markov_rows(Block(own, previous), None if above is None else Interval.of(above))
            for own, previous, above in zip(rows, launch.previous(), sums, strict=True)
        ],
        0,
    )
    bias = dot(inputs, launch.shards[rank].markov_w2, shape.markov_rank // UNIT).bf16()
    base = launch.array(rank, "base", shape.vocab_tiles)[:, : shape.rows].permute(1, 0, 2).flatten(1)
    found.check(
        "markov", rank, launch.array(rank, "logits", shape.rows)[:, : shape.vocab], bias + base[:, : shape.vocab]
    )


def choice(found: Found, rank: int) -> None:
    """Tokens are the best of the ranks' own logits, the lowest id of equals (greedy launches)."""
    launch, shape = found.launch, found.launch.shape
    parts = [launch.array(each, "logits", shape.rows)[:, : shape.vocab] for each in range(shape.ranks)]
    logits = Interval.of(torch.cat(parts, 1))
    for row, token in enumerate(launch.executed.workspace.local[rank]("tokens")[: shape.rows].tolist()):
        assert possible(logits[row], token), f"token of row {row}, rank {rank}"


def confidence(found: Found, rank: int) -> None:
    """Confidence of every row."""
    launch, shape = found.launch, found.launch.shape
    if not shape.config.has_confidence:
        return
    block = Block(launch.array(rank, "final", shape.rows), launch.previous().flatten())
    wanted = Heads(shape.config, launch.weights).confidence(block)
    wanted.check(launch.array(rank, "confidence", shape.rows), f"confidence of rank {rank}")


STAGES: tuple[Callable[[Found, int], None], ...] = (
    fc, context_norm, context_kv, pool, qkv, attention, o, all_reduce, gate_up, down, final_norm, lm_head, inner,
    markov, choice, confidence,
)  # fmt: skip


def check_launch(launch: Launch, found: Found | None = None) -> Found:
    """All stages on all ranks, counted on in `found`. Raises AssertionError naming the stage where a value lies outside
    what it may be."""
    found = Found(launch) if found is None else replace(found, launch=launch)
    for stage in STAGES:
        for rank in range(launch.shape.ranks):
            stage(found, rank)
    return found
