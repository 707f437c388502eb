"""Whole generations of the shipped pair: at every proposal the one-launch kernel drafts what the reference drafts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from both import Both
from watched import Watched

from monodraft.checkpoint import load_drafter
from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.shipped import DRAFTER, PAIR, TARGET
from monodraft.hosts.executor_drafter import ExecutorDrafter
from monodraft.loop.pair import load_target, load_tokenizer
from monodraft.loop.request import Request
from monodraft.loop.sampling import Sampling
from monodraft.loop.session import Session
from monodraft.loop.target import Target
from monodraft.reference import ReferenceDrafter

pytestmark = [pytest.mark.executed, pytest.mark.slow]


PROMPT = "def parse(line):"
TOKENS = 48


def make_both(drafter: Path, ranks: int, kernel: bool = False) -> Both:
    """Kernel and reference of a shipped drafter; `kernel`: whose drafts go on."""
    config, weights = load_drafter(drafter, TARGET)
    executed = ExecutorDrafter(config, weights, ranks=ranks, max_requests=2)
    return Both(executed, ReferenceDrafter(config, weights, "mxfp8", ranks=ranks), weights, kernel)


def generate(session: Session, temperature: float) -> list[int]:
    """The text of one prompt."""
    prompt = tuple(load_tokenizer(TARGET)(PROMPT)["input_ids"])
    request = session.add(Request(prompt=prompt, max_new_tokens=TOKENS, sampling=Sampling(temperature), seed=5))
    while session.running:
        session.step()
    return session.output(request)


def target_for(config: DraftConfig) -> Target:
    return load_target(TARGET, config, dtype=torch.float32, device="cpu")


@pytest.mark.parametrize("temperature", [0.0, 0.7], ids=["greedy", "sampled"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("drafter", [DRAFTER, PAIR / "drafter-qwen3"], ids=["drafter", "drafter-qwen3"])
def test_the_shipped_pair_drafts_what_the_reference_drafts(drafter: Path, ranks: int, temperature: float) -> None:
    both = make_both(drafter, ranks)
    generate(Session(target_for(both.config), both), temperature)
    print(f"{drafter.name}, ranks {ranks}, temperature {temperature}: {both.outcome}, {both.partings}")
    assert both.outcome.compared >= TOKENS


@pytest.mark.parametrize("temperature", [0.0, 0.7], ids=["greedy", "sampled"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_a_text_made_by_the_kernel_parts_from_the_reference_s_only_for_a_cause(ranks: int, temperature: float) -> None:
    """Greedy text is the target's own, whoever drafts. A sampled one may part where a near tie turned a draft, or where
    the uniform of an acceptance lies between two ratios; the cause stands at or before the first token that differs."""
    both = make_both(DRAFTER, ranks, kernel=True)
    session = Watched(target_for(both.config), both)
    ours = generate(session, temperature)
    config, weights = load_drafter(DRAFTER, TARGET)
    alone = ReferenceDrafter(config, weights, "mxfp8", ranks=ranks)
    wanted = generate(Session(target_for(config), alone), temperature)
    first = next((i for i, pair in enumerate(zip(ours, wanted, strict=False)) if pair[0] != pair[1]), None)
    prompt = len(load_tokenizer(TARGET)(PROMPT)["input_ids"])
    causes = [(cause.length - prompt, cause.what) for cause in session.causes]
    print(f"ranks {ranks}, temperature {temperature}: parted at token {first}, causes {causes}")
    if temperature == 0.0:
        assert ours == wanted
    elif ours != wanted:
        assert first is not None
        assert causes
        assert causes[0][0] <= first
