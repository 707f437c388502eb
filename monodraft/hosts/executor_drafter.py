"""The one-launch draft step behind the `Drafter` protocol, executed on a CPU by the executor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

import monodraft.executor as ex
from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.weights import DraftWeights
from monodraft.errors import Fault, InputError
from monodraft.hosts.step_drafter import StepDrafter, step_shape
from monodraft.hosts.workspace import Workspace
from monodraft.plan.device import check_device
from monodraft.plan.shape import AllReduce
from monodraft.plan.step import Plan

DEFAULT_TICKS = 6_000_000_000
"""Bound of a launch in 10 ns ticks of the executor's clock: a minute of the machine that it models."""


class ExecutorDrafter(StepDrafter):
    """A `StepDrafter` of the gfx950 kernel on each of `ranks` ranks, run by the executor.

    Numerics are `mxfp8` of the reference. `ctas`: CTAs a rank (a real MI355X has 256). `positions`: most positions of a
    request; `pages` of `page_size` are shared by `max_requests` requests (default: room for all). `all_reduce` and
    `splits`: see `StepShape`. `engine`, `schedule` (a function of the launch's number), `model`, `memory` and `gpu` (by
    default one with as many compute units as CTAs) are the executor's. `ticks` bounds a launch (10 ns each).

    Raises InputError for what the kernel cannot do, before anything is allocated.
    """

    def __init__(
        self,
        config: DraftConfig,
        weights: DraftWeights,
        *,
        numerics: str = "mxfp8",
        ranks: int = 1,
        device: torch.device | str = "cpu",
        ctas: int = 4,
        positions: int | None = None,
        max_requests: int = 4,
        pages: int | None = None,
        page_size: int = 64,
        all_reduce: AllReduce = AllReduce.AUTO,
        splits: int = 0,
        engine: ex.engine.EngineName = "fast",
        schedule: Callable[[int], ex.Schedule] | None = None,
        model: ex.MemoryModel | None = None,
        gpu: ex.Gpu | None = None,
        memory: ex.Memory | None = None,
        ticks: int = DEFAULT_TICKS,
    ) -> None:
        if numerics != "mxfp8":
            raise InputError("the one-launch step has one numerics", [Fault("numerics", str(numerics), "mxfp8")])
        if torch.device(device).type != "cpu":
            raise InputError("the executor runs on the CPU", [Fault("device", str(device), "cpu")])
        shape = step_shape(
            config, ranks, ctas, max_requests, positions, pages, page_size, all_reduce=all_reduce, splits=splits
        )
        gpu = ex.Gpu.mi355x(cus=ctas) if gpu is None else gpu
        check_device(shape, gpu.cus, gpu.lds_per_cu)
        super().__init__(shape, Workspace(shape, weights, memory=memory), max_requests, ticks)
        if model is None:
            # The fast engine has no race detector.
            model = ex.MemoryModel.harsh() if engine == "reference" else ex.MemoryModel.harsh().without("races")
        self._run: dict[str, Any] = {"engine": engine, "gpu": gpu, "model": model}
        self._schedule = schedule

    def program(self, requests: int, context_rows: int, sampled: bool = False) -> tuple[Plan, ex.Program]:
        """Plan and lowered kernel of a launch; traced at the first use."""
        from monodraft.stages.step import launcher, placeholders

        key = requests, context_rows, sampled
        if key not in self._programs:
            plan = Plan(replace(self.shape, requests=requests, context_rows=context_rows, sampled=sampled))
            self._programs[key] = plan, ex.lower(launcher(plan), *placeholders())
        return self._programs[key]

    def launch_options(self) -> dict[str, Any]:
        """Engine, GPU, memory model and the schedule of this launch."""
        return self._run if self._schedule is None else {**self._run, "schedule": self._schedule(self.launches)}
