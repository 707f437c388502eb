"""A drafter of the Hopper kernels with the reference beside it, held to "What equal means" of docs/hosts.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from rows import final_rows, heads_of

from monodraft.checkpoint.weights import DraftWeights
from monodraft.drafter import Anchor, ContextRows, Draft
from monodraft.hopper.drafter import HopperDrafter
from monodraft.reference.drafter import MarginDraft, ReferenceDrafter

from comparison import Evidence, Outcome, check_rows, check_together, compare_draft, unrounded  # isort: skip


class Shadowed:
    """Drafts with `ours`. All launches' rows lie within sqrt(2) of the formats' own distance of the reference's, every
    block follows from its rows, and a token is another than the reference's only within what the rows explain; what
    is not so is in `refused`. `theirs` has the same weights, format and ranks; a third drafter does not round.
    """

    def __init__(self, ours: HopperDrafter, theirs: ReferenceDrafter, weights: DraftWeights) -> None:
        self.ours, self.theirs, self.config = ours, theirs, ours.config
        device = str(ours.workspace.device)
        self.exact = unrounded(ours.config, weights, ours.geometry.mxfp8, device=device, max_requests=8)
        self.heads = heads_of(ours, weights)
        self.outcome = Outcome()
        self.drafts = 0
        self.refused: list[str] = []

    def open(self, request: int) -> None:
        for drafter in (self.ours, self.theirs, self.exact):
            drafter.open(request)

    def close(self, request: int) -> None:
        for drafter in (self.ours, self.theirs, self.exact):
            drafter.close(request)

    def fork(self, source: int, request: int, length: int) -> None:
        for drafter in (self.ours, self.theirs, self.exact):
            drafter.fork(source, request, length)

    def commit(self, rows: Sequence[ContextRows]) -> None:
        for drafter in (self.ours, self.theirs, self.exact):
            drafter.commit(rows)

    def propose(self, anchors: Sequence[Anchor], *, logits: bool = False) -> list[Draft]:
        """Drafts of `ours`; a launch at a time, since only its last rows are left to look at."""
        with self.theirs.recording() as rounded, self.exact.recording() as smooth:
            wanted = self.theirs.propose_with_margins(anchors, logits=True)
            self.exact.propose(anchors)
        drafts: list[Draft] = []
        size, g = self.ours.geometry.requests, self.config.block_size
        for start in range(0, len(anchors), size):
            part = slice(start, start + size)
            theirs, ideal = (record["final"][start * g : (start + size) * g] for record in (rounded, smooth))
            drafts += self._launch(anchors[part], wanted[part], theirs, ideal)
        return drafts

    def _launch(
        self, anchors: Sequence[Anchor], wanted: Sequence[MarginDraft], theirs: torch.Tensor, ideal: torch.Tensor
    ) -> list[Draft]:
        drafts = self.ours.propose(anchors, logits=True)
        self.compare(anchors, drafts, wanted, theirs, ideal)
        return drafts

    def compare(
        self,
        anchors: Sequence[Anchor],
        drafts: Sequence[Draft],
        wanted: Sequence[MarginDraft],
        theirs: torch.Tensor,
        ideal: torch.Tensor,
    ) -> None:
        """Drafts of the last launch beside the reference's; `theirs` and `ideal`: final rows of the other two."""
        g = self.config.block_size
        self.drafts += len(drafts)
        rows = final_rows(self.ours, len(theirs))
        self._noting(
            f"rows of launch {self.drafts}", lambda: check_rows(rows.finished, theirs, ideal, self.outcome, 2.0)
        )
        for i, (draft, each, anchor) in enumerate(zip(drafts, wanted, anchors, strict=True)):
            block = slice(i * g, (i + 1) * g)
            evidence = Evidence(self.heads, anchor, rows.stored[block], theirs[block].double(), rows.factors[block])
            self._noting(
                f"draft {self.drafts}, request {anchor.request}",
                lambda d=draft, w=each, e=evidence: compare_draft(d, w, self.outcome, evidence=e),  # type: ignore[misc]
            )

    def _noting(self, what: str, check: Callable[[], None]) -> None:
        try:
            check()
        except AssertionError as error:
            self.refused.append(f"{what}: {error}")

    def figures(self) -> dict[str, object]:
        """What was compared and found; `rows over noise`: |h' - h| / |h - x| of all launches, and the worst of one."""
        self._noting("rows of all launches", lambda: check_together(self.outcome))
        return {
            "drafts": self.drafts,
            "tokens": self.outcome.compared,
            "near ties (lead, bound)": self.outcome.near_ties,
            "rows over noise": (self.outcome.together, self.outcome.ratio),
            "refused": self.refused,
        }
