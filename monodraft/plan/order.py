"""The order of a step's events, worked out from the plan: that it cannot deadlock, and that nothing is overwritten
while somebody may still read it.

Events are the stages of every CTA of every rank, in two launches one after the other. An event comes after the one
before it on its CTA; after the events whose flags or pairs it waits for; and all of the second launch comes after all
of the first launch *on the same rank* (one stream). Given that all CTAs are resident, an order without a cycle can
always be completed: the first event that has not happened waits for nothing that has not happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from monodraft.errors import Fault, KernelError
from monodraft.plan.step import From, Plan, Repeat, Stage, Wait

LAUNCHES = 2


@dataclass(frozen=True)
class Turn:
    """One run of a stage in a launch: `index` is its place in program order, `repeat` its layer or slot."""

    index: int
    stage: Stage
    repeat: int


def turns(plan: Plan) -> list[Turn]:
    """Stage runs of one launch, in program order."""
    return [Turn(index, stage, repeat) for index, (stage, repeat) in enumerate(plan.turns)]


class Order:
    """Happens-before of two launches of a plan, by vector clocks: one component a CTA of a rank."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.turns = turns(plan)
        self._places = {(turn.stage.name, turn.repeat): turn.index for turn in self.turns}

    def producers(self, turn: Turn, wait: Wait) -> list[Turn]:
        """The runs whose stores a wait waits for. `input` before layer 0 is `embed`."""
        plan = self.plan
        producer = plan.stage(wait.producer)
        if wait.last:
            return [self.turn(producer.name, plan.repeats(producer) - 1)]
        repeat = turn.repeat + wait.lag if producer.repeat is turn.stage.repeat else 0
        return [self.turn("embed", 0)] if repeat < 0 else [self.turn(producer.name, repeat)]

    def turn(self, stage: str, repeat: int) -> Turn:
        """A run of a stage."""
        return self.turns[self._places[stage, repeat]]

    @cached_property
    def clocks(self) -> np.ndarray:
        """int16 [launch, turn, rank, cta, rank x cta]: the last event of every CTA that surely came before or is this.

        Events of a CTA are counted from 1, through both launches. KernelError names a wait that closes a cycle.
        """
        ranks, ctas, count = self.plan.shape.ranks, self.plan.shape.ctas, len(self.turns)
        clocks = np.zeros((LAUNCHES, count, ranks, ctas, ranks * ctas), np.int16)
        for launch in range(LAUNCHES):
            for turn in self.turns:
                now = clocks[launch, turn.index]
                now[...] = self._before(clocks, launch, turn)
                for wait in turn.stage.waits:
                    self._join(clocks, launch, turn, wait)
                own = np.arange(ranks * ctas)
                now.reshape(ranks * ctas, -1)[own, own] = launch * count + turn.index + 1
        return clocks

    def _before(self, clocks: np.ndarray, launch: int, turn: Turn) -> np.ndarray:
        """Clocks of the event before on each CTA."""
        if turn.index:
            return np.asarray(clocks[launch, turn.index - 1])
        if launch == 0:
            return np.zeros_like(clocks[0, 0])
        # A launch starts when all CTAs of its rank have ended the one before.
        ended = clocks[launch - 1, -1].max(1, keepdims=True)
        return np.broadcast_to(ended, clocks.shape[2:])

    def _join(self, clocks: np.ndarray, launch: int, turn: Turn, wait: Wait) -> None:
        """Add what a wait learns to the clocks of `turn`."""
        now = clocks[launch, turn.index]
        if wait.source is From.GROUP:
            return
        for producer in self.producers(turn, wait):
            if producer.index > turn.index or (producer.index == turn.index and not _exchanges(turn.stage)):
                fault = Fault(
                    f"{turn.stage.name} {turn.repeat}", f"waits for {producer.stage.name} {producer.repeat}", ""
                )
                raise KernelError("the plan can deadlock: a stage waits for a later one", [fault])
            owners = producer.stage.owners
            if producer.index == turn.index:
                # Every CTA puts its offer before it polls: what it knew then has been learnt from the turn before.
                known = _offered(clocks, launch, turn, now)
            else:
                known = clocks[launch, producer.index, :, :owners]
            if wait.poll:
                readers = now[:, : turn.stage.owners] if turn.stage.repeat is not Repeat.SLOT else now
                np.maximum(readers, _learnt(wait, producer.stage, known[:, :owners], readers.shape[1]), out=readers)
            else:
                np.maximum(now, known.max(1)[:, None], out=now)

    def after(self, earlier: tuple[int, Turn], later: tuple[int, Turn], across: bool) -> np.ndarray:
        """bool [reader rank, reader CTA, rank, CTA]: the event `later` on a CTA comes after `earlier` on a reader.

        `across`: readers may be on another rank than the writer; else only pairs of one rank count (True elsewhere).
        """
        ranks, ctas, count = self.plan.shape.ranks, self.plan.shape.ctas, len(self.turns)
        when = earlier[0] * count + earlier[1].index + 1
        knows = self.clocks[later[0], later[1].index] >= when
        result = knows.reshape(ranks, ctas, ranks, ctas).transpose(2, 3, 0, 1)
        if not across:
            same = np.eye(ranks, dtype=bool)[:, None, :, None]
            result = result | ~same
        return np.asarray(result[:, : earlier[1].stage.owners, :, : later[1].stage.owners])


def _learnt(wait: Wait, producer: Stage, known: np.ndarray, readers: int) -> np.ndarray:
    """What readers [rank, CTA, clock] learn from a poll of what producers `known` [rank, owner, clock] put."""
    ranks, owners, width = known.shape
    if wait.source is From.SAME:
        return np.asarray(known[:, :readers].max(0)[None])
    if wait.source is From.SLICE:
        part = producer.tasks // ranks
        slices = [sorted({tile % owners for tile in range(p * part, (p + 1) * part)}) for p in range(ranks)]
        return np.stack([known[:, ctas].reshape(-1, width).max(0) for ctas in slices])[:, None]
    return np.asarray(known.reshape(-1, width).max(0))


def _exchanges(stage: Stage) -> bool:
    """Whether a stage waits for what it has put itself (the chain's candidates)."""
    return any(wait.producer == stage.name and wait.lag == 0 for wait in stage.waits)


def _offered(clocks: np.ndarray, launch: int, turn: Turn, now: np.ndarray) -> np.ndarray:
    """Clocks at the moment of an exchange's put: this turn's, and the putting CTA's own event."""
    ranks, ctas = now.shape[:2]
    offered = now.copy().reshape(ranks * ctas, -1)
    own = np.arange(ranks * ctas)
    offered[own, own] = launch * clocks.shape[1] + turn.index + 1
    return offered.reshape(now.shape)


def check_order(plan: Plan) -> int:
    """Prove that the plan cannot deadlock, reads nothing before it is written and overwrites nothing that may still be
    read; returns the pairs of events checked.

    Raises KernelError naming the region, the reader and the writer that are not ordered.
    """
    order = Order(plan)
    checked = 0
    for region, writer, reader in arrivals(order):
        good = order.after(writer, reader, False)
        if region in OWN:
            same = np.eye(plan.shape.ctas, dtype=bool)[: good.shape[1], : good.shape[3]]
            good = good | ~same[None, :, None, :]
        checked += good.size
        if not good.all():
            fault = Fault(
                region, f"{reader[1].stage.name} may read before {writer[1].stage.name} has written", "a wait"
            )
            raise KernelError("the plan reads what may not have been written", [fault])
    for region, reader, writer in reuses(order):
        across = region.startswith(("pairs.", "candidates")) and region not in LOCAL_PAIRS
        # Readers of an exchange region are of the rank that owns the memory, writers of any rank.
        good = order.after(reader, writer, across)
        checked += good.size
        if not good.all():
            names = [f"{turn.stage.name} {turn.repeat} of launch {launch}" for launch, turn in (reader, writer)]
            fault = Fault(region, f"{names[1]} may write while {names[0]} still reads", "writes ordered after reads")
            raise KernelError("the plan overwrites what may still be read", [fault])
    return checked


Event = tuple[int, Turn]


LOCAL_PAIRS = ("pairs.maxima",)
"""Pairs that CTAs of one rank exchange, in memory of its own."""
OWN = ("base",)
"""Arrays of which a CTA reads only what it has written."""


def arrivals(order: Order) -> Iterator[tuple[str, Event, Event]]:
    """(region, last writing event before, reading event) of every array that stages read from memory of their own rank.

    Pairs are not among them: a poll is itself the proof that what it reads has arrived.
    """
    for turn in order.turns:
        for name in turn.stage.reads:
            if name.startswith(("pairs.", "candidates")):
                continue
            writers = [each for each in order.turns if name in each.stage.writes and each.index < turn.index]
            if writers:
                yield name, (0, writers[-1]), (0, turn)


def reuses(order: Order) -> Iterator[tuple[str, Event, Event]]:
    """(region, reading event, next writing event) of every array that is written again, in this launch or the next.

    Regions with a set a layer (or slot) are separate arrays: of those only the next launch's write counts. Outputs have
    no reader in the kernel.
    """
    names = {name for turn in order.turns for name in turn.stage.writes}
    for name in sorted(names):
        separate = name.startswith(("pairs.", "candidates"))
        writes = [(launch, turn) for launch in range(LAUNCHES) for turn in order.turns if name in turn.stage.writes]
        reads = [(launch, turn) for launch in range(LAUNCHES) for turn in order.turns if name in turn.stage.reads]
        for reader in reads:
            later = [w for w in writes if (w[0], w[1].index) > (reader[0], reader[1].index)]
            if separate:
                later = [w for w in later if w[0] > reader[0] and w[1].repeat == reader[1].repeat]
            if later:
                yield name, reader, later[0]
    for stage in order.plan.stages:
        if stage.flags:
            yield from _flag_reuses(order, stage)


def _flag_reuses(order: Order, stage: Stage) -> Iterator[tuple[str, Event, Event]]:
    """A flag array's readers in launch 0, and the publishers of the same flags in launch 1."""
    for turn in order.turns:
        for wait in turn.stage.waits:
            if wait.poll or wait.region != stage.flags:
                continue
            for producer in order.producers(turn, wait):
                if producer.stage is stage:
                    yield stage.flags, (0, turn), (1, producer)
