"""`HopperDrafter`: the draft step on a Hopper GPU behind the `Drafter` interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.weights import DraftWeights
from monodraft.drafter import Anchor, ContextRows, Draft
from monodraft.errors import Fault, InputError
from monodraft.hopper.draws import faults_of, is_sampled
from monodraft.hopper.emulator import Emulator
from monodraft.hopper.geometry import PAGE, Geometry
from monodraft.hopper.launch import require_hopper
from monodraft.hopper.pages import PageTable
from monodraft.hopper.ranks import GroupStep, RankGroups
from monodraft.hopper.step import Form, Step
from monodraft.hopper.weights import pack_weights
from monodraft.hopper.workspace import StepInput, Workspace
from monodraft.plan.shard import shard


class HopperDrafter:
    """A `monodraft.drafter.Drafter` on sm_90. The first sampled anchor has a second build made, which also draws.

    `mxfp8`: layer linears in MXFP8 (the reference's `w8a16`), else bf16 as shipped. `rows`: query rows of a launch,
    1..16 (default 8, or 16 for blocks above 8); requests beyond that take further launches. `pages` of 64 positions
    are shared by `max_requests` requests of at most `max_positions`. Committed rows are queued and folded into the
    next propose. `slots`: depths of the weight ring that the build may choose from. `ranks`: 1, 2, 4 or 8
    tensor-parallel rank groups, each on its share of this GPU's multiprocessors. `emulator`: runs the kernels on a
    CPU instead (monodraft.hopper.emulator), with CPU tensors.

    Raises ToolkitMissing without a Hopper GPU or the CUDA packages, UnsupportedCheckpoint for a drafter that the
    kernels do not cover, InputError for sizes that cannot be.
    """

    def __init__(
        self,
        config: DraftConfig,
        weights: DraftWeights,
        *,
        mxfp8: bool = False,
        rows: int | None = None,
        max_requests: int = 16,
        pages: int | None = None,
        max_positions: int | None = None,
        form: Form = Form.ONE_LAUNCH,
        bound_seconds: float = 2.0,
        slots: Sequence[int] = (4, 3, 2),
        ranks: int = 1,
        emulator: Emulator | None = None,
    ) -> None:
        longest = min(8192, config.max_positions - config.block_size) if max_positions is None else max_positions
        rows = (8 if config.block_size <= 8 else 16) if rows is None else rows
        sizes: dict[str, Any] = {"rows": rows, "mxfp8": mxfp8, "max_positions": longest, "ranks": ranks}
        Geometry.choose(config, **sizes)  # refusals before the GPU is touched
        grid = require_hopper() if emulator is None else emulator.ctas
        geometry = Geometry.choose(config, grid=grid, slots=slots, **sizes)
        if pages is None:
            pages = max_requests * geometry.max_pages
        self._config, self.geometry = config, geometry
        kernel = None if emulator is None else emulator.kernel(geometry)
        device = "cuda" if emulator is None else "cpu"
        self.workspace: Workspace | RankGroups
        self.step: Step | GroupStep
        if ranks == 1:
            self.workspace = Workspace(geometry, pages=pages, bound_seconds=bound_seconds, device=device)
            self.step = Step(pack_weights(geometry, weights, device), self.workspace, form, kernel=kernel)
        else:
            self.workspace = RankGroups(geometry, pages=pages, bound_seconds=bound_seconds, device=device)
            parts = [pack_weights(geometry, shard(config, weights, rank, ranks), device) for rank in range(ranks)]
            self.step = GroupStep(parts, self.workspace, form, kernel=kernel)
        if kernel is not None:
            kernel.watch(self.workspace.ranks if isinstance(self.workspace, RankGroups) else [self.workspace])
        self._table = PageTable(pages, max_requests, geometry.max_pages)
        self._queued: dict[int, list[tuple[int, torch.Tensor]]] = {}

    @property
    def config(self) -> DraftConfig:
        return self._config

    def reset(self) -> None:
        """After StepFailed: makes the next step possible. Requests keep their context."""
        self.workspace.reset()

    def open(self, request: int) -> None:
        """Start a request with an empty context. InputError where it is open or too many are."""
        self._table.open(request)
        self._queued[request] = []

    def close(self, request: int) -> None:
        """Forget a request and free its pages. InputError where it is not open."""
        self._check_open(request, "request")
        self._table.close(request)
        del self._queued[request]

    def fork(self, source: int, request: int, length: int) -> None:
        """Open `request` with the first `length` positions of `source`; whole pages are shared, the last one copied."""
        self._check_open(source, "source")
        self._flush([source], keep=0)
        copied = self._table.fork(source, request, length)
        self._queued[request] = []
        if copied is not None:
            self.workspace.copy_page(*copied)

    def commit(self, rows: Sequence[ContextRows]) -> None:
        """Queue context rows. InputError, and no change, where one is wrong."""
        faults: list[Fault] = []
        added: dict[int, int] = {}
        for index, row in enumerate(rows):
            where = f"rows[{index}]"
            if row.request not in self._table:
                faults.append(Fault(f"{where}.request", str(row.request), "an open request"))
                continue
            shape = list(row.features.shape)
            if len(shape) != 2 or shape[1] != self._config.feature_size or not row.features.is_floating_point():
                found, wanted = f"{row.features.dtype} {shape}", f"floating point [S, {self._config.feature_size}]"
                faults.append(Fault(f"{where}.features", found, wanted))
                continue
            end = self._table.length(row.request) + added.get(row.request, 0)
            if row.start != end:
                faults.append(Fault(f"{where}.start", str(row.start), f"{end}, where the context of its request ends"))
                continue
            added[row.request] = added.get(row.request, 0) + shape[0]
        if faults:
            raise InputError("commit refused; nothing was stored", faults)
        self._table.check_room(added)
        for row in rows:
            features = row.features.to(self.workspace.device, torch.bfloat16)
            self._queued[row.request] += [(row.start + i, features[i]) for i in range(len(features))]
        for request, count in added.items():
            self._table.extend(request, count)

    def propose(self, anchors: Sequence[Anchor], *, logits: bool = False) -> list[Draft]:
        """Draft one block per anchor, in order. InputError before any launch; StepFailed for a bounded wait."""
        self._check_anchors(anchors)
        drafts: list[Draft] = []
        at_once = self.geometry.requests
        for start in range(0, len(anchors), at_once):
            drafts += self._propose(anchors[start : start + at_once], logits)
        return drafts

    def _propose(self, anchors: Sequence[Anchor], logits: bool) -> list[Draft]:
        requests = [anchor.request for anchor in anchors]
        context = self._flush(requests, keep=self.geometry.rows)
        wanted = [logits or is_sampled(anchor.temperature) for anchor in anchors]
        if any(wanted):
            self.workspace.keep_logits()
        else:
            self.workspace.drop_logits()
        step = StepInput(
            [(anchor.token, anchor.position) for anchor in anchors],
            [self._table.pages(request) for request in requests],
            context,
            [(anchor.temperature, anchor.seed) for anchor in anchors],
        )
        self.workspace.load(step)
        self.step.run(context=bool(context))
        tokens, confidence = self.workspace.results()
        g, drafts = self._config.block_size, []
        for i, request in enumerate(requests):
            rows = slice(i * g, (i + 1) * g)
            drafts.append(
                Draft(
                    request,
                    torch.tensor(tokens[rows], dtype=torch.int64),
                    self.workspace.logits(rows) if wanted[i] else None,
                    confidence[rows].clone() if self._config.has_confidence else None,
                )
            )
        return drafts

    def _flush(self, requests: Sequence[int], keep: int) -> list[tuple[int, int]]:
        """Projects queued rows of `requests` in launches of their own until at most `keep` are left; loads those
        into the feature buffer and returns their (index in `requests`, position)."""
        queue = [(i, *row) for i, request in enumerate(requests) for row in self._queued[request]]
        size = self.geometry.rows
        while len(queue) > keep:
            part, queue = queue[:size], queue[size:]
            pages = [self._table.pages(request) for request in requests]
            # A launch takes the page tables of `rows` requests; a flush of more goes request by request.
            self.workspace.load(StepInput([], pages, self._load_features(part)))
            self.step.run(context=True, propose=False)
            self.workspace.results()
        for request in requests:
            self._queued[request] = []
        return self._load_features(queue)

    def _load_features(self, rows: list[tuple[int, int, torch.Tensor]]) -> list[tuple[int, int]]:
        if rows:
            self.workspace.load_features(torch.stack([features for _, _, features in rows]))
        return [(index, position) for index, position, _ in rows]

    def _check_open(self, request: int, where: str) -> None:
        if request not in self._table:
            raise InputError("unknown request", [Fault(where, str(request), "an open request")])

    def _check_anchors(self, anchors: Sequence[Anchor]) -> None:
        faults: list[Fault] = []
        for index, anchor in enumerate(anchors):
            where = f"anchors[{index}]"
            if anchor.request not in self._table:
                faults.append(Fault(f"{where}.request", str(anchor.request), "an open request"))
                continue
            length = self._table.length(anchor.request)
            if anchor.position != length:
                wanted = f"{length}: positions 0..{length - 1} are committed" if length else "0: nothing is committed"
                faults.append(Fault(f"{where}.position", str(anchor.position), wanted))
            last = self.geometry.max_pages * PAGE - self._config.block_size
            if anchor.position > last:
                faults.append(
                    Fault(f"{where}.position", str(anchor.position), f"at most {last}, the plan's longest context")
                )
            if not 0 <= anchor.token < self._config.vocab_size:
                faults.append(Fault(f"{where}.token", str(anchor.token), f"0..{self._config.vocab_size - 1}"))
            faults += faults_of(anchor.temperature, anchor.seed, where)
        if faults:
            raise InputError("propose refused; nothing was drafted", faults)
