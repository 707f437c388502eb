"""Launches through the driver API: module, function, argument block, one launch or a chain of dependent ones."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, cached_property
from typing import Any, Protocol

from monodraft.errors import Fault
from monodraft.hopper.build import ToolkitMissing, build, checked
from monodraft.hopper.geometry import THREADS, Geometry


@cache
def driver() -> Any:
    """`cuda.bindings.driver`, or ToolkitMissing with what to install."""
    try:
        from cuda.bindings import driver as module
    except (ImportError, OSError) as error:
        raise ToolkitMissing(
            "the Hopper backend launches through the CUDA driver",
            [Fault("cuda-bindings", f"none ({error})", "pip install 'monodraft[hopper]'")],
        ) from error
    return module


def require_hopper() -> int:
    """Streaming multiprocessors of the current GPU, or ToolkitMissing where it is no Hopper."""
    import torch

    if not torch.cuda.is_available():
        raise ToolkitMissing("the Hopper backend needs a GPU", [Fault("GPU", "none", "NVIDIA H100 or H200 (sm_90)")])
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    if (properties.major, properties.minor) != (9, 0):
        found = f"{properties.name}, sm_{properties.major}{properties.minor}"
        raise ToolkitMissing("the Hopper backend needs a Hopper GPU", [Fault("GPU", found, "sm_90")])
    return properties.multi_processor_count


POINTERS = [
    "stages",
    "step",
    "pages",
    "embed",
    "w1",
    "w2",
    "w1_lengths",
    "slack",
    "rope",
    "head_norms",
    "first_norm",
    "confidence",
    "residual",
    "hidden",
    "attended",
    "qkv",
    "context_kv",
    "squares",
    "partial",
    "partial_stats",
    "logits",
    "corrected",
    "best",
    "confidence_hidden",
    "confidence_out",
    "tokens",
    "pool",
    "counter",
    "progress",
    "health",
    "epoch",
    "stamps",
    "floors",
    "rescored",
]
"""Pointer fields of `struct Args` in stages/plan.cuh, in order."""


class Args(ctypes.Structure):
    """`struct Args` of stages/plan.cuh."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in POINTERS),
        ("bound", ctypes.c_uint64),
        ("first", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("fault_cta", ctypes.c_int32),
        ("fault_stage", ctypes.c_int32),
    )


@cache
def rank_arguments(ranks: int) -> type[ctypes.Structure]:
    """`struct Args` of a build of several ranks: the peers' exchange memory and the own rank behind it."""

    class RankArgs(Args):
        _fields_ = (("peers", ctypes.c_uint64 * ranks), ("rank", ctypes.c_uint64))

    return RankArgs


def rank_launch(blocks: Sequence[Args], exchanges: Sequence[int]) -> ctypes.Array:
    """`struct Launch` of step.cu: a block a rank, with the addresses of all ranks' exchange memory."""
    kind = rank_arguments(len(blocks))
    launch = (kind * len(blocks))()
    for rank, block in enumerate(blocks):
        ctypes.memmove(ctypes.addressof(launch[rank]), ctypes.addressof(block), ctypes.sizeof(Args))
        launch[rank].rank = rank
        for peer, address in enumerate(exchanges):
            launch[rank].peers[peer] = address
    return launch


STAGE_WORDS = [
    "kind",
    "out",
    "mxfp8",
    "row_major",
    "row_blocks",
    "chunks",
    "part_chunks",
    "parts",
    "split_log2",
    "rotation",
    "layer",
    "window",
    "step",
    "inner",
    "columns",
    "next_mxfp8",
]
"""Word fields of `struct Stage` in stages/plan.cuh, in order."""


class StageRecord(ctypes.Structure):
    """`struct Stage` of stages/plan.cuh."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("weights", "input", "output", "squares", "next_norm")),
        *((name, ctypes.c_uint32) for name in STAGE_WORDS),
    )


class Captured(Protocol):
    """Launches that were recorded and can be run again, with what lies in their buffers then."""

    def replay(self) -> None:
        """Queues them all once more."""


class Launcher(Protocol):
    """What launches the compiled step of a geometry: `Kernel` on a GPU, or the emulator's on a CPU."""

    geometry: Geometry

    @property
    def sampled(self) -> Launcher:
        """The build of the same geometry that also draws, for the same buffers; made at the first use."""

    def launch(self, args: Args | ctypes.Array, *, dependent: bool) -> None:
        """One launch; `dependent`: it may start before the launch in front of it ends."""

    def launch_chain(self, blocks: Sequence[Args | ctypes.Array]) -> None:
        """One dependent launch a block, in their order."""

    def capture(self, run: Callable[[], None]) -> Captured:
        """What `run` launches, recorded instead of run."""


class Kernel:
    """The compiled step on the current GPU."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        cu = driver()
        self._module = checked(cu.cuModuleLoadData(build(geometry)), "cuModuleLoadData")
        self._function = checked(cu.cuModuleGetFunction(self._module, b"draft_step"), "cuModuleGetFunction")
        attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        checked(cu.cuFuncSetAttribute(self._function, attribute, geometry.shared_bytes), "cuFuncSetAttribute")

    @cached_property
    def sampled(self) -> Kernel:
        """The build of the same geometry that also draws."""
        return Kernel(replace(self.geometry, sampled=True))

    def launch_chain(self, blocks: Sequence[Args | ctypes.Array]) -> None:
        """Queues one dependent launch a block."""
        for block in blocks:
            self.launch(block, dependent=True)

    def capture(self, run: Callable[[], None]) -> Captured:
        """A CUDA graph of what `run` queues."""
        import torch

        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            run()
        return graph

    def launch(self, args: Args | ctypes.Array, *, dependent: bool) -> None:
        """Queues one launch on torch's current stream; `args`: a block, or `rank_launch`'s of all rank groups.

        `dependent`: it may start before the launch in front of it ends (programmatic dependent launch); otherwise it is
        cooperative, so that a grid that cannot be resident at once is refused instead of waiting for itself.
        """
        import torch

        cu = driver()
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self.geometry.grid * self.geometry.ranks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = THREADS, 1, 1
        config.sharedMemBytes = self.geometry.shared_bytes
        config.hStream = cu.CUstream(torch.cuda.current_stream().cuda_stream)
        attribute = cu.CUlaunchAttribute()
        if dependent:
            attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
        else:
            attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
        config.attrs, config.numAttrs = [attribute], 1
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(args))
        checked(cu.cuLaunchKernelEx(config, self._function, ctypes.addressof(pointers), 0), "cuLaunchKernelEx")
