"""Every wait of the plan, and what becomes of it when its producer fails: a StepFailed that names the wait, in time.

The cases are made from the plans' own lists of waits, so that a new stage cannot be forgotten: all waits of the vanilla
head in both all-reduces, and of the other plans those that these lack.
"""

from __future__ import annotations

import re

import pytest
import torch

pytest.importorskip("flydsl")

from fault_cases import (
    BASE,
    JUST,
    MORE,
    REST,
    SEEDED_TICKS,
    SPLIT,
    TWO_STAGE,
    cases,
    drafter,
    failed,
    in_time,
    place,
    places,
    producer,
    sites,
    victims,
    wanted_tokens,
    writer,
)
from faulty import TICKS, Fault, Kind, Setting, hand_offs

import monodraft.executor as ex
from monodraft.errors import StepFailed
from monodraft.plan.step import STAGGER

pytestmark = pytest.mark.executed


def seeded(site: int, kind: Kind) -> ex.Schedule:
    """A schedule for a case, always the same: random, or one with a starved wave, CTA or rank."""
    seed = 10 * site + kind
    return ex.Schedule.random(seed) if site % 2 else ex.Schedule.adversarial(seed)


def check_named(setting: Setting, site: int, kind: Kind, rank: int, cta: int, schedule: ex.Schedule | None) -> None:
    """A producer that dies or hands over a stale epoch is named, in time, and the next step is right."""
    bound = TICKS if schedule is None else SEEDED_TICKS
    plan, steps = setting.plan(), drafter(setting)
    _, wait, _ = plan.place(site)
    error, tag = failed(steps, Fault(kind, rank, cta, producer(plan, site)), schedule=schedule, ticks=bound)
    (fault,) = error.faults
    assert fault.where in places(plan, site, rank)
    assert fault.wanted == f"tag {tag}"
    old = re.match(r"tag (\d+) in (pair|flag) \d+, ", fault.found)
    assert old is not None, fault.found
    assert int(old[1]) == tag - 1 if kind is Kind.STALE else int(old[1]) < tag
    assert writer(wait, rank, cta) in fault.found
    in_time(steps, plan, bound)
    assert torch.equal(steps.recovered(), wanted_tokens(setting))


@pytest.mark.parametrize(("setting", "site"), [*cases(TWO_STAGE), cases(SPLIT)[0]])
def test_a_dead_producer_is_named(setting: Setting, site: int) -> None:
    check_named(setting, site, Kind.DIES, *next(victims(setting.plan(), site)), None)


@pytest.mark.parametrize(("setting", "site"), cases(TWO_STAGE))
def test_a_stale_epoch_is_named(setting: Setting, site: int) -> None:
    check_named(setting, site, Kind.STALE, *next(victims(setting.plan(), site)), None)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Kind.DIES, Kind.STALE], ids=lambda kind: kind.name.lower())
@pytest.mark.parametrize(("setting", "site"), cases(*BASE, *MORE))
def test_failed_producers_under_seeded_schedules(setting: Setting, site: int, kind: Kind) -> None:
    for rank, cta in victims(setting.plan(), site):
        check_named(setting, site, kind, rank, cta, None)
        check_named(setting, site, kind, rank, cta, seeded(site, kind))


def check_just_in_time(setting: Setting, site: int, rank: int, cta: int) -> None:
    plan, steps = setting.plan(), drafter(setting)
    tokens = steps.turn(Fault(Kind.LATE, rank, cta, producer(plan, site), -REST))
    assert torch.equal(tokens, wanted_tokens(setting))
    assert steps.report is not None
    assert steps.report.ticks > TICKS - REST, "nobody was late"


def check_too_late(setting: Setting, site: int, rank: int, cta: int) -> None:
    plan, steps = setting.plan(), drafter(setting)
    late = site * STAGGER + JUST
    error, tag = failed(steps, Fault(Kind.LATE, rank, cta, producer(plan, site), late))
    (fault,) = error.faults
    assert fault.where in places(plan, site, rank)
    assert fault.wanted == f"tag {tag}"
    assert re.fullmatch(rf"tag {tag} in all \d+ (pair|flag)s, but after the deadline", fault.found)
    in_time(steps, plan, TICKS, late)
    assert torch.equal(steps.recovered(), wanted_tokens(setting))


@pytest.mark.parametrize(("setting", "site"), cases(TWO_STAGE))
def test_a_producer_just_in_time_changes_nothing(setting: Setting, site: int) -> None:
    check_just_in_time(setting, site, *next(victims(setting.plan(), site)))


@pytest.mark.parametrize(("setting", "site"), cases(TWO_STAGE))
def test_a_producer_just_too_late_is_named(setting: Setting, site: int) -> None:
    check_too_late(setting, site, *next(victims(setting.plan(), site)))


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "site"), cases(*BASE, *MORE))
def test_late_producers_on_both_ranks(setting: Setting, site: int) -> None:
    for rank, cta in victims(setting.plan(), site):
        check_just_in_time(setting, site, rank, cta)
        check_too_late(setting, site, rank, cta)


def test_every_wait_has_its_own_producer() -> None:
    """What the tests above rest on: a failed hand-off has one wait that must be named."""
    for setting in (*BASE, *MORE):
        plan = setting.plan()
        every = [producer(plan, site) for site in range(1, len(plan.waits) + 1)]
        assert len(set(every)) == len(every) == len(hand_offs(plan))
    assert drafter(TWO_STAGE).program(1, 16)[0] == TWO_STAGE.plan()


def test_every_wait_of_every_plan_is_a_case() -> None:
    """Among the settings here; those of `MORE` add the waits of split keys and of the gated and rnn heads."""

    def keys(setting: Setting, numbers: list[int]) -> set[str]:
        places = [setting.plan().place(number) for number in numbers]
        return {f"{stage.name}<{wait.key}" for stage, wait, _ in places}

    assert all(len(sites(setting)) == len(setting.plan().waits) for setting in BASE)
    covered = {key for setting in (*BASE, *MORE) for key in keys(setting, sites(setting))}
    assert covered == {key for setting in (*BASE, *MORE) for key in setting.plan().sites}
    more = {str(setting): keys(setting, sites(setting)) for setting in MORE}
    assert more == {
        "two-stage-splits2": {"attention<pairs.maxima", "attention_join<attention", "o<attention_join"},
        "two-stage-gated": {"inner_ready<inner"},
        "two-stage-rnn": {"inner_ready<inner"},
        "one-shot-gated-splits2": {
            "attention<pairs.maxima", "attention_join<attention", "o<attention_join", "inner_ready<inner",
        },
    }  # fmt: skip


def test_the_first_of_two_failures_is_reported() -> None:
    """A CTA of rank 0 dies in the last slot, one of rank 1 in layer 0: the earlier one is the cause."""
    plan, steps = TWO_STAGE.plan(), drafter(TWO_STAGE)
    last, first = len(plan.waits), plan.sites["attention<qkv"][0]
    faults = [Fault(Kind.DIES, 0, 0, producer(plan, last)), Fault(Kind.DIES, 1, 2, producer(plan, first))]
    error, _ = failed(steps, *faults)
    assert error.faults[0].where == place(plan, first, 1)
    assert torch.equal(steps.recovered(), wanted_tokens(TWO_STAGE))


def test_a_failed_group_launches_nothing_until_it_is_reset() -> None:
    steps = drafter(TWO_STAGE)
    error, _ = failed(steps, Fault(Kind.DIES, 1, 0, 0))
    launches = steps.launches
    with pytest.raises(StepFailed) as caught:
        steps.again()
    assert caught.value is error
    assert steps.launches == launches
    assert torch.equal(steps.recovered(), wanted_tokens(TWO_STAGE))
