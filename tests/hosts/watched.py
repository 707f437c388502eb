"""A session that notes in which rounds the kernel's drafts lead to another text than the reference's would, and why."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from both import Both

from monodraft.drafter import Draft
from monodraft.loop.request import RequestState
from monodraft.loop.sampling import draft_probabilities, target_probabilities, verify_generator
from monodraft.loop.session import Session
from monodraft.loop.target import Target
from monodraft.loop.verify import MIN_DRAFT_PROBABILITY, Verdict, accept_sampled


@dataclass(frozen=True)
class Cause:
    """A round after which the two texts may differ: `length` of the text before it, and what parted."""

    length: int
    what: str


class Watched(Session):
    """A session whose drafter is a `Both` that goes on with the kernel's drafts.

    Until the first cause, drafts and verdicts are those of the reference, so the text is too. A cause is a block that
    parted (`Both` has checked that it was a near tie), or equal drafts of which the verdict is another because q, the
    draft probabilities, differ by the kernel's roundings: then the uniform u of an acceptance lies between the two
    ratios p / q, or the correction is drawn from residuals p - q that differ as little.
    """

    drafter: Both

    def __init__(self, target: Target, both: Both) -> None:
        super().__init__(target, both)
        self.causes: list[Cause] = []

    def _judge(self, state: RequestState, tokens: list[int], draft: Draft | None, logits: torch.Tensor) -> Verdict:
        verdict = super()._judge(state, tokens, draft, logits)
        if draft is not None and tokens:
            self._note(state, tokens, logits, verdict)
        return verdict

    def _note(self, state: RequestState, tokens: list[int], logits: torch.Tensor, verdict: Verdict) -> None:
        both, length = self.drafter, len(state.tokens)
        number = len(both.proposals) - 1
        for parting in both.partings:
            if parting.proposal == number and parting.slot < len(tokens):
                lead = f"the reference led by {parting.lead:.3g}, bound {parting.bound:.3g}"
                self.causes.append(Cause(length, f"near tie in slot {parting.slot}: {lead}"))
                return
        if state.request.sampling.greedy:
            return
        wanted = both.proposals[number][1]
        other = accept_sampled(
            tokens, wanted.logits, logits, state.request.sampling, seed=state.request.seed, position=length
        )
        if other != verdict:
            self.causes.append(Cause(length, self._verdicts(state, tokens, logits, verdict, other)))

    def _verdicts(
        self, state: RequestState, tokens: list[int], logits: torch.Tensor, ours: Verdict, theirs: Verdict
    ) -> str:
        """Why two verdicts of the same drafts differ."""
        slot, sampling = min(ours.accepted, theirs.accepted), state.request.sampling
        p = target_probabilities(logits.cpu(), sampling)[slot]
        qs = [draft_probabilities(draft.logits[slot], sampling) for draft in self.drafter.proposals[-1]]
        if ours.accepted == theirs.accepted:
            residuals = [(p - q).clamp_min(0.0) for q in qs]
            apart = float((residuals[0] / residuals[0].sum() - residuals[1] / residuals[1].sum()).abs().sum() / 2)
            return f"correction in slot {slot}: residuals {apart:.3g} apart in total variation"
        draws = verify_generator(state.request.seed, len(state.tokens) + slot)
        u = torch.rand((), dtype=torch.float64, generator=draws)
        ratios = [float(p[tokens[slot]]) / max(float(q[tokens[slot]]), MIN_DRAFT_PROBABILITY) for q in qs]
        assert min(ratios) <= float(u) < max(ratios), "u lies between the two ratios"
        kernel, reference = ratios
        return f"acceptance in slot {slot}: u {float(u):.4f}, p / q {kernel:.4f} (kernel) and {reference:.4f}"
