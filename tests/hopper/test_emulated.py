"""The CUDA C++ of the step executed on a CPU (monodraft.hopper.emulator)."""

import pytest
import torch

from monodraft.checkpoint import load_drafter
from monodraft.checkpoint.shipped import DRAFTER, TARGET
from monodraft.drafter import Anchor, ContextRows
from monodraft.hopper.drafter import HopperDrafter
from monodraft.hopper.emulator import CompilerMissing, Emulator
from monodraft.hopper.emulator.build import compiler
from monodraft.reference import ReferenceDrafter

try:
    compiler()
    REASON = ""
except CompilerMissing as error:
    REASON = str(error)
pytestmark = [pytest.mark.executed, pytest.mark.skipif(bool(REASON), reason=REASON or "there is a compiler")]


@pytest.mark.parametrize("mxfp8", [False, True], ids=["bf16", "w8a16"])
def test_the_shipped_pair_drafts_as_the_reference(mxfp8: bool) -> None:
    config, weights = load_drafter(DRAFTER, TARGET)
    ours = HopperDrafter(config, weights, mxfp8=mxfp8, max_requests=2, max_positions=512, emulator=Emulator(8, 1))
    theirs = ReferenceDrafter(config, weights, "w8a16" if mxfp8 else "bf16", max_requests=2)
    features = torch.randn(20, config.feature_size, generator=torch.Generator().manual_seed(3)).bfloat16()
    for drafter in (ours, theirs):
        drafter.open(0)
        drafter.commit([ContextRows(0, 0, features)])
    [draft], [wanted] = (drafter.propose([Anchor(0, 9, 20)], logits=True) for drafter in (ours, theirs))
    assert torch.equal(draft.tokens, wanted.tokens)
