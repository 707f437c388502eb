"""Tensor-parallel rank groups on one GPU: every rank's weights, buffers and stage table, and launches of all together.

Each rank has its share of the GPU's CTAs; peers write into each other's exchange memory (stages/ranks.cuh).
`RankGroups` and `GroupStep` stand where `Workspace` and `Step` stand for one rank.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from monodraft.errors import Fault, StepFailed
from monodraft.hopper.geometry import Geometry
from monodraft.hopper.launch import Kernel, Launcher, rank_launch
from monodraft.hopper.step import Form, Launches, Step
from monodraft.hopper.weights import PackedWeights
from monodraft.hopper.workspace import StepInput, Workspace


class RankGroups:
    """The workspaces of all ranks of one geometry, with the same pages and inputs.

    InputError where the GPU has too little memory left.
    """

    def __init__(
        self, geometry: Geometry, *, pages: int, bound_seconds: float = 2.0, device: torch.device | str = "cuda"
    ) -> None:
        self.geometry = geometry
        self.ranks = [
            Workspace(geometry, pages=pages, bound_seconds=bound_seconds, device=device, rank=rank)
            for rank in range(geometry.ranks)
        ]
        self.device = self.ranks[0].device

    def load(self, step: StepInput) -> None:
        """`Workspace.load` on every rank; nothing is copied where it is refused."""
        for workspace in self.ranks:
            workspace.load(step)

    def load_features(self, rows: torch.Tensor) -> None:
        """Features of new context rows [n, feature size] for the next launch, on every rank."""
        for workspace in self.ranks:
            workspace.load_features(rows)

    def copy_page(self, source: int, target: int) -> None:
        """Copy a page of keys and values of all layers, on every rank."""
        for workspace in self.ranks:
            workspace.copy_page(source, target)

    def keep_logits(self) -> None:
        """As `Workspace.keep_logits`, on every rank."""
        for workspace in self.ranks:
            workspace.keep_logits()

    def drop_logits(self) -> None:
        """As `Workspace.drop_logits`, on every rank."""
        for workspace in self.ranks:
            workspace.drop_logits()

    def logits(self, rows: slice) -> torch.Tensor:
        """Corrected logits of the last step, float32 [rows, vocabulary], the ranks' parts side by side, on the CPU."""
        return torch.cat([workspace.logits(rows) for workspace in self.ranks], 1)

    def results(self) -> tuple[list[int], torch.Tensor]:
        """Waits for the launch: tokens and confidence of the rows. StepFailed where a wait ran out (of the rank whose
        own CTAs were late, where there is one), and where ranks differ, which no good step does."""
        found, failures = [], []
        for workspace in self.ranks:
            try:
                found.append(workspace.results())
            except StepFailed as error:
                failures.append((workspace.waited_for_peers, error))
        if failures:
            for workspace in self.ranks:
                workspace.failed = True
            raise min(failures, key=lambda failure: failure[0])[1]
        tokens, confidence = found[0]
        for rank, (other, _) in enumerate(found[1:], 1):
            if other != tokens:
                raise StepFailed("ranks differ", [Fault(f"tokens of rank {rank}", str(other), f"{tokens}, as rank 0")])
        return tokens, confidence

    def reset(self) -> None:
        """Makes all ranks usable after a failed step; the K/V pools keep what they hold."""
        for workspace in self.ranks:
            workspace.reset()


class GroupStep(Launches):
    """A compiled step of all ranks in one launch or one chain. `steps`: those of the ranks, whose `fault` tests set."""

    def __init__(
        self,
        weights: Sequence[PackedWeights],
        groups: RankGroups,
        form: Form = Form.ONE_LAUNCH,
        bounded: bool = True,
        kernel: Launcher | None = None,
    ) -> None:
        self.groups, self.form, self.bounded = groups, form, bounded
        self.kernel = Kernel(groups.geometry) if kernel is None else kernel
        self.steps = [
            Step(each, workspace, form, bounded, kernel=self.kernel)
            for each, workspace in zip(weights, groups.ranks, strict=True)
        ]
        self.plan = self.steps[0].plan

    @property
    def sampled(self) -> bool:
        return self.groups.ranks[0].sampled

    def check_usable(self) -> None:
        for step in self.steps:
            step.check_usable()

    def arguments(self, first: int, count: int) -> ctypes.Array:
        exchanges = [workspace.buffers["exchange"].data_ptr() for workspace in self.groups.ranks]
        return rank_launch([step.arguments(first, count) for step in self.steps], exchanges)
