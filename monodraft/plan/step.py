"""The plan of a draft step as data: stages in order, who does what, every region, every wait and its number."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import groupby

from monodraft.plan.shape import TILE, StepShape

STAGGER = 10_000
"""Ticks (10 ns) by which the deadline of a wait lies after that of the wait before it in program order: 0.1 ms, more
than the 64 rounds (some 0.04 ms) between two looks at the clock."""


class Repeat(StrEnum):
    """How often a stage runs in a launch."""

    ONCE = "once"
    LAYER = "layer"
    SLOT = "slot"


class From(StrEnum):
    """Whose stores a poll waits for: those of all owners of the producer; of the owners of this rank's slice of its
    tiles; of the CTA with the same number, on every rank. `GROUP`: of some owners on this rank (the order that it makes
    is not counted on)."""

    ALL = "all"
    SLICE = "slice"
    SAME = "same"
    GROUP = "group"


@dataclass(frozen=True)
class Wait:
    """A wait of a stage. For flags: on those of all owners of `producer` in `region`; for pairs (`poll`): on all pairs
    of the rows or entries that a CTA reads. `lag` is the producer's repeat relative to the waiting one's (-1: the layer
    before); `last`: the producer's last repeat. `source`: whose pairs a poll waits for, on every rank."""

    producer: str
    region: str
    poll: bool = False
    lag: int = 0
    last: bool = False
    source: From = From.ALL

    @property
    def key(self) -> str:
        """What the wait is called after its stage's name."""
        return self.region if self.poll else self.producer


@dataclass(frozen=True)
class Stage:
    """A stage: task i belongs to CTA i mod ctas; CTAs without a task (`owners` on) publish nothing.

    `reads`, `writes`: local arrays and exchange regions. `weights`: weight arrays that it reads, each byte once.
    `flags`: the region that an owner's publish sets, or "" for none.
    """

    name: str
    repeat: Repeat
    unit: str
    tasks: int
    owners: int
    waits: tuple[Wait, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    weights: tuple[str, ...] = ()
    flags: str = ""


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before a launch is traced. Equal shapes give equal plans."""

    shape: StepShape

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """Stages in program order; those of a layer stand once and run `layers` times in a row, slots likewise."""
        commit = _commit_stages(self.shape) if self.shape.context_rows else ()
        draft = _draft_stages(self.shape) if self.shape.requests else ()
        return (*commit, *draft)

    def stage(self, name: str) -> Stage:
        """The stage of that name."""
        return next(stage for stage in self.stages if stage.name == name)

    def repeats(self, stage: Stage) -> int:
        """Times that a stage runs in a launch."""
        return {Repeat.ONCE: 1, Repeat.LAYER: self.shape.layers, Repeat.SLOT: self.shape.block}[stage.repeat]

    @cached_property
    def turns(self) -> tuple[tuple[Stage, int], ...]:
        """(stage, layer or slot) of a launch in program order: stages of a layer take turns, layer after layer."""
        found: list[tuple[Stage, int]] = []
        for repeat, group in groupby(self.stages, lambda stage: stage.repeat):
            together = list(group)
            if repeat is Repeat.ONCE:
                found += [(stage, 0) for stage in together]
            else:
                found += [(stage, turn) for turn in range(self.repeats(together[0])) for stage in together]
        return tuple(found)

    @cached_property
    def waits(self) -> tuple[tuple[Stage, Wait, int], ...]:
        """(stage, wait, layer or slot) of every wait of a launch, in program order; wait i has site number i + 1."""
        return tuple((stage, wait, repeat) for stage, repeat in self.turns for wait in stage.waits)

    @cached_property
    def sites(self) -> dict[str, tuple[int, int]]:
        """Number of each wait, `stage<region or producer`: (first, step a layer or slot). Never 0, later waits more."""
        numbers: dict[str, list[int]] = {}
        for number, (stage, wait, _) in enumerate(self.waits, 1):
            numbers.setdefault(f"{stage.name}<{wait.key}", []).append(number)
        return {name: (all_[0], all_[1] - all_[0] if len(all_) > 1 else 1) for name, all_ in numbers.items()}

    def place(self, site: int) -> tuple[Stage, Wait, int]:
        """Stage, wait and layer (or slot) of a wait's number. Raises ValueError for a number that no wait has."""
        if not 1 <= site <= len(self.waits):
            raise ValueError(f"no wait has number {site}")
        return self.waits[site - 1]

    @cached_property
    def record(self) -> tuple[tuple[str, str, str], ...]:
        """(kind, stage, region) of every hand-off as tracing must meet it; a layer's and a slot's stand once."""
        events: list[tuple[str, str, str]] = []
        for stage in self.stages:
            events += [("poll" if wait.poll else "wait", stage.name, wait.region) for wait in _traced(stage, False)]
            events += _puts(self.shape, stage)
            times = self.shape.requests if stage.repeat is Repeat.SLOT else 1
            events += [("poll", stage.name, wait.region) for wait in _traced(stage, True) for _ in range(times)]
            if stage.flags:
                events.append(("publish", stage.name, stage.flags))
        return tuple(events)


def _traced(stage: Stage, after: bool) -> list[Wait]:
    """Waits before a stage's puts, or those of an exchange, for what the stage itself puts, after them."""
    return [wait for wait in stage.waits if (wait.producer == stage.name) is after]


def _puts(shape: StepShape, stage: Stage) -> list[tuple[str, str, str]]:
    return [("put", stage.name, region) for region in stage.writes if region.startswith(("pairs.", "candidates"))]


def _stage(
    shape: StepShape,
    name: str,
    repeat: Repeat,
    unit: str,
    tasks: int,
    waits: tuple[Wait, ...],
    reads: tuple[str, ...],
    writes: tuple[str, ...],
    weights: tuple[str, ...] = (),
    flags: str = "",
) -> Stage:
    return Stage(name, repeat, unit, tasks, min(shape.ctas, tasks), waits, reads, writes, weights, flags)


def _flags(producer: str, region: str, **more: bool | int) -> Wait:
    return Wait(producer, region, **more)  # type: ignore[arg-type]


def _attention(shape: StepShape) -> tuple[Stage, ...]:
    """Attention, in one stage, or with keys split over CTAs and joined a row at a time."""
    layer, heads, weights = Repeat.LAYER, shape.requests * shape.kv_heads, ("q_norm", "k_norm")
    before, unit = Wait("qkv", "flags.qkv"), "request and K/V head"
    if shape.key_splits == 1:
        reads, writes = ("qkv", "pool"), ("attention",)
        return (_stage(shape, "attention", layer, unit, heads, (before,), reads, writes, weights, "flags.attention"),)
    maxima = Wait("attention", "pairs.maxima", poll=True, source=From.GROUP)
    return (
        _stage(
            shape, "attention", layer, "share of keys", heads * shape.key_splits, (before, maxima),
            ("qkv", "pool", "pairs.maxima"), ("pairs.maxima", "partials", "totals"), weights, "flags.attention",
        ),
        _stage(
            shape, "attention_join", layer, "row", shape.rows, (Wait("attention", "flags.attention"),),
            ("partials", "totals"), ("attention",), (), "flags.join",
        ),
    )  # fmt: skip


def _attended(shape: StepShape) -> Wait:
    """What o waits for."""
    if shape.key_splits == 1:
        return Wait("attention", "flags.attention")
    return Wait("attention_join", "flags.join")


def _inner(shape: StepShape) -> tuple[Stage, ...]:
    """The hidden rows' part of the Markov head's inner linear (gated, rnn), and the wait for it before the chain."""
    if not shape.inner_rows:
        return ()
    once, tiles = Repeat.ONCE, shape.inner_rows // TILE
    return (
        _stage(
            shape, "inner", once, "tile", tiles, (), ("final",), ("inner",), ("markov_inner_hidden",), "flags.inner"
        ),
        _stage(shape, "inner_ready", once, "wait", shape.ctas, (Wait("inner", "flags.inner"),), (), ()),
    )  # fmt: skip


def _reduced(shape: StepShape, linear: str) -> Wait:
    """The poll that ends the all-reduce of o or down."""
    if shape.two_stage:
        return Wait(f"{linear}_sum", f"pairs.{linear}.sum", poll=True, source=From.SAME)
    return Wait(linear, f"pairs.{linear}", poll=True)


def _sums(shape: StepShape, linear: str) -> tuple[Stage, ...]:
    """The stage between the two of an all-reduce: this rank's slice of every row added up and put to all."""
    if not shape.two_stage:
        return ()
    wait = Wait(linear, f"pairs.{linear}", poll=True, source=From.SLICE)
    name, reads, writes = f"{linear}_sum", (f"pairs.{linear}",), (f"pairs.{linear}.sum",)
    return (_stage(shape, name, Repeat.LAYER, "row", shape.rows, (wait,), reads, writes),)


def _commit_stages(shape: StepShape) -> tuple[Stage, ...]:
    once, rows = Repeat.ONCE, shape.context_rows
    kv_tiles = shape.layers * 2 * shape.kv_size // TILE
    return (
        _stage(
            shape, "fc", once, "tile", shape.hidden // TILE, (), ("features",), ("fc_rows",), ("fc",), "flags.fc"
        ),
        _stage(
            shape, "context_norm", once, "row", rows, (_flags("fc", "flags.fc"),), ("fc_rows",),
            ("context8", "context8.scales"), ("hidden_norm",), "flags.context",
        ),
        _stage(
            shape, "context_kv", once, "tile", kv_tiles, (_flags("context_norm", "flags.context"),),
            ("context8", "context8.scales"), ("context_kv",), ("qkv",), "flags.context_kv",
        ),
        _stage(
            shape, "pool", once, "layer and head", shape.layers * shape.kv_heads,
            (_flags("context_kv", "flags.context_kv"),), ("context_kv",), ("pool",), ("k_norm",), "flags.pool",
        ),
    )  # fmt: skip


def _draft_stages(shape: StepShape) -> tuple[Stage, ...]:
    once, layer, rows = Repeat.ONCE, Repeat.LAYER, shape.rows
    x8 = ("x8", "x8.scales")
    pool = (Wait("pool", "flags.pool"),) if shape.context_rows else ()
    embed = _stage(shape, "embed", once, "row", rows, (), (), x8, ("embed", "input_norm"), "flags.input")
    # The pool's flags are waited for once, before the first layer.
    before = (_stage(shape, "context_ready", once, "wait", shape.ctas, pool, (), ()),) if pool else ()
    layers = (
        _stage(
            shape, "qkv", layer, "tile", shape.qkv_size // TILE, (Wait("input", "flags.input", lag=-1),), x8, ("qkv",),
            ("qkv",), "flags.qkv",
        ),
        *_attention(shape),
        _stage(
            shape, "o", layer, "tile", shape.hidden // TILE, (_attended(shape),), ("attention",), ("pairs.o",), ("o",)
        ),
        *_sums(shape, "o"),
        _stage(
            shape, "post", layer, "row", rows, (_reduced(shape, "o"),), (_reduced(shape, "o").region,), x8,
            ("post_norm",), "flags.post",
        ),
        _stage(
            shape, "gate_up", layer, "pair of tiles", shape.ffn // TILE, (Wait("post", "flags.post"),), x8, ("act",),
            ("gate_up",), "flags.act",
        ),
        _stage(
            shape, "down", layer, "tile", shape.hidden // TILE, (Wait("gate_up", "flags.act"),), ("act",),
            ("pairs.down",), ("down",),
        ),
        *_sums(shape, "down"),
        _stage(
            shape, "input", layer, "row", rows, (_reduced(shape, "down"),), (_reduced(shape, "down").region,),
            (*x8, "final"), ("input_norm",), "flags.input",
        ),
    )  # fmt: skip
    heads = [
        _stage(
            shape, "lm_head", once, "tile", shape.vocab_tiles, (Wait("input", "flags.input", last=True),), ("final",),
            ("base",), ("lm_head",),
        ),
        *_inner(shape),
        _stage(
            shape, "chain", Repeat.SLOT, "tile", shape.vocab_tiles, (Wait("chain", "candidates", poll=True),),
            ("base", "candidates", *(("inner",) if shape.inner_rows else ())), ("candidates", "logits", "tokens"),
            ("markov_w2",),
        ),
    ]  # fmt: skip
    if shape.config.has_confidence:
        heads.append(_stage(shape, "confidence", once, "row", rows, (), ("final",), ("confidence",), ("confidence",)))
    return (embed, *before, *layers, *heads)
