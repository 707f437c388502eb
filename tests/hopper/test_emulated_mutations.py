"""Every exchange of the kernels broken once: schedules or the search for races see it, or it is listed as not seen."""

from __future__ import annotations

import pytest
import torch
from emulated import MARKS
from emulated_mutations import MUTATIONS, Mutation

from monodraft.checkpoint import load_drafter
from monodraft.checkpoint.shipped import DRAFTER, TARGET
from monodraft.drafter import Anchor, ContextRows
from monodraft.errors import StepFailed
from monodraft.hopper.drafter import HopperDrafter
from monodraft.hopper.emulator import Emulator, EmulatorError, build
from monodraft.hopper.step import Form

pytestmark = [*MARKS, pytest.mark.slow]
LENGTH = 8


def drafter(emulator: Emulator) -> HopperDrafter:
    config, weights = load_drafter(DRAFTER, TARGET)
    return HopperDrafter(config, weights, mxfp8=True, max_requests=1, max_positions=128, emulator=emulator)


def bytes_of(ours: HopperDrafter, emulator: Emulator, seed: int) -> bytes:
    """A draft with new context rows from a fresh workspace, as one launch or (odd seeds) a chain."""
    ours.reset()
    for buffer in ours.workspace.buffers.values():  # type: ignore[union-attr]
        buffer.zero_()
    generator = torch.Generator().manual_seed(4)
    ours.open(0)
    ours.commit([ContextRows(0, 0, torch.randn(LENGTH, ours.config.feature_size, generator=generator).bfloat16())])
    ours.step.form = Form.CHAIN if seed % 2 else Form.ONE_LAUNCH
    emulator.seed = seed
    try:
        [draft] = ours.propose([Anchor(0, 11, LENGTH)])
    finally:
        ours.close(0)
    assert draft.confidence is not None
    pool = ours.workspace.buffers["pool"]  # type: ignore[union-attr]
    return (
        draft.tokens.numpy().tobytes() + draft.confidence.numpy().tobytes() + pool.view(torch.int16).numpy().tobytes()
    )


@pytest.fixture(scope="module")
def right() -> bytes:
    emulator = Emulator(8)
    return bytes_of(drafter(emulator), emulator, 0)


def broken(mutation: Mutation) -> dict[str, str]:
    files = real()
    for name, old, new in mutation.changes:
        assert files[name].count(old) == 1, f"{name}: {old!r} is not there once"
        files[name] = files[name].replace(old, new)
    return files


real = build.sources


def seen(emulator: Emulator, seeds: range, right: bytes) -> bool:
    """Whether a run ends in other bytes or in an error."""
    ours = drafter(emulator)
    for seed in seeds:
        try:
            if bytes_of(ours, emulator, seed) != right:
                return True
        except (EmulatorError, StepFailed) as error:
            print(f"seed {seed}: {str(error)[:300]}")
            return True
    return False


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_a_broken_exchange_is_seen(mutation: Mutation, right: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "sources", lambda step=None: broken(mutation))
    found = (seen(Emulator(8), range(8), right), seen(Emulator(8, races=True), range(2), right))
    assert found == (mutation.schedules, mutation.races)


def test_the_kernels_have_no_race(right: bytes) -> None:
    emulator = Emulator(8, races=True)
    ours = drafter(emulator)
    for seed in range(6):
        assert bytes_of(ours, emulator, seed) == right
