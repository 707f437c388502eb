"""Acceptance of a drafted block: pure functions over logits, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch

from monodraft.errors import Fault, StepFailed
from monodraft.loop.sampling import Sampling, draft_probabilities, target_probabilities, verify_generator

MIN_DRAFT_PROBABILITY = 1e-8
"""Floor of q in the acceptance ratio (DeepSpec, base_evaluator)."""

MIN_RESIDUAL_MASS = 1e-8
"""Below this the residual max(p - q, 0) is rounding noise and the correction is drawn from p itself (DeepSpec)."""


class Finish(StrEnum):
    """Why a request ended: a stop token, its own limit, the end of the model's positions, or the caller."""

    STOP = "stop"
    LENGTH = "length"
    CONTEXT = "context"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Verdict:
    """`accepted` leading drafts, then the target's own token: a correction, or a bonus if all were accepted."""

    accepted: int
    next_token: int


def confident_prefix(confidence: torch.Tensor | None, threshold: float) -> int | None:
    """Drafts to verify: those before the first whose confidence sigmoid(logit) is under the threshold.

    `confidence` float [g] logits. None: no limit, for a threshold <= 0 or without a confidence head. 0 is a good
    answer: verify the anchor alone. A NaN confidence is not confident. The rule never looks at the token that it
    cuts, only at those before it, so the output's distribution stays the target's.
    """
    if confidence is None or threshold <= 0:
        return None
    confident = (confidence.double().sigmoid() >= threshold).tolist()
    return confident.index(False) if False in confident else len(confident)


def usable_prefix(tokens: Sequence[int], logits: torch.Tensor | None, vocab_size: int) -> int:
    """Drafts before the first that cannot be judged: an id out of the vocabulary, or logits [g, V] that make no
    distribution.

    Engines saw both (argmax over NaN logits); the block is cut there instead of feeding the target a wild id.
    """
    usable = [0 <= token < vocab_size for token in tokens]
    if logits is not None:
        usable = [a and b for a, b in zip(usable, _are_distributions(logits).tolist(), strict=True)]
    return usable.index(False) if False in usable else len(usable)


def accept_greedy(drafted: Sequence[int], logits: torch.Tensor) -> Verdict:
    """Leading drafts that equal the target's argmax; the next token is its argmax after them.

    `logits` [n + 1, V]: row i judges draft i, row n follows the whole block. The lowest id wins a tie.
    Raises `StepFailed` for NaN or +infinity in the logits.
    """
    check_target_logits(logits)
    best = logits.argmax(-1).tolist()
    accepted = 0
    while accepted < len(drafted) and drafted[accepted] == best[accepted]:
        accepted += 1
    return Verdict(accepted, best[accepted])


def accept_sampled(
    drafted: Sequence[int],
    draft_logits: torch.Tensor | None,
    logits: torch.Tensor,
    sampling: Sampling,
    *,
    seed: int,
    position: int,
) -> Verdict:
    """Rejection sampling: the tokens follow the target's distribution, whatever the drafter proposes.

    `drafted` n ids, drawn from softmax(draft_logits / T), `draft_logits` [n, V]; `logits` [n + 1, V] of the target;
    draft i is meant for position + i. Draft d is accepted if u < min(1, p(d) / max(q(d), 1e-8)), u uniform in [0, 1).
    At the first rejection the next token follows max(p - q, 0), normalised (p itself where its mass is <= 1e-8);
    if all are accepted it follows p of row n. Float64. Raises `StepFailed` for NaN or
    +infinity in the logits.
    """
    check_target_logits(logits)
    p = target_probabilities(logits.cpu(), sampling)
    count = len(drafted)
    q = p[:0] if draft_logits is None else draft_probabilities(draft_logits[:count].cpu(), sampling)
    for i, token in enumerate(drafted):
        draws = verify_generator(seed, position + i)
        u = torch.rand((), dtype=torch.float64, generator=draws)
        if not u < min(1.0, float(p[i, token]) / max(float(q[i, token]), MIN_DRAFT_PROBABILITY)):
            return Verdict(i, _draw(_residual(p[i], q[i]), draws))
    return Verdict(count, _draw(p[count], verify_generator(seed, position + count)))


def kept_tokens(tokens: Sequence[int], stop: frozenset[int], room: int) -> tuple[list[int], Finish | None]:
    """Cut a round's tokens behind the first stop token (which is kept) and at `room` tokens, the limit left."""
    assert room > 0
    kept = list(tokens[:room])
    for i, token in enumerate(kept):
        if token in stop:
            return kept[: i + 1], Finish.STOP
    return kept, Finish.LENGTH if len(kept) == room else None


def check_target_logits(logits: torch.Tensor) -> None:
    """Raise `StepFailed` for NaN or +infinity: a token chosen by them would be one that nobody chose."""
    bad = (~_are_distributions(logits)).nonzero().flatten().tolist()
    if bad:
        fault = Fault(f"target: logits rows {bad}", "NaN, or an infinite maximum", "numbers")
        raise StepFailed("the target's logits are not numbers", [fault])


def _are_distributions(logits: torch.Tensor) -> torch.Tensor:
    """bool [n]: rows of [n, V] whose softmax exists. -infinity (a masked token) is fine, beside a finite logit."""
    return logits.amax(-1).isfinite()  # a NaN anywhere in the row is the maximum


def _residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Unnormalised distribution of the correction after a rejection."""
    residual = (p - q).clamp_min(0.0)
    return residual if residual.sum() > MIN_RESIDUAL_MASS else p


def _draw(weights: torch.Tensor, generator: torch.Generator) -> int:
    return int(torch.multinomial(weights, 1, generator=generator))
