"""The one-launch draft step behind the `Drafter` protocol, on ROCm GPUs through HIP: one process a rank.

Written to be run, and NOT run by us: no AMD GPU was at hand. The kernel is the one that the executor runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.weights import DraftWeights
from monodraft.drafter import Anchor
from monodraft.errors import Fault, InputError, MonodraftError
from monodraft.hosts.consensus import Ranks
from monodraft.hosts.hip_graph import Graph
from monodraft.hosts.hip_library import Hip, HipError, UnsupportedBackend, load_library
from monodraft.hosts.hip_workspace import HipWorkspace, Kernel
from monodraft.hosts.step_drafter import Row, StepDrafter, step_shape
from monodraft.plan.shape import AllReduce
from monodraft.plan.step import Plan

DEFAULT_TICKS = 100_000_000
"""Bound of a launch in 10 ns ticks of the GPU's clock: a second."""
CTAS = 256
"""Compute units of an MI355X."""


class HipDrafter(StepDrafter):
    """A `StepDrafter` of this process's rank on GPU `device`. NOT run by us.

    `group`: a `torch.distributed` group with the gloo backend of `ranks` processes, one a GPU; None for one rank. All
    ranks make their drafter, and call it, with the same arguments in the same order. With `graphs` each launch is
    captured once, at its first use, and replayed from then on. `hip` and `compile_plan` stand in for the runtime and
    the compiler in tests. After a StepFailed on one rank all ranks call `reset`. `close_device` frees the GPU's memory.

    Raises UnsupportedBackend naming what this machine lacks, InputError and KernelError for what kernel or device
    cannot do, `consensus.Refused` where another rank cannot take part; all before the first hand-shake on the GPU.
    """

    def __init__(
        self,
        config: DraftConfig,
        weights: DraftWeights,
        *,
        numerics: str = "mxfp8",
        ranks: int = 1,
        device: int | torch.device | str = 0,
        group: Any = None,
        ctas: int = CTAS,
        positions: int | None = None,
        max_requests: int = 4,
        pages: int | None = None,
        page_size: int = 64,
        all_reduce: AllReduce = AllReduce.AUTO,
        splits: int = 0,
        ticks: int = DEFAULT_TICKS,
        graphs: bool = False,
        hip: Hip | None = None,
        compile_plan: Callable[[Plan], Any] | None = None,
    ) -> None:
        if numerics != "mxfp8":
            raise InputError("the one-launch step has one numerics", [Fault("numerics", str(numerics), "mxfp8")])
        if ranks > 1 and group is None:
            raise InputError("several ranks are several processes", [Fault("group", "none", "a gloo group of them")])
        shape = step_shape(
            config, ranks, ctas, max_requests, positions, pages, page_size, all_reduce=all_reduce, splits=splits
        )
        self._ranks = Ranks(group)
        self._hip = self._runtime() if hip is None else hip
        self._compile = _compiler() if compile_plan is None else compile_plan
        self._modules: list[int] = []
        self._captured: list[Graph] | None = [] if graphs else None
        super().__init__(
            shape, HipWorkspace(shape, weights, self._hip, self._ranks, gpu_number(device)), max_requests, ticks
        )
        try:
            self.program(shape.requests, shape.context_rows)
        except BaseException:
            with suppress(HipError):  # the first error is the one to tell
                self.close_device()
            raise

    def _runtime(self) -> Hip:
        """The HIP runtime, where all ranks have one."""
        hip: Hip | None = None
        error: MonodraftError | None = None
        try:
            hip = Hip(load_library())
        except MonodraftError as failed:
            error = failed
        self._ranks.agree("the HIP runtime", error)
        assert hip is not None
        return hip

    def program(self, requests: int, context_rows: int, sampled: bool = False) -> tuple[Plan, Kernel | Graph]:
        """Plan and loaded kernel of a launch, or its graph; compiled at the first use, on all ranks or on none. Raises
        `consensus.Refused` where the ranks launch steps of other rows or have other kernels."""
        key = requests, context_rows, sampled
        if key not in self._programs:
            self._ranks.same("the launch", {"requests": requests, "context_rows": context_rows, "sampled": sampled})
            plan = Plan(replace(self.shape, requests=requests, context_rows=context_rows, sampled=sampled))
            error: MonodraftError | None = None
            digest = ""
            try:
                compiled = self._compiled(plan)
                digest = hashlib.sha256(compiled.code_object).hexdigest()
                program = self._load(plan, compiled)
            except MonodraftError as failed:
                error = failed
            self._ranks.agree("the kernel", error)
            self._ranks.same("the kernel", {"SHA-256 of the code object": digest})
            self._programs[key] = plan, program
        return self._programs[key]

    def _compiled(self, plan: Plan) -> Any:
        """The kernel with its code object."""
        compiled = self._compile(plan)
        if compiled.code_object is None:
            raise UnsupportedBackend(
                "the kernel cannot be linked", [Fault("ld.lld", compiled.missing, "LLVM's ld.lld")]
            )
        return compiled

    def _load(self, plan: Plan, compiled: Any) -> Kernel | Graph:
        module = self._hip.load_module(compiled.code_object)
        self._modules.append(module)
        kernel = Kernel(self._hip.function(module, compiled.kernel), compiled.kernel)
        self.workspace.check_resident(kernel)
        if self._captured is None:
            return kernel
        graph = self.workspace.capture(plan, kernel, self._ticks)
        self._captured.append(graph)
        return graph

    def _write_inputs(self, anchors: Sequence[Anchor], rows: Sequence[Row]) -> None:
        # A graph may have replayed launches since: the counter is the device's.
        self.workspace.local[0].download("epoch")
        super()._write_inputs(anchors, rows)

    def _logits(self, rows: slice) -> torch.Tensor:
        self.workspace.local[0].download("logits")
        own = torch.from_numpy(self.workspace.local[0]("logits")[rows, : self.shape.vocab].copy())
        return torch.cat(self._ranks.all("logits", own), 1)

    def close_device(self) -> None:
        """Free everything on the GPU; no rank may launch any more. May be called twice."""
        while self._captured:
            self._captured.pop().close()
        while self._modules:
            self._hip.unload_module(self._modules.pop())
        self.workspace.close()


def gpu_number(device: int | torch.device | str) -> int:
    """Number of a GPU given as `0`, `cuda:0` (PyTorch's name for ROCm's GPUs too) or `cuda`. InputError for others."""
    if isinstance(device, int):
        return device
    found = torch.device(device)
    if found.type != "cuda":
        raise InputError("the ROCm backend runs on a GPU", [Fault("device", str(device), "cuda, cuda:1, ...")])
    return found.index or 0


def _compiler() -> Callable[[Plan], Any]:
    from monodraft.stages.compile import compile_plan

    return compile_plan
