"""Sampled output follows the target's distribution, by chi-square against the exact joint over the first tokens.

Error rate: each test of a right rule is fixed-seed and would fail by chance for one seed in 10^4 (p < 1e-4); with
five of them, one random choice of seeds in 2000. Each broken rule must fail at the same level, so the test has power.
"""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
import torch
from scipy.stats import chi2
from scripted import History, ScriptedDrafter, ScriptedTarget, run, sampled_script

from monodraft.loop import session, verify
from monodraft.loop.request import Request
from monodraft.loop.sampling import Sampling, target_probabilities
from monodraft.loop.session import Session
from monodraft.loop.verify import Verdict

pytestmark = pytest.mark.numbers

VOCAB = 4
PROMPT = (1, 2)
LENGTH = 3
REQUESTS = 3000
LEVEL = 1e-4


def joint(target: ScriptedTarget, sampling: Sampling) -> dict[History, float]:
    """Exact probability of each output of LENGTH tokens."""
    result = {}
    for output in product(range(VOCAB), repeat=LENGTH):
        probability = 1.0
        for i, token in enumerate(output):
            logits = target.logits((*PROMPT, *output[:i]))
            probability *= float(target_probabilities(logits[None], sampling)[0, token])
        result[output] = probability
    return result


def p_value(counts: Counter[History], expected: dict[History, float]) -> float:
    """Pearson's chi-square; outputs of an expected count under 5 are pooled. An impossible output gives 0."""
    if any(expected[output] == 0.0 for output in counts):
        return 0.0
    total = counts.total()
    rare = {output for output, p in expected.items() if p * total < 5}
    cells = [(counts[o], p * total) for o, p in expected.items() if o not in rare and p > 0]
    pooled = sum(expected[o] for o in rare) * total
    if pooled > 0:
        cells.append((sum(counts[o] for o in rare), pooled))
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in cells)
    return float(chi2.sf(statistic, len(cells) - 1))


def sampled_counts(target: ScriptedTarget, sampling: Sampling, block: int) -> Counter[History]:
    """First LENGTH tokens of many requests with different seeds, drafted by a bad drafter. Blocks of 1 put bonus tokens
    among them, blocks of 3 corrections of every slot."""
    drafter = ScriptedDrafter(target, sampled_script(target, block, sampling.temperature), block=block)
    loop = Session(target, drafter)
    request = lambda seed: Request(PROMPT, LENGTH + 2, sampling=sampling, seed=seed)  # noqa: E731
    outputs = run(loop, *(request(seed) for seed in range(REQUESTS)))
    first = [loop.statistics(i) for i in range(REQUESTS)]
    share = sum(s.accepted[0] for s in first) / sum(s.verified[0] for s in first)
    assert 0.2 < share < 0.8, "the test needs both acceptance and rejection"
    return Counter(tuple(output[:LENGTH]) for output in outputs)


@pytest.mark.parametrize(
    ("sampling", "block"),
    [
        (Sampling(1.0), 3),
        (Sampling(0.7), 1),
        (Sampling(1.5), 2),
        (Sampling(1.0, top_k=3), 1),
        (Sampling(1.2, top_p=0.8), 3),
    ],
    ids=str,
)
def test_sampled_output_has_the_targets_distribution(sampling: Sampling, block: int) -> None:
    target = ScriptedTarget(VOCAB)
    assert p_value(sampled_counts(target, sampling, block), joint(target, sampling)) > LEVEL


def accept_all(
    drafted: list[int], draft_logits: torch.Tensor, logits: torch.Tensor, *_: object, **__: object
) -> Verdict:
    return Verdict(len(drafted), int(logits[-1].argmax()))


def broken_residual(p: torch.Tensor, _q: torch.Tensor) -> torch.Tensor:
    return p


def shared_draws(_seed: int, _position: int) -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize(
    ("module", "name", "wrong"),
    [
        (session, "accept_sampled", accept_all),
        (verify, "_residual", broken_residual),
        (verify, "MIN_DRAFT_PROBABILITY", 0.6),
        (verify, "verify_generator", shared_draws),
        (verify, "draft_probabilities", lambda logits, sampling: (logits.double() * 0.5).softmax(-1)),
    ],
    ids=["accept all", "correct from p", "ratio to a wrong q", "the same draws everywhere", "wrong temperature in q"],
)
def test_the_test_sees_a_broken_rule(monkeypatch: pytest.MonkeyPatch, module: object, name: str, wrong: object) -> None:
    sampling = Sampling(1.0)
    target = ScriptedTarget(VOCAB)
    monkeypatch.setattr(module, name, wrong)
    drafter = ScriptedDrafter(target, sampled_script(target, 3, 1.0), block=3)
    outputs = run(Session(target, drafter), *(Request(PROMPT, 5, sampling=sampling, seed=s) for s in range(REQUESTS)))
    assert p_value(Counter(tuple(o[:LENGTH]) for o in outputs), joint(target, sampling)) < LEVEL
