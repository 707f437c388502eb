"""The `Drafter` protocol over the one-launch step: queue, pages, inputs, launches, failures. Hosts add the memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from monodraft.checkpoint.config import DraftConfig
from monodraft.device.health import next_tag
from monodraft.drafter import Anchor, ContextRows, Draft
from monodraft.errors import StepFailed
from monodraft.hosts.checks import GREEDY_BELOW, check_anchors, check_commit, check_open
from monodraft.hosts.failures import failure
from monodraft.hosts.packing import bf16
from monodraft.hosts.pages import PageTables
from monodraft.plan.shape import MAX_ROWS, StepShape
from monodraft.plan.step import Plan


@dataclass(frozen=True)
class Row:
    """One context row that waits to be committed."""

    request: int
    position: int
    features: np.ndarray


def step_shape(
    config: DraftConfig,
    ranks: int,
    ctas: int,
    max_requests: int,
    positions: int | None,
    pages: int | None,
    page_size: int,
    **more: Any,
) -> StepShape:
    """The layout of a host's launches: as many requests together as 16 rows hold; pages for all positions of all
    requests, and 2048 positions a request, unless said otherwise. Raises InputError for what the kernel cannot do."""
    positions = min(config.max_positions, 2048 if positions is None else positions)
    together = max(1, min(max_requests, MAX_ROWS // max(1, config.block_size)))
    return StepShape(
        config,
        ranks=ranks,
        ctas=ctas,
        requests=together,
        capacity=together,
        pages=max_requests * -(-positions // page_size) if pages is None else pages,
        page_size=page_size,
        positions=positions,
        **more,
    )


class StepDrafter:
    """A `monodraft.drafter.Drafter` whose every propose is one launch on each rank. What `commit` is given waits and
    travels with the next propose; more than 16 rows go first, in launches that only commit.

    A host gives the `workspace` (memory and launch: `workspace.Workspace`, `hip_workspace.HipWorkspace`) and `program`.
    `ticks` bounds a launch (10 ns each).
    """

    def __init__(self, shape: StepShape, workspace: Any, max_requests: int, ticks: int) -> None:
        self.shape, self.workspace = shape, workspace
        self._tables = PageTables(shape.pages, shape.page_size, max_requests)
        self._queue: list[Row] = []
        self._programs: dict[tuple[int, int, bool], tuple[Plan, Any]] = {}
        self._ticks = ticks
        self._failed: StepFailed | None = None
        self.launches = 0
        self.report: Any = None

    @property
    def config(self) -> DraftConfig:
        return self.shape.config

    def open(self, request: int) -> None:
        """Start a request with an empty context. InputError where it is open or too many are."""
        self._tables.open(request)

    def close(self, request: int) -> None:
        """Forget a request, its pages and its waiting rows. InputError where it is not open."""
        check_open(self._tables, request)
        self._queue = [row for row in self._queue if row.request != request]
        self._tables.close(request)

    def fork(self, source: int, request: int, length: int) -> None:
        """Open `request` with the first `length` positions of `source`; whole pages are shared, the last one copied."""
        check_open(self._tables, source, "source")
        self._commit_down_to(0)
        cut = self._tables.fork(source, request, length)
        if cut is not None:
            self.workspace.copy_page(*cut)

    def commit(self, rows: Sequence[ContextRows]) -> None:
        """Queue context rows for the next launch. InputError, and no change, where one is wrong."""
        added = check_commit(self._tables, self.shape, rows)
        for row in rows:
            features = bf16(row.features)
            self._queue += [Row(row.request, row.start + index, values) for index, values in enumerate(features)]
        for request, count in added.items():
            self._tables.extend(request, count)

    def propose(self, anchors: Sequence[Anchor], *, logits: bool = False) -> list[Draft]:
        """Draft one block per anchor, in order. InputError where an anchor cannot be; StepFailed for a step that did
        not complete: nothing is lost then, and after `reset` the same call works."""
        check_anchors(self._tables, self.shape, anchors)
        drafts: list[Draft] = []
        if anchors:
            self._commit_down_to(MAX_ROWS)
        for first in range(0, len(anchors), self.shape.requests):
            drafts += self._draft(anchors[first : first + self.shape.requests], logits)
        return drafts

    def reset(self) -> None:
        """Make the group of ranks usable again after a StepFailed."""
        self.workspace.reset()
        self._failed = None

    def program(self, requests: int, context_rows: int, sampled: bool = False) -> tuple[Plan, Any]:
        """Plan of a launch and what the workspace launches for it; made at the first use."""
        raise NotImplementedError

    def launch_options(self) -> dict[str, Any]:
        """What else the workspace's launch is given."""
        return {}

    def _commit_down_to(self, most: int) -> None:
        """Launches that only commit, until at most `most` rows wait."""
        while len(self._queue) > most:
            self._launch((), self._queue[:MAX_ROWS])

    def _draft(self, anchors: Sequence[Anchor], logits: bool) -> list[Draft]:
        self._launch(anchors, self._queue)
        view = self.workspace.local[0]
        block = self.shape.block
        drafts = []
        for index, anchor in enumerate(anchors):
            wanted = logits or anchor.temperature >= GREEDY_BELOW
            rows = slice(index * block, (index + 1) * block)
            tokens = torch.from_numpy(view("tokens")[rows].astype(np.int64))
            confidence = torch.from_numpy(view("confidence")[rows].copy()) if self.config.has_confidence else None
            drafts.append(Draft(anchor.request, tokens, self._logits(rows) if wanted else None, confidence))
        return drafts

    def _logits(self, rows: slice) -> torch.Tensor:
        parts = [view("logits")[rows, : self.shape.vocab] for view in self.workspace.local]
        return torch.from_numpy(np.concatenate(parts, 1))

    def _launch(self, anchors: Sequence[Anchor], rows: Sequence[Row]) -> None:
        if self._failed is not None:
            raise self._failed
        sampled = any(anchor.temperature >= GREEDY_BELOW for anchor in anchors)
        plan, program = self.program(len(anchors), MAX_ROWS if rows else 0, sampled)
        self._write_inputs(anchors, rows)
        epoch = next_tag(int(self.workspace.local[0]("epoch").view(np.uint32)[0]))
        self.report = self.workspace.launch(plan, program, self._ticks, **self.launch_options())
        self.launches += 1
        self._failed = failure(plan, self.workspace, epoch, len(rows), self.workspace.ranks)
        if self._failed is not None:
            raise self._failed
        self._queue = self._queue[len(rows) :]

    def _write_inputs(self, anchors: Sequence[Anchor], rows: Sequence[Row]) -> None:
        """What the kernel reads, the same on every rank."""
        for view in self.workspace.local:
            for index, anchor in enumerate(anchors):
                view("temperatures")[index] = anchor.temperature
                view("seeds").view(np.uint32)[index] = anchor.seed & 0xFFFFFFFF, anchor.seed >> 32
                pages = self._tables[anchor.request].pages
                view("anchors")[index], view("starts")[index] = anchor.token, anchor.position
                view("page_table")[index, : len(pages)] = pages
            view("context_count")[0] = len(rows)
            for index, row in enumerate(rows):
                view("context_positions")[index] = row.position
                view("context_slots")[index] = self._tables.slot(row.request, row.position)
                view("features")[index] = row.features
