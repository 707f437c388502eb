"""The distribution test again with a transformers target and the reference drafter: the seams are theirs.

Same level as the scripted test (p < 1e-4). What it can see and the scripted one cannot: draft tokens that were not
drawn from the logits that came with them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
import torch
from scipy.stats import chi2
from scripted import run
from tiny_models import HIDDEN, LAYERS, SIZES, tiny_draft_config
from transformers import Qwen3Config, Qwen3ForCausalLM

from monodraft import reference
from monodraft.drafter import Anchor, Draft
from monodraft.loop.request import Request
from monodraft.loop.sampling import Sampling, draft_probabilities, target_probabilities
from monodraft.loop.session import Session
from monodraft.loop.target import Target
from monodraft.reference import ReferenceDrafter
from monodraft.testing import random_weights

pytestmark = pytest.mark.numbers

VOCAB = 5
REQUESTS = 450
PROMPT = (1, 4, 2)
SAMPLING = Sampling(0.9)


def model() -> Qwen3ForCausalLM:
    torch.manual_seed(11)
    return Qwen3ForCausalLM(Qwen3Config(**(SIZES | {"vocab_size": VOCAB}))).eval()


def drafter() -> ReferenceDrafter:
    config = tiny_draft_config(vocab_size=VOCAB, mask_token_id=VOCAB - 1, block_size=3)
    assert config.hidden_size == HIDDEN
    weights = random_weights(config, seed=3)
    weights = replace(weights, lm_head=weights.lm_head * 3)  # sure of itself, and wrong
    return ReferenceDrafter(config, weights, "exact", max_requests=REQUESTS, pages=REQUESTS)


def joint() -> dict[tuple[int, int], float]:
    """Exact probabilities of the second and third token behind the prompt and each first token, averaged over it."""
    target = model()
    with torch.inference_mode():
        texts = torch.tensor([(*PROMPT, a, b) for a, b in product(range(VOCAB), repeat=2)])
        p = target_probabilities(target(input_ids=texts).logits.flatten(0, 1), SAMPLING).unflatten(0, texts.shape)
    result: dict[tuple[int, int], float] = {}
    for row, (a, b) in enumerate(product(range(VOCAB), repeat=2)):
        before = float(p[row, 2, a] * p[row, 3, b])
        for c in range(VOCAB):
            result[b, c] = result.get((b, c), 0.0) + before * float(p[row, 4, c])
    return result


def p_value() -> float:
    requests = [Request(PROMPT, 4, sampling=SAMPLING, seed=seed) for seed in range(REQUESTS)]
    session = Session(Target(model(), LAYERS), drafter())
    outputs = run(session, *requests)
    accepted = sum(session.statistics(i).accepted[0] for i in range(REQUESTS))
    assert 0.2 < accepted / REQUESTS < 1.8, "the test needs both acceptance and rejection"
    counts = Counter((output[1], output[2]) for output in outputs)
    expected = {pair: p * REQUESTS for pair, p in joint().items()}
    rare = [pair for pair, count in expected.items() if count < 5]
    cells = [(counts[pair], count) for pair, count in expected.items() if pair not in rare]
    cells.append((sum(counts[pair] for pair in rare), sum(expected[pair] for pair in rare)))
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in cells if wanted)
    return float(chi2.sf(statistic, len(cells) - 1))


def test_sampled_output_of_the_real_pieces_has_the_targets_distribution() -> None:
    assert p_value() > 1e-4


def test_it_sees_drafts_that_were_not_drawn_from_their_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    propose = ReferenceDrafter.propose

    def greedy_tokens(self: ReferenceDrafter, anchors: list[Anchor], *, logits: bool = False) -> list[Draft]:
        return [replace(draft, tokens=draft.logits.argmax(-1)) for draft in propose(self, anchors)]  # type: ignore[union-attr]

    monkeypatch.setattr(ReferenceDrafter, "propose", greedy_tokens)
    assert p_value() < 1e-4


@pytest.mark.parametrize("temperature", [2e-5, 1e-3, 0.3, 0.9, 1.7])
def test_verification_judges_by_the_very_q_that_the_drafter_draws_from(temperature: float) -> None:
    """At a temperature of 2e-5 the rounding of logits / T to float32 moves q by 2 percent between near ties."""
    logits = torch.randn(7, 300, generator=torch.Generator().manual_seed(3)) * 9
    q = draft_probabilities(logits, Sampling(temperature))
    assert torch.equal(q, reference.draft_probabilities(logits, temperature))
