"""Producer and consumer kernels over CTAs and ranks, made of the device words of any copy of the package.

`dw` is `monodraft.device.words` or the words of a sabotaged copy. Every kernel checks nothing itself: it writes what it
received, the host compares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import flydsl.expr as fx
import numpy as np
from device_harness import model_of, signed
from flydsl.expr import range_constexpr

import monodraft.executor as ex
from monodraft.device import probes
from monodraft.device.geometry import Geometry
from monodraft.device.health import HEALTHY, Failure, decode, next_tag

GEO = Geometry(hidden=256, ranks=2, waves=2)
THREADS = GEO.threads
PRODUCERS, CONSUMERS = 3, 2
EPOCHS = 3
FLAG_SITE, PAIR_SITE = 11, 12
PATIENCE = 20_000_000
"""Ticks (0.2 s) that no launch needs, however its schedule starves it."""
FOREVER = 10**9
"""Ticks (10 s) that a rank would wait if it did not see the failure of another."""

WORK = 20_000_000
"""Operations (a wave each) that no launch needs."""


def value(source: Any, place: Any, tag: Any) -> Any:
    """The word that `source` sends to `place` in epoch `tag`; no two are alike in a test. For kernels and for NumPy."""
    return (source * 1009 + place) * 31 + tag * 7 + 5


# -- kernels -----------------------------------------------------------------------------------------------------------


def flags_body(dw: Any) -> probes.Body:
    """CTAs below PRODUCERS store two rows of words to a and publish in c; the others wait for all and copy to b.

    Only wave 0 has flags to watch: what wave 1 reads is right only thanks to the barrier in `wait_flags`. n is a mask
    of the producers that are alive.
    """

    @dw.traced
    def body(p: probes.Arguments) -> None:
        bound = dw.Bound.start(p.bound.health, p.bound.rank, p.bound.deadline)
        cta = fx.block_idx.x
        if cta < PRODUCERS:
            if (p.n >> cta) & 1 == 1:
                for row in range_constexpr(2):
                    place = row * THREADS + p.tid
                    dw.st(p.a, cta * 2 * THREADS + place, value(cta, place, p.tag), cm=dw.CM_DEV)
                dw.publish(p.c, cta, p.tag)
        else:
            dw.wait_flags(p.geo, p.c, PRODUCERS, p.tag, bound, FLAG_SITE)
            for row in range_constexpr(2 * PRODUCERS):
                place = row * THREADS + p.tid
                word = dw.ld(p.a, place, cm=dw.CM_DEV)
                dw.st(p.b, (cta - PRODUCERS) * 2 * PRODUCERS * THREADS + place, word)

    return body


def exchange_body(dw: Any, n: int) -> probes.Body:
    """Two CTAs of one GPU send each other n pairs a lane, EPOCHS times over two regions in turn, and copy them to b.

    a: mailboxes [2][CTA][threads * n] pairs.
    """
    region = THREADS * n * 8

    @dw.traced
    def body(p: probes.Arguments) -> None:
        bound = dw.Bound.start(p.bound.health, p.bound.rank, p.bound.deadline)
        tag, cta = p.tag, fx.block_idx.x
        for epoch in range_constexpr(EPOCHS):
            boxes = p.a + epoch % 2 * 2 * region
            for j in range_constexpr(n):
                place = p.tid * n + j
                pair = fx.Vector.from_elements([value(cta, place, tag), tag], fx.Int32)
                dw.st(boxes + fx.Int64(1 - cta) * region, place * 2, pair, cm=dw.CM_DEV)
            got = dw.poll_pairs(boxes + fx.Int64(cta) * region, p.tid * n, n, tag, bound, PAIR_SITE, cm=dw.CM_DEV)
            for j in range_constexpr(n):
                dw.st(p.b, ((epoch * 2 + cta) * THREADS + p.tid) * n + j, got[j])
            tag = tag + 1
            tag = (tag == 0).select(fx.Int32(1), tag)

    return body


def halves_body(dw: Any, wave_sum: Callable[[Any], Any]) -> probes.Body:
    """CTA 1 sends a pair to every lane of CTA 0, n ticks apart for the two halves of a wave; CTA 0 adds over its lanes.

    a: mailbox [threads] pairs; b: the sum, in every lane.
    """

    @dw.traced
    def body(p: probes.Arguments) -> None:
        bound = dw.Bound.start(p.bound.health, p.bound.rank, p.bound.deadline)
        if fx.block_idx.x == 1:
            start = dw.clock()
            now = start
            if p.tid % 64 < 32:
                while now - start < fx.Int64(p.n):
                    now = dw.clock()
            pair = fx.Vector.from_elements([value(1, p.tid, p.tag) & 0xFFFF, p.tag], fx.Int32)
            dw.st(p.a, p.tid * 2, pair, cm=dw.CM_DEV)
        else:
            (word,) = dw.poll_pairs(p.a, p.tid, 1, p.tag, bound, PAIR_SITE, cm=dw.CM_DEV)
            dw.st(p.b, p.tid, wave_sum(word.to(fx.Float32)))

    return body


def rows_body(dw: Any, ranks: int, n: int) -> probes.Body:
    """Every rank sends n pairs a lane to every rank, EPOCHS times over two regions in turn, and copies them to b.

    a: this rank's mailbox [2][ranks][threads * n] pairs; c: addresses of all mailboxes; n of the launch: 1 if alive.
    """
    region = THREADS * n * 8

    @dw.traced
    def body(p: probes.Arguments) -> None:
        bound = dw.Bound.start(p.bound.health, p.bound.rank, p.bound.deadline)
        tag = p.tag
        for epoch in range_constexpr(EPOCHS):
            side = epoch % 2 * ranks * region
            if p.n == 1:
                for peer in range_constexpr(ranks):
                    box = peer_address(dw, p.c, peer) + side + fx.Int64(p.bound.rank) * region
                    for j in range_constexpr(n):
                        place = p.tid * n + j
                        pair = fx.Vector.from_elements([value(p.bound.rank, place, tag), tag], fx.Int32)
                        dw.st(box, place * 2, pair, cm=dw.CM_SYS)
            boxes = [p.a + side + source * region for source in range(ranks)]
            got = dw.poll_rows(boxes, p.tid * n, n, tag, bound, PAIR_SITE)
            for source in range_constexpr(ranks):
                for j in range_constexpr(n):
                    dw.st(p.b, ((epoch * ranks + source) * THREADS + p.tid) * n + j, got[source][j])
            tag = tag + 1
            tag = (tag == 0).select(fx.Int32(1), tag)

    return body


def peer_address(dw: Any, table: Any, peer: int) -> Any:
    """Uniform Int64 address `peer` of a table in memory."""
    low, high = (fx.Int64(dw.first_lane(word)) for word in dw.ld(table, 2 * peer, 2))
    return (high << 32) | (low & 0xFFFFFFFF)


def ring_body(dw: Any) -> probes.Body:
    """Every rank stores a row of words into the next rank's memory and publishes a flag there; then waits for its own.

    a: this rank's inbox; d: its flags; c: addresses of the next rank's inbox and flags; b: what arrived.
    """

    @dw.traced
    def body(p: probes.Arguments) -> None:
        bound = dw.Bound.start(p.bound.health, p.bound.rank, p.bound.deadline)
        if p.n == 1:
            dw.st(peer_address(dw, p.c, 0), p.tid, value(p.bound.rank, p.tid, p.tag), cm=dw.CM_SYS)
            dw.publish(peer_address(dw, p.c, 1), 0, p.tag, cm=dw.CM_SYS)
        dw.wait_flags(p.geo, p.d, 1, p.tag, bound, FLAG_SITE, cm=dw.CM_SYS)
        dw.st(p.b, p.tid, dw.ld(p.a, p.tid, cm=dw.CM_SYS))

    return body


def slow_body(dw: Any) -> probes.Body:
    """CTA 0 publishes n ticks after its start; CTA 1 waits for it, then writes ones to b."""

    @dw.traced
    def body(p: probes.Arguments) -> None:
        start = dw.clock()
        now = start
        if fx.block_idx.x == 0:
            while now - start < fx.Int64(p.n):
                now = dw.clock()
            dw.publish(p.c, 0, p.tag)
        else:
            bound = dw.Bound(p.bound.health, p.bound.rank, start + p.bound.deadline)
            dw.wait_flags(p.geo, p.c, 1, p.tag, bound, FLAG_SITE)
            dw.st(p.b, p.tid, fx.Int32(1))

    return body


def fail_body(dw: Any) -> probes.Body:
    """Every CTA reports its own failure: rank and site are both its number plus 1."""

    def body(p: probes.Arguments) -> None:
        dw.fail(p.bound.health, fx.block_idx.x + 1, fx.block_idx.x + 1)

    return body


# -- running them ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """How a run is to go: schedule and engine, the first tag, what the memory holds before, `launches` in a row on the
    same memory, a mask of who is `alive` (producer CTAs, or ranks), how long waits may take on each rank, and the most
    ticks that the clock skips while everybody polls."""

    schedule: ex.Schedule = field(default_factory=ex.Schedule.round_robin)
    engine: str = "reference"
    tag: int = 1
    fill: str = "zeros"
    launches: int = 1
    alive: int = 0xFF
    deadlines: tuple[int, ...] = (PATIENCE,) * 8
    jump: int = 100_000

    def tags(self, epochs: int) -> list[int]:
        """The tags of all launches, `epochs` each."""
        found = [self.tag]
        while len(found) < epochs * self.launches:
            found.append(next_tag(found[-1]))
        return found

    def memory(self, shape: Any, epochs: int, seed: int) -> np.ndarray:
        """Int32 words as they are before the first launch; none is a tag of this trial, some are the tag before."""
        count = int(np.prod(shape))
        if self.fill == "zeros":
            words = np.zeros(count, np.uint32)
        elif self.fill == "ones":
            words = np.full(count, 0xFFFFFFFF, np.uint32)
        else:
            words = np.random.default_rng(seed).integers(0, 2**32, count).astype(np.uint32)
            words[::3] = 2**32 - 1 if self.tag == 1 else self.tag - 1
        words[np.isin(words, np.array(self.tags(epochs), np.uint32))] = 0
        return words.view(np.int32).reshape(shape)


@dataclass(frozen=True)
class Outcome:
    """What a trial left: every word `right` after every launch, the failure on record, the clock at the longest end."""

    right: bool
    failure: Failure | None
    ticks: float


def attempt(
    trial: Trial,
    program: Any,
    memory: ex.Memory,
    arguments: Callable[[int], list[Any]],
    right: Callable[[list[int]], bool],
    *,
    epochs: int = 1,
    ctas: int = 1,
) -> Outcome:
    """Launch on all ranks at once, `trial.launches` times. `arguments(rank)` are the four bases and n; `right(tags)`
    says after each launch whether every output is that of its epochs."""
    health = memory.array(0, "health", np.array([HEALTHY], np.uint64))
    tags, all_right, ticks = trial.tags(epochs), True, 0.0
    for first in range(0, len(tags), epochs):
        launches = [
            ex.Launch(
                program,
                [*arguments(rank), signed(tags[first]), health, rank, trial.deadlines[rank], ctas],
                rank=rank,
            )
            for rank in range(memory.ranks)
        ]
        report = ex.run(
            launches,
            memory=memory,
            schedule=trial.schedule,
            engine=trial.engine,  # type: ignore[arg-type]
            model=model_of(trial.engine),
            limits=ex.Limits(jump=trial.jump, wave_ops=WORK),
        )
        all_right = all_right and bool(right(tags[first : first + epochs]))
        ticks = max(ticks, report.ticks)
    return Outcome(all_right, decode(int(health.array[0])), ticks)


def wanted_words(source: Any, place: Any, tag: int) -> np.ndarray:
    """`value` as the int32 that a kernel computes."""
    return (value(np.asarray(source, np.int64), np.asarray(place, np.int64), tag) & 0xFFFFFFFF).astype(np.uint32)


def run_flags(program: Any, trial: Trial) -> Outcome:
    """`flags_body` on one rank."""
    memory = ex.Memory(ranks=1)
    words = 2 * PRODUCERS * THREADS
    data = memory.array(0, "data", trial.memory(words, 1, 1))
    out = memory.array(0, "out", np.zeros((CONSUMERS, words), np.uint32))
    flags = memory.array(0, "flags", trial.memory(PRODUCERS, 1, 2))
    spare = memory.array(0, "spare", np.zeros(4, np.int32))
    source, place = np.divmod(np.arange(words), 2 * THREADS)

    def right(tags: list[int]) -> bool:
        return bool((out.array == wanted_words(source, place, tags[0])).all())

    arguments = [data, out, flags, spare, trial.alive]
    return attempt(trial, program, memory, lambda rank: arguments, right, ctas=PRODUCERS + CONSUMERS)


def run_exchange(program: Any, trial: Trial, n: int) -> Outcome:
    """`exchange_body` on one rank."""
    memory = ex.Memory(ranks=1)
    boxes = memory.array(0, "mailboxes", trial.memory((2, 2, THREADS * n, 2), EPOCHS, 1))
    out = memory.array(0, "out", np.zeros((EPOCHS, 2, THREADS * n), np.uint32))
    spare = memory.array(0, "spare", np.zeros(4, np.int32))
    source, place = np.array([[1], [0]]), np.arange(THREADS * n)[None, :]

    def right(tags: list[int]) -> bool:
        return bool((out.array == np.stack([wanted_words(source, place, tag) for tag in tags])).all())

    arguments = [boxes, out, spare, spare, 0]
    return attempt(trial, program, memory, lambda rank: arguments, right, epochs=EPOCHS, ctas=2)


def run_halves(program: Any, trial: Trial, delay: int) -> Outcome:
    """`halves_body`: half of the lanes get their pairs `delay` ticks late."""
    memory = ex.Memory(ranks=1)
    boxes = memory.array(0, "mailbox", trial.memory((THREADS, 2), 1, 1))
    out = memory.array(0, "out", np.zeros(THREADS, np.float32))
    spare = memory.array(0, "spare", np.zeros(4, np.int32))

    def right(tags: list[int]) -> bool:
        words = wanted_words(1, np.arange(THREADS), tags[0]) & 0xFFFF
        return bool((out.array.reshape(-1, 64) == words.reshape(-1, 64).sum(1, keepdims=True)).all())

    arguments = [boxes, out, spare, spare, delay]
    return attempt(trial, program, memory, lambda rank: arguments, right, ctas=2)


def run_rows(program: Any, trial: Trial, ranks: int, n: int) -> Outcome:
    """`rows_body` on `ranks` ranks."""
    memory = ex.Memory(ranks=ranks)
    shape = (2, ranks, THREADS * n, 2)
    boxes = [memory.array(r, "mailbox", trial.memory(shape, EPOCHS, r)) for r in range(ranks)]
    table = np.array([box.address for box in boxes], np.uint64)
    tables = [memory.array(r, "peers", table) for r in range(ranks)]
    outs = [memory.array(r, "out", np.zeros((EPOCHS, ranks, THREADS * n), np.uint32)) for r in range(ranks)]
    spares = [memory.array(r, "spare", np.zeros(4, np.int32)) for r in range(ranks)]
    source, place = np.arange(ranks)[:, None], np.arange(THREADS * n)[None, :]

    def right(tags: list[int]) -> bool:
        wanted = np.stack([wanted_words(source, place, tag) for tag in tags])
        return all(bool((out.array == wanted).all()) for out in outs)

    def arguments(rank: int) -> list[Any]:
        return [boxes[rank], outs[rank], tables[rank], spares[rank], trial.alive >> rank & 1]

    return attempt(trial, program, memory, arguments, right, epochs=EPOCHS)


def run_ring(program: Any, trial: Trial, ranks: int) -> Outcome:
    """`ring_body` on `ranks` ranks."""
    memory = ex.Memory(ranks=ranks)
    inboxes = [memory.array(r, "inbox", trial.memory(THREADS, 1, r)) for r in range(ranks)]
    flags = [memory.array(r, "flags", trial.memory(1, 1, r + 9)) for r in range(ranks)]
    nexts = [[inboxes[(r + 1) % ranks].address, flags[(r + 1) % ranks].address] for r in range(ranks)]
    tables = [memory.array(r, "next", np.array(nexts[r], np.uint64)) for r in range(ranks)]
    outs = [memory.array(r, "out", np.zeros(THREADS, np.uint32)) for r in range(ranks)]

    def right(tags: list[int]) -> bool:
        sources = [(rank - 1) % ranks for rank in range(ranks)]
        wanted = [wanted_words(source, np.arange(THREADS), tags[0]) for source in sources]
        return all(bool((out.array == words).all()) for out, words in zip(outs, wanted, strict=True))

    def arguments(rank: int) -> list[Any]:
        return [inboxes[rank], outs[rank], tables[rank], flags[rank], trial.alive >> rank & 1]

    return attempt(trial, program, memory, arguments, right)


def run_slow(program: Any, trial: Trial, delay: int) -> Outcome:
    """`slow_body`: the producer takes `delay` ticks. Right: the consumer came through."""
    memory = ex.Memory(ranks=1)
    regions = {name: memory.array(0, name, np.zeros(THREADS, np.int32)) for name in ("data", "out", "flags", "spare")}
    arguments = [*regions.values(), delay]
    return attempt(trial, program, memory, lambda rank: arguments, lambda tags: regions["out"].array.all(), ctas=2)


def run_fail(program: Any, trial: Trial, ctas: int, word: int = HEALTHY) -> int:
    """`fail_body`: the health word afterwards, from `word` before."""
    memory = ex.Memory(ranks=1)
    spare = memory.array(0, "spare", np.zeros(4, np.int32))
    health = memory.array(0, "health", np.array([word], np.uint64))
    launch = ex.Launch(program, [spare, spare, spare, spare, 0, 1, health, 0, FOREVER, ctas])
    engine: Any = trial.engine
    ex.run(launch, memory=memory, schedule=trial.schedule, engine=engine, model=model_of(engine))
    return int(health.array[0])
