"""The kernel and the reference behind one `Drafter`, compared at every proposal of whatever drives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from comparison import Evidence, Outcome, check_rows, compare_draft, heads_in_bf16, unrounded
from drafts import final_rows, outputs
from head_bounds import Heads

from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.weights import DraftWeights
from monodraft.drafter import Anchor, ContextRows, Draft
from monodraft.hosts.executor_drafter import ExecutorDrafter
from monodraft.reference import ReferenceDrafter


@dataclass(frozen=True)
class Parting:
    """Where the two first drafted different tokens in a block: which proposal, at which slot, and the lead there."""

    proposal: int
    slot: int
    lead: float
    bound: float


class Both:
    """A drafter that asks the kernel and the reference, compares, and goes on with the reference's drafts, or with the
    `kernel`'s. A third, the reference without roundings, says how far the formats themselves move the final rows.

    All ranks must be byte-equal after each proposal. `proposals` keeps both drafts of each block.
    """

    def __init__(
        self, executed: ExecutorDrafter, reference: ReferenceDrafter, weights: DraftWeights, kernel: bool = False
    ) -> None:
        self.drafters: tuple[Any, ...] = (executed, reference, unrounded(executed.config, weights))
        self.heads = Heads(executed.config, heads_in_bf16(weights))
        self.outcome = Outcome()
        self.proposals: list[tuple[Draft, Draft]] = []
        self.partings: list[Parting] = []
        self._kernel = kernel

    @property
    def config(self) -> DraftConfig:
        config: DraftConfig = self.drafters[1].config
        return config

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
        assert len(anchors) <= executed.shape.requests, "rows of one launch only are left to look at"
        with reference.recording() as rounded, exact.recording() as smooth:
            wanted = reference.propose_with_margins(anchors, logits=True)
            exact.propose(anchors)
        ours = executed.propose(anchors, logits=True)
        assert len(set(outputs(executed))) == 1, "ranks differ"
        rows = final_rows(executed, len(rounded["final"]))
        check_rows(rows, rounded["final"], smooth["final"], self.outcome)
        blocks = (each.double().split(self.config.block_size) for each in (rows, rounded["final"]))
        for draft, theirs, anchor, *both in zip(ours, wanted, anchors, *blocks, strict=True):
            self._compare(draft, theirs, Evidence(self.heads, anchor, *both))
        return ours if self._kernel else [each.draft for each in wanted]

    def _compare(self, ours: Draft, wanted: Any, evidence: Evidence) -> None:
        before = len(self.outcome.near_ties)
        same = torch.equal(evidence.kernel, evidence.reference)
        compare_draft(ours, wanted, self.outcome, same_rows=same, evidence=evidence)
        if len(self.outcome.near_ties) > before:
            slot = int((ours.tokens != wanted.draft.tokens).nonzero()[0])
            self.partings.append(Parting(len(self.proposals), slot, *self.outcome.near_ties[-1]))
        self.proposals.append((ours, wanted.draft))
