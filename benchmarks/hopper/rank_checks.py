"""Rank groups on one GPU: ranks, repeats and forms in equal bytes, and ranks that fail.

It exercises the protocol between ranks; it measures no tensor parallelism, since all share one memory.
"""

from __future__ import annotations

import torch

from monodraft.drafter import Anchor
from monodraft.errors import StepFailed
from monodraft.hopper.drafter import HopperDrafter
from monodraft.hopper.ranks import GroupStep, RankGroups
from monodraft.hopper.step import Form

SAME = ("residual", "hidden", "result")
"""Buffers that hold the same on every rank after a step."""


def parts(ours: HopperDrafter) -> tuple[GroupStep, RankGroups]:
    """Step and workspaces of a drafter of several ranks. TypeError for one of one rank."""
    if not isinstance(ours.step, GroupStep) or not isinstance(ours.workspace, RankGroups):
        raise TypeError(f"a drafter of {ours.geometry.ranks} ranks has no rank groups")
    return ours.step, ours.workspace


def ranks_differ(ours: HopperDrafter) -> list[str]:
    """Buffers of which a rank holds other bytes than rank 0."""
    _, groups = parts(ours)
    first, *others = groups.ranks
    return [
        f"{name} of rank {rank}"
        for rank, other in enumerate(others, 1)
        for name in SAME
        if not torch.equal(other.buffers[name].view(torch.uint8), first.buffers[name].view(torch.uint8))
    ]


def output(ours: HopperDrafter, anchors: list[Anchor]) -> tuple[bytes, ...]:
    """Bytes of a step's tokens, corrected logits and confidences."""
    found = []
    for draft in ours.propose(anchors, logits=True):
        for value in (draft.tokens, draft.logits, draft.confidence):
            if value is not None:
                found.append(value.contiguous().view(torch.uint8).numpy().tobytes())
    return tuple(found)


def repeats_and_forms(ours: HopperDrafter, anchors: list[Anchor], count: int = 100) -> dict[str, object]:
    """How many of `count` steps as one launch and 10 as a chain differ from the first in a byte, and how many steps
    left ranks with different bytes."""
    step, _ = parts(ours)
    first, differing, apart = output(ours, anchors), 0, 0
    for form in [Form.ONE_LAUNCH] * count + [Form.CHAIN] * 10:
        step.form = form
        differing += output(ours, anchors) != first
        apart += bool(ranks_differ(ours))
    step.form = Form.ONE_LAUNCH
    return {"steps": count + 10, "differing": differing, "ranks apart": apart}


def _failing(ours: HopperDrafter, anchors: list[Anchor], wanted: list[str]) -> dict[str, object]:
    """A step that must fail: whether its error says `wanted`, and whether the one before reset() is refused."""
    message, refused = "no error", False
    try:
        ours.propose(anchors, logits=True)
    except StepFailed as error:
        message = str(error)
    try:
        ours.propose(anchors, logits=True)
    except StepFailed:
        refused = True
    named = all(part in message for part in wanted)
    return {"named": named, "refused": refused} | ({} if named else {"message": message})


def silent_cta(ours: HopperDrafter, anchors: list[Anchor], rank: int, cta: int, stage: str) -> dict[str, object]:
    """A CTA of a rank that never publishes at a stage: named with its rank, and the step after reset() is right."""
    step, _ = parts(ours)
    before = output(ours, anchors)
    step.steps[rank].fault = (cta, [each.name for each in step.plan].index(stage))
    found = _failing(ours, anchors, [f"(rank {rank})", f"stage {stage},", f"CTA {cta}:"])
    step.steps[rank].fault = (-1, -1)
    ours.reset()
    return found | {"right": output(ours, anchors) == before}


def late_rank(ours: HopperDrafter, anchors: list[Anchor], rank: int) -> dict[str, object]:
    """A rank one step behind: its older tag is found by those that wait for it, and never believed."""
    _, groups = parts(ours)
    before = output(ours, anchors)
    sync = groups.ranks[rank].buffers["sync"]
    epoch = int(sync[32])
    sync[32] = epoch - 1
    found = _failing(ours, anchors, ["wait on peers", f"found tag {epoch - 1:#x}", f"wanted tag {epoch:#x}"])
    ours.reset()
    return found | {"right": output(ours, anchors) == before}
