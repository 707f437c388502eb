"""What must hold of the hand-offs, as functions of the words: for the real ones, and for every sabotaged copy.

A check raises AssertionError, or the executor its own finding (a race, a livelock), when something is wrong. `Effort`
says on which engine and over which seeds; seed 0 is round-robin, the others random and adversarial in turn.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import device_handoffs as handoffs
import numpy as np
from device_handoffs import FLAG_SITE, FOREVER, GEO, PAIR_SITE, PATIENCE, THREADS, Trial
from device_harness import body_program, run

import monodraft.executor as ex
from monodraft.device import probes
from monodraft.device.health import Failure, decode


@dataclasses.dataclass(frozen=True)
class Effort:
    """`seeds` schedules on `engine`, from seed `first`. Checks with several variants share the seeds out."""

    seeds: int = 4
    engine: str = "reference"
    first: int = 0

    def share(self, parts: int, most: int | None = None) -> Effort:
        """An effort of a part of the seeds, of `most` at most."""
        seeds = -(-self.seeds // parts)
        return dataclasses.replace(self, seeds=seeds if most is None else min(seeds, most))


Check = Callable[[Any, Effort], None]
CHECKS: dict[str, Check] = {}

# First tag and memory: zeroed and small; just below 2^31 in memory of ones; over the wrap at 2^32 in junk that holds
# the tag before.
STARTS = [(1, "zeros"), (2**31 - 2, "ones"), (2**32 - 3, "junk"), (7, "junk")]
SHORT = 20_000
"""Ticks (0.2 ms) until the waits of a failing launch expire."""
JUMP = 500
"""Most ticks that the clock of a failing launch skips: a wave must get its CHECK_EVERY rounds near its deadline."""
LEAVE = 5_000_000
"""Ticks (50 ms) in which every CTA must have left a failed launch: CHECK_EVERY rounds of a rank that is being starved
take some 10 ms; a rank that ignores the record stays for FOREVER."""


def check(function: Check) -> Check:
    """Enter a check under its name."""
    CHECKS[function.__name__] = function
    return function


def schedules(effort: Effort) -> Iterator[ex.Schedule]:
    """The schedules of an effort."""
    for seed in range(effort.first, effort.first + effort.seeds):
        if seed == 0:
            yield ex.Schedule.round_robin()
        else:
            yield ex.Schedule.random(seed) if seed % 2 else ex.Schedule.adversarial(seed)


def trials(effort: Effort, **options: Any) -> Iterator[Trial]:
    """The trials of an effort, over all starts."""
    for number, schedule in enumerate(schedules(effort)):
        tag, fill = STARTS[number % len(STARTS)]
        yield Trial(schedule=schedule, engine=effort.engine, tag=tag, fill=fill, **options)


def delivered(outcome: handoffs.Outcome, trial: Trial) -> None:
    assert outcome.failure is None, f"{outcome.failure} in {trial}"
    assert outcome.right, f"a wrong word in {trial}"


@check
def flags_deliver_every_word(dw: Any, effort: Effort) -> None:
    """publish and wait_flags over CTAs: what was stored before the flag is read after it, launch after launch."""
    program = body_program(handoffs.flags_body(dw), GEO)
    for trial in trials(effort, launches=2):
        delivered(handoffs.run_flags(program, trial), trial)


@check
def pairs_deliver_every_word(dw: Any, effort: Effort) -> None:
    """poll_pairs of 8, 4, 2 and 1 pairs a lane: nothing lost, nothing torn, no earlier epoch taken."""
    for n in (8, 4, 2, 1):
        program = body_program(handoffs.exchange_body(dw, n), GEO)
        for trial in trials(effort.share(4), launches=2):
            delivered(handoffs.run_exchange(program, trial, n), trial)


@check
def rows_deliver_every_word_over_ranks(dw: Any, effort: Effort) -> None:
    """poll_rows of 2 and 4 ranks that run together."""
    for ranks, n in ((2, 4), (4, 1)):
        program = body_program(handoffs.rows_body(dw, ranks, n), GEO)
        for trial in trials(effort.share(2), launches=2):
            delivered(handoffs.run_rows(program, trial, ranks, n), trial)


@check
def flags_deliver_every_word_over_ranks(dw: Any, effort: Effort) -> None:
    """publish into a peer's memory, at system scope, round a ring of ranks."""
    program = body_program(handoffs.ring_body(dw), GEO)
    for ranks in (2, 3):
        for trial in trials(effort.share(2), launches=2):
            delivered(handoffs.run_ring(program, trial, ranks), trial)


@check
def a_sum_over_lanes_after_the_wait_is_whole(dw: Any, effort: Effort) -> None:
    """Half of a wave's lanes are served long before the others: a sum over lanes after the wait sees them all."""
    rows = sibling(dw, "rows")
    program = body_program(handoffs.halves_body(dw, rows._wave_sum), GEO)
    for trial in trials(effort, launches=2):
        delivered(handoffs.run_halves(program, trial, 3000), trial)


@check
def pairs_past_the_bytes_are_not_waited_for(dw: Any, effort: Effort) -> None:
    """poll_rows with `nbytes`: lanes past it return at once, with zeros."""
    pairs = 40

    def body(p: probes.Arguments) -> None:
        values = dw.poll_rows([p.a], p.i, 1, p.tag, p.bound, PAIR_SITE, nbytes=8 * pairs)
        dw.st(p.b, p.i, values[0][0])

    program = body_program(body, GEO)
    data = np.stack([np.arange(100, 100 + pairs), np.full(pairs, 5)], 1).astype(np.int32)
    for schedule in schedules(effort.share(1, 4)):
        found = run(
            program,
            a=data,
            b=np.full(GEO.threads, -1, np.int32),
            tag=5,
            deadline=SHORT,
            schedule=schedule,
            engine=effort.engine,
        )
        assert found["health"][0] == 0
        np.testing.assert_array_equal(found["b"][:pairs], data[:, 0])
        assert not found["b"][pairs:].any()


@check
def dead_producer_is_named_and_all_leave(dw: Any, effort: Effort) -> None:
    """One producer CTA never comes: every CTA ends in time, the record is ours, the launch after a reset works."""
    program = body_program(handoffs.flags_body(dw), GEO)
    for trial in trials(effort, alive=0b101, deadlines=(SHORT,), jump=JUMP):
        outcome = handoffs.run_flags(program, trial)
        assert outcome.failure == Failure(0, FLAG_SITE), f"{outcome.failure} in {trial}"
        assert outcome.ticks < LEAVE, trial
        again = dataclasses.replace(trial, alive=0b111, deadlines=(PATIENCE,))
        delivered(handoffs.run_flags(program, again), again)


@check
def dead_rank_is_named_by_the_first_that_waited(dw: Any, effort: Effort) -> None:
    """Rank 2 of 3 sends nothing, rank 1 has the shortest patience: rank 1's wait is on record, and stays there though
    rank 0 expires later; all ranks leave in time."""
    program = body_program(handoffs.rows_body(dw, 3, 1), GEO)
    for trial in trials(effort, alive=0b011, deadlines=(100 * SHORT, SHORT, 100 * SHORT), jump=JUMP):
        outcome = handoffs.run_rows(program, trial, 3, 1)
        assert outcome.failure == Failure(1, PAIR_SITE), f"{outcome.failure} in {trial}"
        assert outcome.ticks < LEAVE, trial


@check
def others_leave_when_one_rank_failed(dw: Any, effort: Effort) -> None:
    """Only rank 0 has a deadline; the others would wait 10 s and must leave because of the health word."""
    program = body_program(handoffs.ring_body(dw), GEO)
    for trial in trials(effort, alive=0b001, deadlines=(SHORT, FOREVER, FOREVER), jump=JUMP):
        outcome = handoffs.run_ring(program, trial, 3)
        assert outcome.failure == Failure(0, FLAG_SITE), f"{outcome.failure} in {trial}"
        assert outcome.ticks < LEAVE, trial


@check
def slow_producer_just_in_time_passes(dw: Any, effort: Effort) -> None:
    """Published at 10 to 95 % of the deadline, all waves at one speed: no failure."""
    program = body_program(handoffs.slow_body(dw), GEO)
    for percent in (10, 50, 80, 95):
        trial = Trial(engine=effort.engine, deadlines=(SHORT,), jump=JUMP // 5)
        delivered(handoffs.run_slow(program, trial, SHORT * percent // 100), trial)


@check
def slow_producer_too_late_is_a_failure(dw: Any, effort: Effort) -> None:
    """Published when the deadline and CHECK_EVERY rounds are over: a failure although the flag comes in the end. With
    all waves at one speed these rounds take 2 to 5 % of the deadline: just over it are 10 and 30 % more."""
    program = body_program(handoffs.slow_body(dw), GEO)
    for percent in (110, 130):
        trial = Trial(engine=effort.engine, deadlines=(SHORT,), jump=JUMP // 5)
        outcome = handoffs.run_slow(program, trial, SHORT * percent // 100)
        assert outcome.failure == Failure(0, FLAG_SITE), f"{outcome.failure} at {percent} % in {trial}"
    for trial in trials(effort.share(1, 8), deadlines=(SHORT,), jump=JUMP):
        outcome = handoffs.run_slow(program, trial, 6 * SHORT)
        assert outcome.failure == Failure(0, FLAG_SITE), f"{outcome.failure} in {trial}"


@check
def spin_looks_before_it_loads_and_only_now_and_then(dw: Any, effort: Effort) -> None:
    """`_spin` on made-up loads: what is pending clears in round n. The deadline is over from the start, or a failure is
    on record; both are noticed in rounds CHECK_EVERY, 2 CHECK_EVERY, .. only, and a round that clears is DONE."""

    def body(p: probes.Arguments) -> None:
        def load_all(rounds: Any) -> list[Any]:
            return [dw.opaque(p.tid * 0, rounds) + rounds]

        words, failed = dw._spin(load_all, lambda words: words[0] < p.n, p.bound.deadline, p.bound.health)
        dw.st(p.b, p.tid, failed)
        dw.st(p.c, p.tid, words[0])

    program = body_program(body, GEO)
    every, late = dw.CHECK_EVERY, (-(10**6), 0)
    record = 99 << 32 | 9 << 16 | 1
    for deadline, health, verdict in (*((x, 0, 1) for x in late), (FOREVER, record, 2), (0, record, 2)):
        for n in (0, 1, every - 1, every, every + 1, 3 * every):
            outputs = {name: np.full(THREADS, -1, np.int32) for name in "bc"}
            found = run(program, n=n, deadline=deadline, health=health, engine=effort.engine, **outputs)
            expired = n > every
            assert (found["b"] == (verdict if expired else 0)).all(), (n, deadline, health)
            assert (found["c"] == (every if expired else n)).all(), (n, deadline, health)


@check
def first_record_is_kept(dw: Any, effort: Effort) -> None:
    """`fail` on a word that holds a record changes nothing."""
    program = body_program(handoffs.fail_body(dw), GEO)
    for trial in trials(effort.share(1, 8)):
        before = 99 << 32 | 9 << 16 | 1
        assert handoffs.run_fail(program, trial, 4, before) == before, trial


@check
def record_is_whole(dw: Any, effort: Effort) -> None:
    """CTAs that fail together leave the record of one of them, never a mixture."""
    program = body_program(handoffs.fail_body(dw), GEO)
    for trial in trials(effort):
        failure = decode(handoffs.run_fail(program, trial, 6))
        assert failure is not None
        assert failure.rank == failure.site, f"{failure} in {trial}"
        assert 1 <= failure.rank <= 6


@check
def a_wave_fails_as_a_whole(dw: Any, effort: Effort) -> None:
    """One lane's word is missing: `_spin` says so in all 64 lanes of that wave, and DONE in the other wave."""
    spin = body_program(sibling(dw, "probes").PROBES["_spin"], GEO)
    for schedule in schedules(effort.share(1, 8)):
        a = np.full(GEO.threads, 9, np.int32)
        a[70] = 8
        found = run(
            spin,
            a=a,
            b=np.full(GEO.threads, 7, np.int32),
            tag=9,
            deadline=SHORT,
            schedule=schedule,
            engine=effort.engine,
        )
        np.testing.assert_array_equal(found["b"], np.repeat([0, 1], 64))


def sibling(dw: Any, module: str) -> Any:
    """Another module of the same copy of the package."""
    return importlib.import_module(dw.__name__.removesuffix("words") + module)
