"""Rank groups executed on a CPU: the reference's drafts, the same bytes on every rank, and ranks that fail."""

import pytest
import torch
from emulated import MARKS, benchmark
from hopper_shapes import rows, small

from monodraft.checkpoint import load_drafter
from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.shipped import DRAFTER, PAIR, TARGET
from monodraft.checkpoint.weights import DraftWeights
from monodraft.drafter import Anchor
from monodraft.errors import StepFailed
from monodraft.hopper.drafter import HopperDrafter
from monodraft.hopper.emulator import Emulator
from monodraft.hopper.ranks import GroupStep, RankGroups
from monodraft.hopper.step import Form
from monodraft.reference import ReferenceDrafter
from monodraft.testing import random_weights

pytestmark = MARKS
Shadowed = benchmark("beside").Shadowed

SAME = ("residual", "hidden", "result")
"""Buffers that hold the same on every rank after a step."""


def drafter(config: DraftConfig, weights: DraftWeights, ranks: int, mxfp8: bool, seed: int = 1) -> HopperDrafter:
    """A drafter of `ranks` rank groups of as many CTAs as the smallest build takes."""
    emulator = Emulator(ctas=max(7, config.block_size) * ranks, seed=seed)
    return HopperDrafter(
        config, weights, mxfp8=mxfp8, max_requests=2, max_positions=512, ranks=ranks, emulator=emulator
    )


def step_of(ours: HopperDrafter) -> GroupStep:
    assert isinstance(ours.step, GroupStep)
    return ours.step


def workspaces(ours: HopperDrafter) -> RankGroups:
    assert isinstance(ours.workspace, RankGroups)
    return ours.workspace


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def assert_ranks_equal(ours: HopperDrafter) -> None:
    first, *others = ({name: bytes_of(each.buffers[name]) for name in SAME} for each in workspaces(ours).ranks)
    assert all(other == first for other in others)


def compare(config: DraftConfig, weights: DraftWeights, ranks: int, mxfp8: bool) -> None:
    """Drafts of the reference with simulated ranks, up to near ties, at contexts of 1, 9 and 30 rows; all ranks
    byte-equal."""
    ours = drafter(config, weights, ranks, mxfp8)
    theirs = ReferenceDrafter(config, weights, "w8a16" if mxfp8 else "bf16", max_requests=2, ranks=ranks)
    both, before = Shadowed(ours, theirs, weights), 0
    both.open(0)
    for length in (1, 9, 30):
        both.commit([rows(config, 0, before, length - before)])
        both.propose([Anchor(0, 3 + length, length)])
        before = length
        assert_ranks_equal(ours)
    figures = both.figures()
    print(config.family, ranks, mxfp8, figures)
    assert figures["refused"] == []


@pytest.mark.parametrize("mxfp8", [False, True], ids=["bf16", "w8a16"])
def test_two_ranks_draft_as_the_reference(mxfp8: bool) -> None:
    compare(small(), random_weights(small()), 2, mxfp8)


def test_two_ranks_of_gemma4_draft_as_the_reference() -> None:
    """Deltas are summed over the ranks before they are normed; the one head of keys is on both."""
    config = small("gemma4", head_dim=256, num_kv_heads=1)
    compare(config, random_weights(config), 2, True)


@pytest.mark.slow
@pytest.mark.parametrize("mxfp8", [False, True], ids=["bf16", "w8a16"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("family", ["minimax-m31", "qwen3", "minicpm5", "gemma4"])
def test_every_family_and_rank_count_drafts_as_the_reference(family: str, ranks: int, mxfp8: bool) -> None:
    config = small(family, vocab_size=2048)
    compare(config, random_weights(config), ranks, mxfp8)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("folder", [DRAFTER, PAIR / "drafter-qwen3"], ids=["pair", "pair-qwen3"])
def test_the_shipped_drafters_draft_as_the_reference(folder, ranks: int) -> None:
    config, weights = load_drafter(folder, TARGET)
    for mxfp8 in (False, True):
        compare(config, weights, ranks, mxfp8)


@pytest.fixture(scope="module")
def ours() -> HopperDrafter:
    made = drafter(small(), random_weights(small()), 2, True)
    made.open(0)
    made.commit([rows(small(), 0, 0, 20)])
    made.propose([Anchor(0, 9, 20)])
    return made


def output(ours: HopperDrafter) -> tuple[bytes, ...]:
    [draft] = ours.propose([Anchor(0, 9, 20)], logits=True)
    assert_ranks_equal(ours)
    assert draft.logits is not None
    return bytes_of(draft.tokens), bytes_of(draft.logits)


def test_schedules_and_forms_give_the_same_bytes(ours: HopperDrafter) -> None:
    step, seen = step_of(ours), set()
    for form, seeds in ((Form.ONE_LAUNCH, range(6)), (Form.CHAIN, range(3))):
        step.form = form
        for seed in seeds:
            step.kernel.emulator.seed = seed  # type: ignore[union-attr]
            seen.add(output(ours))
    step.form = Form.ONE_LAUNCH
    assert len(seen) == 1


def test_a_silent_cta_is_named_with_its_rank_and_reset_mends_it(ours: HopperDrafter) -> None:
    before, step = output(ours), step_of(ours)
    stage = [each.name for each in step.plan].index("layers.1.o")
    step.steps[1].fault = (3, stage)
    with pytest.raises(StepFailed, match=r"(?s)\(rank 1\).*stage layers\.1\.o, wait on grid.*CTA 3: .*not arrived"):
        ours.propose([Anchor(0, 9, 20)])
    step.steps[1].fault = (-1, -1)
    with pytest.raises(StepFailed, match="reset"):
        ours.propose([Anchor(0, 9, 20)])
    ours.reset()
    assert output(ours) == before


def test_a_rank_that_never_starts_is_named_by_those_that_wait(ours: HopperDrafter) -> None:
    before, kernel = output(ours), step_of(ours).kernel
    launch = kernel.launch

    def first_rank_only(args, *, dependent: bool) -> None:
        kernel.run([(args, kernel.geometry.grid)])  # type: ignore[union-attr]

    kernel.launch = first_rank_only  # type: ignore[method-assign]
    try:
        with pytest.raises(StepFailed, match=r"(?s)\(rank 0\).*layers\.0\.o_sum, wait on peers.*rank 1: .*not arrived"):
            ours.propose([Anchor(0, 9, 20)])
    finally:
        kernel.launch = launch  # type: ignore[method-assign]
    ours.reset()
    assert output(ours) == before


def test_a_rank_at_an_older_step_is_found_and_not_believed(ours: HopperDrafter) -> None:
    """Rank 1 counts its steps from one less: what it says is an older tag, never a newer one."""
    before, groups = output(ours), workspaces(ours)
    epoch = int(groups.ranks[1].buffers["sync"][32])
    groups.ranks[1].buffers["sync"][32] = epoch - 1
    with pytest.raises(
        StepFailed, match=rf"wait on peers, CTA \d+: found tag {epoch - 1:#x}\w\w, wanted tag {epoch:#x}"
    ):
        ours.propose([Anchor(0, 9, 20)])
    ours.reset()
    assert output(ours) == before
