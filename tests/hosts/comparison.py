"""When a kernel's drafts are the reference's: rows within the formats' own distance, tokens that follow from the rows.

Of any backend: it gives its final rows as a `Block`, and `Heads` that round as its kernels do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from head_bounds import Block, Heads, possible
from intervals import Interval

from monodraft.checkpoint.config import DraftConfig, MarkovKind
from monodraft.checkpoint.layout import LINEARS
from monodraft.checkpoint.weights import DraftWeights
from monodraft.drafter import Anchor, Draft
from monodraft.reference import ReferenceDrafter
from monodraft.reference.drafter import MarginDraft
from monodraft.reference.matrices import pack
from monodraft.reference.sampling import scores as reference_scores

MEAN = 8
"""Launches from which on a run's mean is judged."""


@dataclass
class Outcome:
    """What a comparison found: drafted tokens compared, and near ties at which the two parted (lead, bound).

    `error` and `noise`: largest relative distance of a launch's final rows to the reference's, and the reference's to
    arithmetic without roundings; `ratio`: the largest quotient of the two in one launch. `squares`: sums of both
    distances' squares over all `launches`.
    """

    compared: int = 0
    near_ties: list[tuple[float, float]] = field(default_factory=list)
    error: float = 0.0
    noise: float = 0.0
    ratio: float = 0.0
    squares: tuple[float, float] = (0.0, 0.0)
    launches: int = 0

    @property
    def together(self) -> float:
        """|h' - h| / |h - x| over the rows of all launches."""
        return math.sqrt(self.squares[0] / self.squares[1]) if self.squares[1] else 0.0


@dataclass(frozen=True)
class Evidence:
    """What a block's tokens must follow from: final rows of the kernel and of the reference, float64 [g, H].

    `factors`: see `Block`; of the kernel's rows.
    """

    heads: Heads
    anchor: Anchor
    kernel: torch.Tensor
    reference: torch.Tensor
    factors: Interval | None = None

    def block(self, tokens: torch.Tensor) -> Block:
        """The kernel's block of drafted `tokens`."""
        return Block.of(self.kernel, self.anchor, tokens, self.factors)


def unrounded(config: DraftConfig, weights: DraftWeights, mxfp8: bool = True, **options: Any) -> ReferenceDrafter:
    """The reference without roundings, of the very weights that a drafter computes with: its linears in MXFP8, or as
    they are. `options`: further ones of `ReferenceDrafter`."""
    if mxfp8:
        layers = [replace(layer, **{name: pack(getattr(layer, name)) for name in LINEARS}) for layer in weights.layers]
        weights = replace(weights, layers=tuple(layers))
    return ReferenceDrafter(config, weights, "exact", **options)


def heads_in_bf16(weights: DraftWeights) -> DraftWeights:
    """Matrices of the heads as both sides use them: bf16; biases stay as shipped."""
    names = [f.name for f in fields(weights) if f.name.startswith(("markov", "lm_head", "confidence_weight"))]
    found = {name: getattr(weights, name) for name in names if not name.endswith("bias")}
    return replace(weights, **{name: value.bfloat16() for name, value in found.items() if value is not None})


def check_rows(
    rows: torch.Tensor, reference: torch.Tensor, exact: torch.Tensor, outcome: Outcome, most: float = math.sqrt(2)
) -> None:
    """Final rows of a launch are one way to round what `exact` has, as the reference's are another.

    Let n be what the reference's roundings add to the exact rows, n' what the kernel's add. Every stage of the kernel
    rounds where the reference does (`test_stage_bounds.py`), so n' has the size of n; roundings that both share make
    them alike, those that sums in another order turn make them, at worst, independent. Then |n' - n|^2 is at most
    |n|^2 + |n'|^2 = 2 |n|^2: over the rows of a launch, the distance is at most sqrt(2) of the reference's own.

    Where few roundings are shared, that is so in the mean only: a single launch may then be `most` = 2, as it would be
    if all were opposite, and all launches of a run are held to sqrt(2) (`check_together`).
    """
    exact = exact.double()
    error, noise = ((a.double() - b.double()).norm() for a, b in ((rows, reference), (reference, exact)))
    outcome.error = max(outcome.error, float(error / exact.norm()))
    outcome.noise = max(outcome.noise, float(noise / exact.norm()))
    outcome.ratio = max(outcome.ratio, float(error / noise))
    outcome.launches += 1
    outcome.squares = (outcome.squares[0] + float(error) ** 2, outcome.squares[1] + float(noise) ** 2)
    assert float(error) <= most * float(noise), (float(error), float(noise))


def check_together(outcome: Outcome) -> None:
    """The rows of all launches are within sqrt(2) of the formats' own distance of the reference's: a mean, of `MEAN`
    launches or more."""
    assert outcome.launches < MEAN or outcome.together <= math.sqrt(2), outcome.together


def compare_draft(
    ours: Draft, wanted: MarginDraft, outcome: Outcome, same_rows: bool = False, evidence: Evidence | None = None
) -> None:
    """One block: equal tokens up to a near tie, after which the two follow different tokens.

    With `evidence`, tokens, logits and confidence are what float64 makes of the kernel's own rows (`check_chain`), and
    a token may differ where the reference's lead over it is at most what its rows' distance to the kernel's moves these
    two scores, and roundings (`Heads.lead`); without, only where the reference has a tie. Where the final rows are the
    `same_rows`, logits are two roundings to bf16 of sums in another order: all but a few in a thousand are equal. (Not
    behind a gate or a recurrent state: one rounding of it that turns moves all logits of a slot, or of all later ones.)
    """
    if evidence is not None:
        check_chain(ours, evidence)
    for slot, (token, other) in enumerate(zip(ours.tokens.tolist(), wanted.draft.tokens.tolist(), strict=True)):
        outcome.compared += 1
        if token != other:
            lead, bound = float(wanted.margins[slot]), 0.0
            if evidence is not None:
                lead, bound = leads(ours, wanted.draft, evidence, slot)
            assert lead <= bound, (slot, lead, bound)
            outcome.near_ties.append((lead, bound))
            return
    if same_rows and (evidence is None or evidence.heads.config.markov is MarkovKind.VANILLA):
        equal = (ours.logits == wanted.draft.logits).double().mean()
        assert float(equal) > 0.995, equal


def check_chain(ours: Draft, evidence: Evidence) -> None:
    """Tokens, logits and confidence of a block follow from the kernel's rows, along its own chain of tokens."""
    heads, anchor = evidence.heads, evidence.anchor
    block = evidence.block(ours.tokens)
    logits = heads.logits(block)
    scores = heads.scores(logits, anchor)
    for slot, token in enumerate(ours.tokens.tolist()):
        assert possible(scores[slot], token), (slot, token)
    if ours.logits is not None:
        logits.check(ours.logits.to(logits.low.device), "logits")
    if ours.confidence is not None:
        found = ours.confidence.to(logits.low.device)
        heads.confidence(block).check(found, "confidence")


def leads(ours: Draft, wanted: Draft, evidence: Evidence, slot: int) -> tuple[float, float]:
    """The reference's lead of its token over the kernel's in a slot where they part, and the most that it can be."""
    assert wanted.logits is not None
    token, other = int(wanted.tokens[slot]), int(ours.tokens[slot])
    anchor = evidence.anchor
    score = reference_scores(wanted.logits[slot], anchor.temperature, anchor.seed, anchor.position + slot)
    blocks = (evidence.block(ours.tokens), Block.of(evidence.reference, anchor, wanted.tokens))
    return float(score[token] - score[other]), evidence.heads.lead(*blocks, anchor, slot, token, other)
