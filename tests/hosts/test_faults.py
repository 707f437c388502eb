"""Every wait of the plan, and what becomes of it when its producer fails: a StepFailed that names the wait, in time.

The cases are made from the plan's own list of waits, so that a new stage cannot be forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch

pytest.importorskip("flydsl")

from faulty import CTAS, JUMP, ROWS, TICKS, TOKEN, Fault, FaultyDrafter, Kind, features, small_config, small_weights

import monodraft.executor as ex
from monodraft.drafter import Anchor, ContextRows
from monodraft.errors import StepFailed
from monodraft.plan.order import Order, Turn
from monodraft.plan.shape import AllReduce, StepShape
from monodraft.plan.step import STAGGER, Plan, Stage, Wait
from monodraft.reference import ReferenceDrafter

pytestmark = pytest.mark.executed

MODES = (AllReduce.TWO_STAGE, AllReduce.ONE_SHOT)
JUST = 50 * JUMP
"""Ticks (1 ms) past a deadline at which the wait has surely seen it: it looks every 64 rounds, and the clock jumps."""
REST = TICKS // 2
"""Ticks that the rest of a step takes at most, once a late producer has come."""
LEAVE = TICKS
"""Ticks in which all CTAs have left after the last deadline: waits look at the record only every 64 rounds."""
SEEDED_TICKS = 10 * TICKS


def plan_of(mode: AllReduce) -> Plan:
    """The plan of the launches here: 5 context rows and one block, 2 ranks."""
    shape = StepShape(
        small_config(), ranks=2, ctas=CTAS, requests=1, capacity=1, pages=4, page_size=32, positions=128,
        all_reduce=mode,
    )  # fmt: skip
    return Plan(shape)


@cache
def drafter(mode: AllReduce, ticks: int = TICKS) -> FaultyDrafter:
    return FaultyDrafter(mode, ticks)


@cache
def wanted_tokens() -> torch.Tensor:
    """What the reference drafts."""
    reference = ReferenceDrafter(small_config(), small_weights(), "mxfp8", ranks=2)
    reference.open(0)
    reference.commit([ContextRows(0, 0, features())])
    return reference.propose([Anchor(0, TOKEN, ROWS)])[0].tokens


def sites(mode: AllReduce) -> list[int]:
    """Numbers of all waits."""
    return list(range(1, len(plan_of(mode).waits) + 1))


def name(mode: AllReduce, site: int) -> str:
    stage, wait, repeat = plan_of(mode).place(site)
    return f"{stage.name}{repeat}<{wait.key}"


def cases(mode: AllReduce) -> list[Any]:
    return [pytest.param(mode, site, id=f"{mode}-{name(mode, site)}") for site in sites(mode)]


def producer(plan: Plan, site: int) -> Turn:
    """The turn whose hand-off a wait waits for."""
    stage, wait, repeat = plan.place(site)
    order = Order(plan)
    (found,) = order.producers(order.turn(stage.name, repeat), wait)
    return found


def victims(plan: Plan, site: int) -> Iterator[tuple[int, int]]:
    """(rank, CTA) of producers: the first of rank 1, the last of rank 0."""
    owners = producer(plan, site).stage.owners
    yield 1, 0
    yield 0, owners - 1


def places(plan: Plan, site: int, victim: int) -> set[str]:
    """Where a failure may be said to be: the wait, on the victim's rank for flags, on any rank for what peers put."""
    stage, wait, repeat = plan.place(site)
    unit = {"once": "", "layer": f" of layer {repeat}", "slot": f" of slot {repeat}"}[stage.repeat]
    ranks = range(plan.shape.ranks) if wait.poll else [victim]
    return {f"rank {rank}, stage {stage.name}{unit}, region {wait.region}" for rank in ranks}


def writer(stage: Stage, wait: Wait, rank: int, cta: int) -> str:
    """How the failed producer is named."""
    if wait.region == "candidates":
        return f"from rank {rank}, CTA {cta}"
    return f"from rank {rank} " if wait.poll else f"from CTA {cta} "


def failed(steps: FaultyDrafter, *faults: Fault, schedule: ex.Schedule | None = None) -> tuple[StepFailed, int]:
    """The error of a step, and the tag that it had."""
    tag = 1 + max(int(view("epoch")[0]) for view in steps.workspace.local)
    launches = steps.launches
    with pytest.raises(StepFailed) as caught:
        steps.turn(*faults, schedule=schedule)
    assert steps.launches == launches + 1
    return caught.value, tag


def in_time(steps: FaultyDrafter, plan: Plan, bound: int, late: int = 0) -> None:
    """Every CTA of every rank has left: the launch is over, within its bound."""
    assert steps.report is not None
    assert steps.report.ticks <= bound + len(plan.waits) * STAGGER + max(0, late) + LEAVE


def seeded(site: int, kind: Kind) -> ex.Schedule:
    """A schedule for a case, always the same: random, or one with a starved wave, CTA or rank."""
    seed = 10 * site + kind
    return ex.Schedule.random(seed) if site % 2 else ex.Schedule.adversarial(seed)


def check_named(mode: AllReduce, site: int, kind: Kind, rank: int, cta: int, schedule: ex.Schedule | None) -> None:
    """A producer that dies or hands over a stale epoch is named, in time, and the next step is right."""
    bound = TICKS if schedule is None else SEEDED_TICKS
    plan, steps = plan_of(mode), drafter(mode, bound)
    stage, wait, _ = plan.place(site)
    error, tag = failed(steps, Fault(kind, rank, cta, producer(plan, site).index), schedule=schedule)
    (fault,) = error.faults
    assert fault.where in places(plan, site, rank)
    assert fault.wanted == f"tag {tag}"
    old = re.match(r"tag (\d+) in (pair|flag) \d+, ", fault.found)
    assert old is not None, fault.found
    assert int(old[1]) == tag - 1 if kind is Kind.STALE else int(old[1]) < tag
    assert writer(stage, wait, rank, cta) in fault.found
    in_time(steps, plan, bound)
    assert torch.equal(steps.recovered(), wanted_tokens())


@pytest.mark.parametrize(("mode", "site"), cases(AllReduce.TWO_STAGE))
def test_a_dead_producer_is_named(mode: AllReduce, site: int) -> None:
    check_named(mode, site, Kind.DIES, *next(victims(plan_of(mode), site)), None)


@pytest.mark.parametrize(("mode", "site"), cases(AllReduce.TWO_STAGE))
def test_a_stale_epoch_is_named(mode: AllReduce, site: int) -> None:
    check_named(mode, site, Kind.STALE, *next(victims(plan_of(mode), site)), None)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Kind.DIES, Kind.STALE], ids=lambda kind: kind.name.lower())
@pytest.mark.parametrize(("mode", "site"), [case for mode in MODES for case in cases(mode)])
def test_failed_producers_under_seeded_schedules(mode: AllReduce, site: int, kind: Kind) -> None:
    for rank, cta in victims(plan_of(mode), site):
        check_named(mode, site, kind, rank, cta, None)
        check_named(mode, site, kind, rank, cta, seeded(site, kind))


def check_just_in_time(mode: AllReduce, site: int, rank: int, cta: int) -> None:
    plan, steps = plan_of(mode), drafter(mode)
    tokens = steps.turn(Fault(Kind.LATE, rank, cta, producer(plan, site).index, -REST))
    assert torch.equal(tokens, wanted_tokens())
    assert steps.report is not None
    assert steps.report.ticks > TICKS - REST, "nobody was late"


def check_too_late(mode: AllReduce, site: int, rank: int, cta: int) -> None:
    plan, steps = plan_of(mode), drafter(mode)
    late = site * STAGGER + JUST
    error, tag = failed(steps, Fault(Kind.LATE, rank, cta, producer(plan, site).index, late))
    (fault,) = error.faults
    assert fault.where in places(plan, site, rank)
    assert fault.wanted == f"tag {tag}"
    assert re.fullmatch(rf"tag {tag} in all \d+ (pair|flag)s, but after the deadline", fault.found)
    in_time(steps, plan, TICKS, late)
    assert torch.equal(steps.recovered(), wanted_tokens())


@pytest.mark.parametrize(("mode", "site"), cases(AllReduce.TWO_STAGE))
def test_a_producer_just_in_time_changes_nothing(mode: AllReduce, site: int) -> None:
    check_just_in_time(mode, site, *next(victims(plan_of(mode), site)))


@pytest.mark.parametrize(("mode", "site"), cases(AllReduce.TWO_STAGE))
def test_a_producer_just_too_late_is_named(mode: AllReduce, site: int) -> None:
    check_too_late(mode, site, *next(victims(plan_of(mode), site)))


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "site"), [case for mode in MODES for case in cases(mode)])
def test_late_producers_on_both_ranks(mode: AllReduce, site: int) -> None:
    for rank, cta in victims(plan_of(mode), site):
        check_just_in_time(mode, site, rank, cta)
        check_too_late(mode, site, rank, cta)


def test_every_wait_has_its_own_producer() -> None:
    """What the tests above rest on: a failed turn has one wait that must be named."""
    for mode in MODES:
        plan = plan_of(mode)
        turns = [producer(plan, site).index for site in sites(mode)]
        assert len(set(turns)) == len(turns)
        assert len(turns) == sum(len(stage.waits) * plan.repeats(stage) for stage in plan.stages)
        assert drafter(mode).program(1, 16)[0] == plan if mode is MODES[0] else True


def test_the_first_of_two_failures_is_reported() -> None:
    """A CTA of rank 0 dies in the last slot, one of rank 1 in layer 0: the earlier one is the cause."""
    mode = MODES[0]
    plan, steps = plan_of(mode), drafter(mode)
    last, first = sites(mode)[-1], plan.sites["attention<qkv"][0]
    faults = [
        Fault(Kind.DIES, 0, 0, producer(plan, last).index),
        Fault(Kind.DIES, 1, 2, producer(plan, first).index),
    ]
    error, _ = failed(steps, *faults)
    assert error.faults[0].where in places(plan, first, 1)
    assert torch.equal(steps.recovered(), wanted_tokens())


def test_a_failed_group_launches_nothing_until_it_is_reset() -> None:
    steps = drafter(MODES[0])
    error, _ = failed(steps, Fault(Kind.DIES, 1, 0, 0))
    launches = steps.launches
    with pytest.raises(StepFailed) as caught:
        steps.again()
    assert caught.value is error
    assert steps.launches == launches
    assert torch.equal(steps.recovered(), wanted_tokens())


def other_launches(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Launches pass through `change(list of launches)`."""
    run = ex.run

    def changed(launches: list[ex.Launch], **options: Any) -> ex.Report:
        return run(change(launches), **options)

    monkeypatch.setattr(ex, "run", changed)


@pytest.mark.parametrize("absent", [0, 1])
def test_a_rank_that_never_starts(absent: int) -> None:
    mode = MODES[0]
    plan, steps = plan_of(mode), drafter(mode)
    with pytest.MonkeyPatch.context() as patch:
        other_launches(patch, lambda launches: [each for each in launches if each.rank != absent])
        error, tag = failed(steps)
    waiting, missing = error.faults
    assert waiting.where == f"rank {1 - absent}, stage o_sum of layer 0, region pairs.o"
    assert f"from rank {absent} " in waiting.found
    assert (missing.where, missing.wanted) == (f"rank {absent}, epoch", f"{tag}: its kernel ends")
    in_time(steps, plan, TICKS)
    assert torch.equal(steps.recovered(), wanted_tokens())


def test_a_rank_that_drafts_no_rows() -> None:
    """One rank launches a step that only commits, the other one that drafts: the first that waits in vain is named."""
    mode = MODES[0]
    plan, steps = plan_of(mode), drafter(mode)
    _, commits = steps.program(0, 16)

    def change(launches: list[ex.Launch]) -> list[ex.Launch]:
        return [each if each.rank == 0 else ex.Launch(commits, each.args, rank=1) for each in launches]

    with pytest.MonkeyPatch.context() as patch:
        other_launches(patch, change)
        error, tag = failed(steps)
    (fault,) = error.faults
    assert fault.where == "rank 1, stage qkv of layer 0, region flags.input"
    assert "(2 of 2 flags without the tag)" in fault.found
    assert fault.wanted == f"tag {tag}"
    in_time(steps, plan, TICKS)
    assert torch.equal(steps.recovered(), wanted_tokens())


@pytest.mark.slow
@pytest.mark.parametrize("more", [0, 1])
def test_ranks_that_disagree_about_the_rows(more: int) -> None:
    """Rank `more` drafts two requests, the other one: no rank returns tokens, and the next step is right."""
    steps = FaultyDrafter(MODES[0], requests=2)
    programs = {more: steps.program(2, 16)[1], 1 - more: steps.program(1, 16)[1]}
    with pytest.MonkeyPatch.context() as patch:
        other_launches(patch, lambda all_: [ex.Launch(programs[each.rank], each.args, rank=each.rank) for each in all_])
        error, _ = failed(steps)
    assert error.faults[0].where.startswith(("rank 0, stage ", "rank 1, stage "))
    assert steps.report is not None
    assert steps.report.ticks <= 2 * TICKS + LEAVE
    assert torch.equal(steps.recovered(), wanted_tokens())
