"""Every line that a hand-off rests on, sabotaged: the named check must fail. A check that cannot fail shows up here."""

from __future__ import annotations

import importlib

import pytest

pytest.importorskip("flydsl")

from device_checks import CHECKS, Effort
from device_mutants import Sabotage, mutant
from device_sabotages import SABOTAGES

from monodraft.device import words
from monodraft.executor import ExecutorError

pytestmark = pytest.mark.executed

EFFORT = Effort(60, "fast")


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda each: each.name)
def test_sabotage_makes_its_check_fail(sabotage: Sabotage) -> None:
    package = mutant(sabotage)
    broken = importlib.import_module(f"{package.__name__}.words")
    with pytest.raises((AssertionError, ExecutorError)):
        CHECKS[sabotage.caught_by](broken, EFFORT)


def test_an_unbroken_copy_passes() -> None:
    """What makes the sabotaged copies fail is the sabotage, not the copying."""
    same = Sabotage("nothing", "waits.py", "    while waiting:\n", "    while waiting:\n", "")
    copy = importlib.import_module(f"{mutant(same).__name__}.words")
    assert copy is not words
    for name in {each.caught_by for each in SABOTAGES}:
        CHECKS[name](copy, Effort(2, "fast"))


def test_every_check_catches_something() -> None:
    """A check that no sabotage needs would be decoration. The one that is left is the other side of a check that is."""
    caught = {each.caught_by for each in SABOTAGES}
    assert set(CHECKS) - caught == {"slow_producer_too_late_is_a_failure"}
