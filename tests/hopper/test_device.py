"""On a Hopper GPU: small drafters against the reference, forms, repeats, and a CTA that never arrives."""

import pytest
import torch
from emulated import benchmark
from hopper_shapes import rows, small

from monodraft.drafter import Anchor
from monodraft.errors import StepFailed
from monodraft.hopper.drafter import HopperDrafter
from monodraft.hopper.step import Form
from monodraft.reference import ReferenceDrafter
from monodraft.testing import random_weights

Shadowed = benchmark("beside").Shadowed
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [pytest.mark.device, pytest.mark.skipif(not HOPPER, reason="needs an NVIDIA Hopper GPU (sm_90)")]


@pytest.mark.parametrize("mxfp8", [False, True], ids=["bf16", "w8a16"])
@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("minimax-m31", {}),
        ("qwen3", {}),
        ("minicpm5", {}),
        ("gemma4", {}),
        ("gemma4", {"head_dim": 512, "num_heads": 16, "num_kv_heads": 1}),
    ],
    ids=str,
)
def test_drafts_are_the_references_up_to_near_ties(family: str, sizes: dict[str, int], mxfp8: bool) -> None:
    config = small(family, **sizes)
    weights = random_weights(config)
    ours = HopperDrafter(config, weights, mxfp8=mxfp8, max_requests=2, max_positions=512)
    numerics = "w8a16" if mxfp8 else "bf16"
    both = Shadowed(ours, ReferenceDrafter(config, weights, numerics, device="cuda", max_requests=2), weights)
    both.open(0)
    before = 0
    for length in (0, 1, 9, 20, 33, 75, 100, 140):
        both.commit([rows(config, 0, before, length - before)])
        both.propose([Anchor(0, 3 + length, length)])
        before = length
    assert both.figures()["refused"] == []


def test_forms_and_repeats_give_the_same_bytes() -> None:
    config = small()
    ours = HopperDrafter(config, random_weights(config), mxfp8=True, max_requests=2, max_positions=512)
    ours.open(0)
    ours.commit([rows(config, 0, 0, 100)])
    seen = set()
    for form in [Form.ONE_LAUNCH] * 10 + [Form.CHAIN] * 3:
        ours.step.form = form
        [draft] = ours.propose([Anchor(0, 9, 100)], logits=True)
        seen.add((draft.tokens.numpy().tobytes(), draft.logits.numpy().tobytes(), draft.confidence.numpy().tobytes()))
    assert len(seen) == 1


def test_a_silent_cta_ends_in_the_bound_by_name_and_reset_mends_it() -> None:
    config = small()
    ours = HopperDrafter(config, random_weights(config), max_requests=2, max_positions=512, bound_seconds=0.05)
    ours.open(0)
    [wanted] = ours.propose([Anchor(0, 9, 0)])
    ours.step.fault = (7, 4)
    with pytest.raises(StepFailed, match=r"stage layers\.0\.attend(.|\n)*CTA 7: found not arrived"):
        ours.propose([Anchor(0, 9, 0)])
    ours.step.fault = (-1, -1)
    with pytest.raises(StepFailed, match="reset"):
        ours.propose([Anchor(0, 9, 0)])
    ours.reset()
    [again] = ours.propose([Anchor(0, 9, 0)])
    assert torch.equal(again.tokens, wanted.tokens)
