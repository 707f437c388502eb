"""The comparison itself: a wrong kernel may not widen what it is allowed, a right one is never refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from comparison import Evidence, Outcome, check_rows, compare_draft, unrounded
from drafts import Conversation
from head_bounds import Heads

from monodraft.checkpoint.config import Family, MarkovKind
from monodraft.reference import ReferenceDrafter
from monodraft.testing import random_config, random_weights

pytestmark = pytest.mark.numbers

HEADS = [
    (Family.MINIMAX_M31, MarkovKind.VANILLA),
    (Family.QWEN3, MarkovKind.GATED),
    (Family.QWEN3, MarkovKind.RNN),
]


class Pair:
    """Two right drafters whose rows differ: `mxfp8`, and bf16 of the same weights in the place of a kernel."""

    def __init__(self, family: Family, markov: MarkovKind, temperature: float = 0.0) -> None:
        config = random_config(family, markov=markov)
        weights = random_weights(config)
        self.block, self.heads = config.block_size, Heads(config, weights)
        self.kernel, self.reference = (ReferenceDrafter(config, weights, name) for name in ("w8a16", "mxfp8"))
        self.exact = unrounded(config, weights)
        self.conversation = Conversation((self.kernel, self.reference, self.exact), 2, temperature=temperature)

    def turn(self) -> list[tuple[Any, Any, Evidence]]:
        """(ours, wanted, evidence) of every request."""
        with self.kernel.recording() as ours, self.reference.recording() as theirs, self.exact.recording() as smooth:
            drafts = self.conversation.turn()
        self.finals = ours["final"], theirs["final"], smooth["final"]
        blocks = (rows.double().split(self.block) for rows in self.finals[:2])
        return [
            (mine.draft, wanted, Evidence(self.heads, anchor, *both))
            for (mine, wanted, _), anchor, *both in zip(drafts, self.conversation.anchors, *blocks, strict=True)
        ]


@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("family", "markov"), HEADS, ids=str)
def test_two_right_drafters_part_only_within_the_bound(family: Family, markov: MarkovKind, temperature: float) -> None:
    """Their rows are a percent or two apart, so that they do part, and every lead is below what the rows explain."""
    pair, outcome = Pair(family, markov, temperature), Outcome()
    for _ in range(8):
        for ours, wanted, evidence in pair.turn():
            compare_draft(ours, wanted, outcome, evidence=evidence)
    assert len(outcome.near_ties) >= 2
    assert all(0 <= lead <= bound for lead, bound in outcome.near_ties)


def test_wrong_logits_are_refused_however_wrong() -> None:
    """What the kernel's logits say about themselves counts for nothing: noise as large as the lead, or larger."""
    for ours, wanted, evidence in Pair(*HEADS[0]).turn():
        for size in (0.02, 1.0, 100.0):
            noise = torch.randn(ours.logits.shape, generator=torch.Generator().manual_seed(1))
            logits = ours.logits + size * noise
            wrong = replace(ours, logits=logits, tokens=logits.argmax(-1))
            with pytest.raises(AssertionError):
                compare_draft(wrong, wanted, Outcome(), evidence=evidence)


@pytest.mark.parametrize(("family", "markov"), HEADS, ids=str)
def test_the_runner_up_is_refused(family: Family, markov: MarkovKind) -> None:
    """In every slot, the second best token in the place of the best; with honest logits and with none."""
    for ours, wanted, evidence in Pair(family, markov).turn():
        for slot in range(len(ours.tokens)):
            second = int(ours.logits[slot].topk(2).indices[1])
            tokens = ours.tokens.clone()
            tokens[slot] = second
            for logits in (ours.logits, None):
                with pytest.raises(AssertionError):
                    compare_draft(replace(ours, tokens=tokens, logits=logits), wanted, Outcome(), evidence=evidence)


def test_a_logit_off_by_one_place_or_a_confidence_off_by_a_ten_thousandth_is_refused() -> None:
    (ours, wanted, evidence), _ = Pair(*HEADS[0]).turn()
    logits = ours.logits.clone()
    logits[3, 17] = float(logits[3, 17]) * (1 + 2.0**-7)
    confidence = ours.confidence + 1e-4
    for wrong in (replace(ours, logits=logits), replace(ours, confidence=confidence)):
        with pytest.raises(AssertionError):
            compare_draft(wrong, wanted, Outcome(), evidence=evidence)


def test_without_evidence_only_a_tie_may_differ() -> None:
    (ours, wanted, _), _ = Pair(*HEADS[0]).turn()
    wrong = replace(ours, tokens=ours.tokens.flip(0))
    with pytest.raises(AssertionError):
        compare_draft(wrong, wanted, Outcome())


def test_rows_farther_than_the_formats_own_distance_are_refused() -> None:
    pair = Pair(*HEADS[0])
    pair.turn()
    _, reference, exact = pair.finals
    noise = reference.double() - exact
    outcome = Outcome()
    check_rows(exact - noise * 0.4, reference, exact, outcome)
    assert outcome.ratio == pytest.approx(1.4)
    with pytest.raises(AssertionError):
        check_rows(exact - noise * (math.sqrt(2) - 1 + 1e-3), reference, exact, Outcome())
