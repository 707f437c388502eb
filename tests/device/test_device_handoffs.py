"""Hand-offs under seeded schedules and a harsh memory: nothing lost, torn or stale; nothing hangs; failures are named.

Each check of `device_checks` runs on the reference engine, which also finds races, and over many seeds on the fast one.
"""

from __future__ import annotations

import pytest

pytest.importorskip("flydsl")

from device_checks import CHECKS, Effort

from monodraft.device import words

pytestmark = pytest.mark.executed

SEEDS = 60
NIGHTLY_SEEDS = 3000


@pytest.mark.parametrize("name", CHECKS)
def test_handoff_without_a_race(name: str) -> None:
    """On the reference engine, with its race detector: round-robin and a random schedule."""
    CHECKS[name](words, Effort(2, "reference"))


@pytest.mark.parametrize("name", CHECKS)
def test_handoff_under_many_schedules(name: str) -> None:
    CHECKS[name](words, Effort(SEEDS, "fast"))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", CHECKS)
def test_handoff_under_thousands_of_schedules(name: str) -> None:
    CHECKS[name](words, Effort(NIGHTLY_SEEDS, "fast", first=SEEDS))
