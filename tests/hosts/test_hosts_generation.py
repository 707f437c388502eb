"""Whole generations of the shipped pair: at every proposal the one-launch kernel drafts what the reference drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from drafts import Evidence, Outcome, check_rows, compare_draft, final_rows, unrounded
from head_bounds import Heads

from monodraft.checkpoint import load_drafter
from monodraft.checkpoint.shipped import DRAFTER, TARGET
from monodraft.checkpoint.weights import DraftWeights
from monodraft.drafter import Anchor, ContextRows, Draft
from monodraft.hosts.executor_drafter import ExecutorDrafter
from monodraft.loop.pair import load_target, load_tokenizer
from monodraft.loop.request import Request
from monodraft.loop.sampling import Sampling
from monodraft.loop.session import Session
from monodraft.reference import ReferenceDrafter

pytestmark = [pytest.mark.executed, pytest.mark.slow]


class Both:
    """A drafter that asks the kernel and the reference, compares, and goes on with the reference's drafts.

    A third, the reference without roundings, says how far the formats themselves move the final rows.
    """

    def __init__(self, executed: ExecutorDrafter, reference: ReferenceDrafter, weights: DraftWeights) -> None:
        self.drafters: tuple[Any, ...] = (executed, reference, unrounded(executed.config, weights))
        self.heads = Heads(executed.config, weights)
        self.outcome = Outcome()

    @property
    def config(self) -> Any:
        return self.drafters[1].config

    def open(self, request: int) -> None:
        for drafter in self.drafters:
            drafter.open(request)

    def close(self, request: int) -> None:
        for drafter in self.drafters:
            drafter.close(request)

    def fork(self, source: int, request: int, length: int) -> None:
        for drafter in self.drafters:
            drafter.fork(source, request, length)

    def commit(self, rows: Sequence[ContextRows]) -> None:
        for drafter in self.drafters:
            drafter.commit(rows)

    def propose(self, anchors: Sequence[Anchor], *, logits: bool = False) -> list[Draft]:
        executed, reference, exact = self.drafters
        with reference.recording() as rounded, exact.recording() as smooth:
            wanted = reference.propose_with_margins(anchors, logits=True)
            exact.propose(anchors)
        assert len(anchors) <= executed.shape.requests, "rows of one launch only are left to look at"
        ours = executed.propose(anchors, logits=True)
        rows = final_rows(executed, len(rounded["final"]))
        check_rows(rows, rounded["final"], smooth["final"], self.outcome)
        blocks = (each.double().split(self.config.block_size) for each in (rows, rounded["final"]))
        for draft, theirs, anchor, *both in zip(ours, wanted, anchors, *blocks, strict=True):
            compare_draft(draft, theirs, self.outcome, evidence=Evidence(self.heads, anchor, *both))
        return [each.draft for each in wanted]


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
