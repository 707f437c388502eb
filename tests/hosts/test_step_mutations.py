"""Every hand-off of the stages, sabotaged: a step of the broken kernel must go wrong under seeded schedules."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

pytest.importorskip("flydsl")

import number_sabotages
import poll_sabotages
import step_sabotages
from faulty import TOKEN, FaultyDrafter, Setting, quickly_translated
from sabotage import Sabotage, mutant

import monodraft.executor as ex
from monodraft.drafter import Anchor, ContextRows
from monodraft.errors import StepFailed
from monodraft.plan.step import Plan

pytestmark = pytest.mark.executed

STEPS = 10
SABOTAGES = [*step_sabotages.SABOTAGES, *poll_sabotages.SABOTAGES]
SLICE = 5_000_000
"""Ticks of a launch under schedules that starve a rank."""
NOTED = '    step.note("wait", stage, region)\n'


class MutantDrafter(FaultyDrafter):
    """A drafter whose kernel is traced from a copy of the stages."""

    def __init__(self, sabotage: Sabotage) -> None:
        super().__init__(sabotage.setting, ticks=SLICE)
        # Uncached memory would hide a put of too narrow a scope; ordinary memory must be enough for the right one.
        for view in self.workspace.exchange:
            view.region.uncached = False
        self._step: Any = mutant(sabotage)

    def program(self, requests: int, context_rows: int, sampled: bool = False) -> tuple[Plan, Any]:
        key = requests, context_rows, sampled
        if key not in self._programs:
            plan = Plan(self.shape)
            self._programs[key] = plan, ex.lower(self._step.launcher(plan), *self._step.placeholders())
        return self._programs[key]


def run(drafter: FaultyDrafter, seeded: bool) -> list[bytes]:
    """What STEPS steps leave in the outputs of every rank; no two have the same rows."""
    results = []
    for number in range(STEPS):
        kind = ex.Schedule.random if number % 2 else ex.Schedule.adversarial
        drafter.schedule_of_turn = kind(number) if seeded else ex.Schedule.round_robin()
        generator = torch.Generator().manual_seed(number)
        rows = torch.randn(3 + number, Setting().config.feature_size, generator=generator).bfloat16()
        drafter.open(0)
        drafter.commit([ContextRows(0, 0, rows)])
        with quickly_translated():
            drafter.propose([Anchor(0, TOKEN + number, len(rows))])
        drafter.close(0)
        names = ("tokens", "confidence", "final")
        results += [view(name).tobytes() for view in drafter.workspace.local for name in names]
    return results


@cache
def unbroken(setting: Setting) -> MutantDrafter:
    """Of a copy without a change."""
    return MutantDrafter(Sabotage("nothing", "exchange.py", NOTED, NOTED, setting))


@cache
def right(setting: Setting) -> list[bytes]:
    """What an unbroken copy leaves, undisturbed."""
    return run(unbroken(setting), False)


def settings() -> list[Any]:
    """All that sabotages are tried in; the first in the test command."""
    first, *others = dict.fromkeys(sabotage.setting for sabotage in SABOTAGES)
    return [first, *(pytest.param(each, marks=pytest.mark.slow) for each in others)]


@pytest.mark.parametrize("setting", settings(), ids=str)
def test_an_unbroken_copy_is_right_under_the_same_schedules(setting: Setting) -> None:
    assert run(unbroken(setting), True) == right(setting)


def test_every_sabotage_changes_one_text_of_the_stages() -> None:
    """What is edited there must be edited here."""
    assert {sabotage.name: sabotage.found for sabotage in SABOTAGES if sabotage.found != 1} == {}
    assert [sabotage.name for sabotage in SABOTAGES if sabotage.old == sabotage.new] == []
    assert len({(sabotage.name, sabotage.setting) for sabotage in SABOTAGES}) == len(SABOTAGES)


@pytest.mark.numbers
def test_every_sabotage_finds_its_text_once() -> None:
    """Here and not only in the nightly runs, so that a change of the stages takes its sabotages along."""
    numbers = [each for pair in number_sabotages.SABOTAGES for each in pair if isinstance(each, Sabotage)]
    assert len(numbers) > 20
    assert {each.name: each.found for each in [*SABOTAGES, *numbers] if each.found != 1} == {}


@pytest.mark.slow
@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda each: f"{each.setting}-{each.name}")
def test_a_sabotaged_hand_off_is_noticed(sabotage: Sabotage) -> None:
    """By an error, or by other results; one that is said to survive changes nothing that shows here."""
    try:
        found = run(MutantDrafter(sabotage), True)
        outcome = "the same results" if found == right(sabotage.setting) else "other results"
    except (StepFailed, ex.ExecutorError) as error:
        outcome = type(error).__name__
    print(f"{sabotage.name}: {outcome}")
    assert (outcome == "the same results") is bool(sabotage.survives)
