"""Sampled drafts: the reference's choice from the kernels' own logits; requests that share a launch change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from monodraft.drafter import Anchor, Draft
from monodraft.hopper.drafter import HopperDrafter
from monodraft.reference.sampling import lowest_argmax, scores

LARGE = 0x9E3779B97F4A7C15
"""Steps between seeds: both words of a seed change."""


def drawn(anchors: Sequence[Anchor], temperature: float, turn: int) -> list[Anchor]:
    """The anchors with a temperature, the second one with twice as much and so on, and seeds that are others in every
    turn."""
    return [
        replace(anchor, temperature=temperature * (1 + index), seed=(turn * LARGE + index) % 2**64)
        for index, anchor in enumerate(anchors)
    ]


def chosen(draft: Draft, anchor: Anchor) -> list[int]:
    """The reference's ids for the corrected logits that a draft comes with."""
    assert draft.logits is not None
    return [
        int(lowest_argmax(scores(row, anchor.temperature, anchor.seed, anchor.position + slot)))
        for slot, row in enumerate(draft.logits)
    ]


def choices(
    ours: HopperDrafter, anchors: Sequence[Anchor], count: int, temperatures: Sequence[float] = (0.7,)
) -> dict[str, object]:
    """Over `count` launches, temperatures in turn: drafts with another id than the reference chooses from the very
    logits that the kernels give. The noise is the same but for about one id in 2^26, so no near tie is allowed for.

    `texts`: different drafts, to see that seeds matter.
    """
    differing, texts = 0, set()
    for turn in range(count):
        wanted = drawn(anchors, temperatures[turn % len(temperatures)], turn)
        for draft, anchor in zip(ours.propose(wanted, logits=True), wanted, strict=True):
            differing += draft.tokens.tolist() != chosen(draft, anchor)
            texts.add(tuple(draft.tokens.tolist()))
    return {"drafts": count * len(anchors), "differing": differing, "texts": len(texts)}


def bytes_of(draft: Draft) -> tuple[bytes, ...]:
    """Of tokens, logits and confidence."""
    values = (draft.tokens, draft.logits, draft.confidence)
    return tuple(value.contiguous().view(torch.uint8).numpy().tobytes() for value in values if value is not None)


def companions(ours: HopperDrafter, anchors: Sequence[Anchor], temperature: float = 0.7) -> dict[str, object]:
    """Of requests that share a launch: whether the first one's bytes, greedy or sampled, are the same beside greedy
    ones, beside sampled ones and alone. The greedy build and the one that draws both run. ValueError for one request.
    """
    if not 2 <= len(anchors) <= ours.geometry.requests:
        raise ValueError(f"{len(anchors)} requests do not share a launch of up to {ours.geometry.requests}")
    found: dict[str, object] = {}
    warm = drawn(anchors, temperature, 1)
    for name, first in (("greedy", anchors[0]), ("sampled", warm[0])):
        companies = ([], list(anchors[1:]), warm[1:])
        seen = {bytes_of(ours.propose([first, *company], logits=True)[0]) for company in companies}
        found[name] = len(seen) == 1
    return found
