"""The checks of rank groups that the device run makes, executed on a CPU; and on a Hopper GPU where there is one."""

import pytest
import torch
from emulated import MARKS, benchmark
from hopper_shapes import rows, small

from monodraft.drafter import Anchor
from monodraft.hopper.drafter import HopperDrafter
from monodraft.hopper.emulator import Emulator
from monodraft.testing import random_weights

checks, generation = benchmark("rank_checks"), benchmark("generation")
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
PLACES = [
    pytest.param(False, marks=MARKS, id="emulated"),
    pytest.param(
        True,
        marks=[pytest.mark.device, pytest.mark.skipif(not HOPPER, reason="needs an NVIDIA Hopper GPU (sm_90)")],
        id="device",
    ),
]
ANCHORS = [Anchor(0, 9, 20)]


def drafter(on_device: bool, ranks: int = 2) -> HopperDrafter:
    """A small MXFP8 drafter of rank groups with 20 committed positions."""
    config = small()
    emulator = None if on_device else Emulator(ctas=7 * ranks, seed=1)
    ours = HopperDrafter(
        config,
        random_weights(config),
        mxfp8=True,
        max_requests=2,
        max_positions=512,
        bound_seconds=0.05,
        ranks=ranks,
        emulator=emulator,
    )
    ours.open(0)
    ours.commit([rows(config, 0, 0, 20)])
    return ours


@pytest.mark.parametrize("on_device", PLACES)
def test_ranks_repeats_and_forms_agree_byte_for_byte(on_device: bool) -> None:
    count = 100 if on_device else 1
    found = checks.repeats_and_forms(drafter(on_device), ANCHORS, count=count)
    assert found == {"steps": count + 10, "differing": 0, "ranks apart": 0}


@pytest.mark.parametrize("on_device", PLACES)
def test_failing_ranks_are_named_and_reset_mends_them(on_device: bool) -> None:
    ours = drafter(on_device)
    right = {"named": True, "refused": True, "right": True}
    for stage in ("layers.1.o", "layers.0.down_sum", "markov.3"):
        assert checks.silent_cta(ours, ANCHORS, 1, 3, stage) == right
    assert checks.late_rank(ours, ANCHORS, 1) == right


@pytest.mark.parametrize("on_device", PLACES)
def test_rounds_draft_as_the_reference(on_device: bool) -> None:
    config = small()
    options = {} if on_device else {"emulator": Emulator(ctas=14, seed=1)}
    found = generation.rounds(config, random_weights(config), True, count=12 if on_device else 2, ranks=2, **options)
    assert found["drafts"] == (12 if on_device else 2)
    assert found["refused"] == []
