"""The checks of sampled drafts that a device run makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import checks
import sampled_checks
from checks import Check

from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.weights import DraftWeights
from monodraft.drafter import Anchor
from monodraft.hopper.bench.kernels import prepared, timed
from monodraft.hopper.drafter import HopperDrafter
from monodraft.hopper.step import Form

Guarded = Callable[[str, Check], None]
"""Runs a check and records its result, or its failure, under a name."""


def run(guarded: Guarded, config: DraftConfig, weights: DraftWeights, others: Mapping[str, DraftWeights]) -> str:
    """Choices, forms, repeats and company of a drafter; choices of its `others`, whose logits are hard."""
    for mxfp8 in (False, True):
        label = "w8a16" if mxfp8 else "bf16"
        ours, anchors = prepared(config, weights, mxfp8, 600, max_positions=2048, bound_seconds=0.05)
        warm = sampled_checks.drawn(anchors, 0.7, 1)
        guarded(
            f"sampled choices {label}",
            lambda o=ours, a=anchors: sampled_checks.choices(o, a, 100, (0.7, 1.0, 2.5)),  # type: ignore[misc]
        )
        guarded(f"sampled forms agree {label}", lambda o=ours, w=warm: checks.forms_agree(o, w))  # type: ignore[misc]
        guarded(f"sampled 100 repeats differing {label}", lambda o=ours, w=warm: checks.repeats(o, w))  # type: ignore[misc]
    for name, changed in others.items():
        ours, anchors = prepared(config, changed, True, 40, max_positions=2048, bound_seconds=0.05)
        guarded(f"sampled choices, {name}", lambda o=ours, a=anchors: sampled_checks.choices(o, a, 10))  # type: ignore[misc]
    both = HopperDrafter(config, weights, mxfp8=True, max_requests=4, max_positions=2048, rows=16)
    two = checks.committed(both, [130, 33], "cuda")
    guarded("sampled choices w8a16, 2 requests", lambda: sampled_checks.choices(both, two, 50, (0.7, 1.3)))
    guarded("sampled companions w8a16, 2 requests", lambda: sampled_checks.companions(both, two))
    return "done"


def time(ours: HopperDrafter, anchors: list[Anchor], context: int) -> dict[str, object]:
    """Time of a sampled step as one launch; the next step is greedy again."""
    bounded, ours.step.bounded = ours.step.bounded, False
    try:
        ours.propose(sampled_checks.drawn(anchors, 0.7, 1))
        return timed(ours, Form.ONE_LAUNCH, context)
    finally:
        ours.step.bounded = bounded
        ours.propose(anchors)
