"""Whole generations of the shipped pair: at every proposal the one-launch kernel drafts what the reference drafts."""

from __future__ import annotations

import pytest
import torch
from both import Both

from monodraft.checkpoint import load_drafter
from monodraft.checkpoint.shipped import DRAFTER, TARGET
from monodraft.hosts.executor_drafter import ExecutorDrafter
from monodraft.loop.pair import load_target, load_tokenizer
from monodraft.loop.request import Request
from monodraft.loop.sampling import Sampling
from monodraft.loop.session import Session
from monodraft.reference import ReferenceDrafter

pytestmark = [pytest.mark.executed, pytest.mark.slow]


@pytest.mark.parametrize("temperature", [0.0, 0.7], ids=["greedy", "sampled"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_the_shipped_pair_drafts_what_the_reference_drafts(ranks: int, temperature: float) -> None:
    config, weights = load_drafter(DRAFTER, TARGET)
    executed = ExecutorDrafter(config, weights, ranks=ranks, max_requests=2)
    both = Both(executed, ReferenceDrafter(config, weights, "mxfp8", ranks=ranks), weights)
    session = Session(load_target(TARGET, config, dtype=torch.float32, device="cpu"), both)
    prompt = tuple(load_tokenizer(TARGET)("def parse(line):")["input_ids"])
    session.add(Request(prompt=prompt, max_new_tokens=48, sampling=Sampling(temperature), seed=5))
    while session.running:
        session.step()
    outcome = both.outcome
    print(f"ranks {ranks}, temperature {temperature}: {outcome}")
    assert outcome.compared >= 48
