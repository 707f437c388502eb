"""Exchanges of rank groups, each broken once: schedules that hold up a rank see it; the right kernel passes them."""

import pytest
from emulated import MARKS
from hopper_shapes import rows, small
from test_ranks_emulated import drafter, output, step_of

from monodraft.drafter import Anchor
from monodraft.errors import StepFailed
from monodraft.hopper.drafter import HopperDrafter
from monodraft.hopper.emulator import EmulatorError, build
from monodraft.testing import random_weights

pytestmark = MARKS
real = build.sources
MEETING = "        meet_ranks(a, health, epoch << 8 | stage, stage, thread);\n"
BROKEN = {
    "the finish does not meet": ("step.cu", f"(cta() != 0) break;\n{MEETING}", "(cta() != 0) break;\n"),
    "one set of partials": ("stages/ranks.cuh", "((((u64)set * RANKS", "((((u64)0 * RANKS"),
    "one set of candidates": ("stages/ranks.cuh", "(u64)(step & 1) * ROWS", "(u64)0 * ROWS"),
}
"""name: file, what stands there, what stands there instead."""


def prepared() -> HopperDrafter:
    ours = drafter(small(), random_weights(small()), 2, True)
    ours.open(0)
    ours.commit([rows(small(), 0, 0, 20)])
    ours.propose([Anchor(0, 9, 20)])
    return ours


@pytest.fixture(scope="module")
def right() -> tuple[bytes, ...]:
    """Bytes of a step, the same under forty schedules and when one of them runs again."""
    ours, seen = prepared(), set()
    for seed in [*range(40), 1]:
        step_of(ours).kernel.emulator.seed = seed  # type: ignore[union-attr]
        seen.add(output(ours))
    assert len(seen) == 1
    return seen.pop()


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_exchange_of_ranks_is_seen(
    name: str, right: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, old, new = BROKEN[name]
    files = real()
    assert files[file].count(old) == 1
    monkeypatch.setattr(build, "sources", lambda step=None: files | {file: files[file].replace(old, new)})
    ours, seen = prepared(), 0
    for seed in range(1, 13):
        step_of(ours).kernel.emulator.seed = seed  # type: ignore[union-attr]
        try:
            seen += output(ours) != right
        except (AssertionError, EmulatorError, StepFailed):  # ranks differ
            seen += 1
            ours.reset()
    assert seen
