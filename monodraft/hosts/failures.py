"""From a health word to an error that says which rank waited where, for which tag, and what it saw.

The health word names the wait that expired first. Where tags are missing in memory after the launch, the first wait of
the plan that lacks one is named instead: CTAs that gave up still hand over on their way out, so what is missing then is
what the failed producer owes, and waits further down that happened to expire first are not its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from monodraft.device.health import LAST_TAG, decode, epoch_and_mark, launch_tag
from monodraft.errors import Fault, StepFailed
from monodraft.plan.shape import MAX_ROWS, TILE
from monodraft.plan.step import Plan, Repeat, Stage, Wait

RECENT = 1 << 24
"""Launches back from which a word is taken for a tag; an older one is junk."""
Arrays = Callable[..., np.ndarray]
"""`arrays(name, layer=0)`: an array of a memory block."""


class Memories(Protocol):
    """What a failure is read from: the health word, and the local and exchange blocks of ranks."""

    @property
    def health_word(self) -> int: ...

    def blocks(self, rank: int) -> tuple[Arrays, Arrays]:
        """Local and exchange arrays of a rank."""
        ...


@dataclass(frozen=True)
class Wanted:
    """The tag that hand-offs of launch `epoch` with `rows` context rows carry."""

    epoch: int
    rows: int

    @property
    def tag(self) -> np.uint32:
        return np.uint32(launch_tag(self.epoch, self.rows))

    def describe(self, word: int) -> str:
        """A tag that was found: its epoch, and its rows where they are others."""
        if not word:
            return "tag 0"
        epoch, rows = epoch_and_mark(word, self.epoch)
        if rows > MAX_ROWS or (self.epoch - epoch) % LAST_TAG >= RECENT:
            return f"tag {word:#x}, which is no launch's,"
        return f"tag {epoch}" + (f" of {rows} context rows, not {self.rows}," if rows != self.rows else "")


def failure(
    plan: Plan, memories: Memories, epoch: int, rows: int, ranks: Iterable[int] | None = None
) -> StepFailed | None:
    """The error of launch `epoch` with `rows` context rows, which just ended, or None where it is healthy.

    `ranks` are those whose memory can be read, all by default.
    """
    record = decode(memories.health_word)
    if record is None:
        return None
    ranks = list(range(plan.shape.ranks) if ranks is None else ranks)
    wanted = Wanted(epoch, rows)
    absent = [rank for rank in ranks if last_epoch(memories, rank) != epoch]
    present = [rank for rank in ranks if rank not in absent]
    rank, site = first_missing(plan, memories, wanted, present) or (record.rank, record.site)
    faults = [place_fault(plan, memories, rank, site, wanted, rank in ranks)]
    for each in absent:
        faults.append(Fault(f"rank {each}, epoch", str(last_epoch(memories, each)), f"{epoch}: its kernel ends"))
    return StepFailed("the draft step did not complete in its time", faults)


def last_epoch(memories: Memories, rank: int) -> int:
    """Epoch of the last launch of a rank that ended."""
    return int(memories.blocks(rank)[0]("epoch").view(np.uint32)[0])


def first_missing(plan: Plan, memories: Memories, wanted: Wanted, ranks: Iterable[int]) -> tuple[int, int] | None:
    """(rank, site) of the first wait in program order whose region lacks the tag, on one of `ranks`."""
    ranks = list(ranks)
    for site, (stage, wait, repeat) in enumerate(plan.waits, 1):
        for rank in ranks:
            if (waited(plan, memories, rank, stage, wait, repeat) != wanted.tag).any():
                return rank, site
    return None


def place_fault(plan: Plan, memories: Memories, rank: int, site: int, wanted: Wanted, readable: bool = True) -> Fault:
    """What a wait of a rank wanted and what stands in its region now."""
    if site > len(plan.waits):
        found = f"no such wait here: this rank's step has {len(plan.waits)}"
        return Fault(f"rank {rank}, wait {site} of its step", found, "the same step on all ranks")
    stage, wait, repeat = plan.place(site)
    unit = {Repeat.ONCE: "", Repeat.LAYER: f" of layer {repeat}", Repeat.SLOT: f" of slot {repeat}"}[stage.repeat]
    where = f"rank {rank}, stage {stage.name}{unit}, region {wait.region}"
    if not readable:
        return Fault(where, "another tag (that rank's memory cannot be read from here)", f"tag {wanted.epoch}")
    words = waited(plan, memories, rank, stage, wait, repeat)
    return Fault(where, seen(plan, wait, words, wanted), f"tag {wanted.epoch}")


def seen(plan: Plan, wait: Wait, words: np.ndarray, wanted: Wanted) -> str:
    """The first word of a waited-for region that has not the tag, and who should have written it."""
    what = "pair" if wait.poll else "flag"
    wrong = np.flatnonzero(words != wanted.tag)
    if not len(wrong):
        return f"tag {wanted.epoch} in all {len(words)} {what}s, but after the deadline"
    first = int(wrong[0])
    count = f"{len(wrong)} of {len(words)} {what}s without the tag"
    return f"{wanted.describe(int(words[first]))} in {what} {first}, from {writer(plan, wait, first)} ({count})"


def writer(plan: Plan, wait: Wait, index: int) -> str:
    """Who writes word `index` of a waited-for region."""
    shape = plan.shape
    half = shape.hidden // 2
    if not wait.poll:
        return f"CTA {index}"
    if wait.region == "pairs.maxima":
        pair, split = index // (shape.row_tiles * TILE * shape.key_splits), index % shape.key_splits
        return f"CTA {pair * shape.key_splits + split}"
    if wait.region == "candidates":
        # An entry is two pairs: score and id.
        rank, cta = divmod(index // 2 % (shape.ranks * shape.ctas), shape.ctas)
        return f"rank {rank}, CTA {cta}"
    if wait.region.endswith(".sum"):
        return f"rank {index % half // (half // shape.ranks)}"
    part = shape.rows * half // (shape.ranks if shape.two_stage else 1)
    return f"rank {index // part}"


def waited(plan: Plan, memories: Memories, rank: int, stage: Stage, wait: Wait, repeat: int) -> np.ndarray:
    """uint32 tags in the region that a wait of `rank` watches, all of them."""
    local, exchange = memories.blocks(rank)
    if wait.region == "pairs.maxima":
        count = plan.stage("attention").tasks * plan.shape.row_tiles * TILE
        return np.ascontiguousarray(local(wait.region, repeat).reshape(-1, 2)[:count, 1]).view(np.uint32)
    if wait.poll:
        return _pair_tags(plan, exchange, wait, repeat).view(np.uint32)
    owners = plan.stage(wait.producer).owners
    return local(wait.region, flag_layer(plan, wait, repeat))[:owners].view(np.uint32)


def flag_layer(plan: Plan, wait: Wait, repeat: int) -> int:
    """Which set of a layered flag array a wait of layer `repeat` watches; `input` has one set more than layers."""
    if wait.region == "flags.input":
        return plan.shape.layers if wait.last else repeat
    return repeat if plan.stage(wait.producer).repeat is Repeat.LAYER else 0


def _pair_tags(plan: Plan, exchange: Arrays, wait: Wait, repeat: int) -> np.ndarray:
    shape = plan.shape
    if wait.region == "candidates":
        words = exchange("candidates").reshape(-1, shape.ranks * shape.ctas, 2, 2)
        first = repeat * shape.requests
        return np.ascontiguousarray(words[first : first + shape.requests, ..., 1].reshape(-1))
    parts = 1 if shape.two_stage else shape.ranks
    pairs = exchange(wait.region, repeat).reshape(-1, 2)[: parts * shape.rows * shape.hidden // 2]
    return np.ascontiguousarray(pairs[:, 1])
