"""Every hand-off of the stages, sabotaged: a step of the broken kernel must go wrong under seeded schedules."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

pytest.importorskip("flydsl")

from faulty import TOKEN, FaultyDrafter, Setting, quickly_translated
from step_sabotages import SABOTAGES, Sabotage, mutant

import monodraft.executor as ex
from monodraft.drafter import Anchor, ContextRows
from monodraft.errors import StepFailed
from monodraft.plan.step import Plan

pytestmark = pytest.mark.executed

STEPS = 10
SLICE = 5_000_000
"""Ticks of a launch under schedules that starve a rank."""
SAME = Sabotage(
    "nothing", "exchange.py", '    step.note("wait", stage, region)\n', '    step.note("wait", stage, region)\n'
)


class MutantDrafter(FaultyDrafter):
    """A drafter whose kernel is traced from a copy of the stages."""

    def __init__(self, step: Any) -> None:
        super().__init__(ticks=SLICE)
        # Uncached memory would hide a put of too narrow a scope; ordinary memory must be enough for the right one.
        for view in self.workspace.exchange:
            view.region.uncached = False
        self._step = step

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
def right() -> list[bytes]:
    """The same of an unbroken copy, undisturbed."""
    return run(MutantDrafter(mutant(SAME)), False)


def test_an_unbroken_copy_is_right_under_the_same_schedules() -> None:
    assert run(MutantDrafter(mutant(SAME)), True) == right()


@pytest.mark.slow
@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda each: each.name)
def test_a_sabotaged_hand_off_is_noticed(sabotage: Sabotage) -> None:
    try:
        found = run(MutantDrafter(mutant(sabotage)), True)
    except (StepFailed, ex.ExecutorError):
        return
    assert found != right()
