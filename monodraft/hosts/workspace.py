"""The memory of a group of ranks on the executor, and launches in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import monodraft.executor as ex
from monodraft.checkpoint.weights import DraftWeights
from monodraft.device.health import HEALTHY
from monodraft.errors import Fault, KernelError
from monodraft.hosts.arguments import (
    DTYPES,
    check_argument,
    check_inputs,
    check_pages,
    check_sizes,
    check_ticks,
)
from monodraft.hosts.packing import pack_rank
from monodraft.plan.layout import Block, exchange_block, local_block, pool_bytes, weight_block
from monodraft.plan.shape import StepShape
from monodraft.plan.step import Plan


def check_same_layout(own: StepShape, shape: StepShape) -> None:
    """Refuse a launch of `shape` in a workspace laid out for `own`, naming what differs. Raises KernelError."""
    fixed, other = (replace(each, requests=0, context_rows=16, capacity=0, sampled=False) for each in (own, shape))
    names = [name for name in fixed.__dataclass_fields__ if getattr(fixed, name) != getattr(other, name)]
    if shape.most_requests != own.most_requests:
        names.append("capacity")
    if names:
        faults = [Fault(name, str(getattr(shape, name)), str(getattr(own, name))) for name in names]
        raise KernelError("this workspace was built for another plan", faults)


class View:
    """Arrays of one block in memory, by name."""

    def __init__(self, region: ex.Region, block: Block) -> None:
        self.region, self.block = region, block

    def __call__(self, name: str, layer: int = 0) -> np.ndarray:
        """A live view of an array."""
        array = self.block[name]
        start = self.block.offset(name, layer)
        return self.region.array[start : start + array.nbytes].view(DTYPES[array.dtype]).reshape(array.shape)


class Workspace:
    """Weights, scratch, exchange memory and draft pool of all ranks, for every launch that shares `shape`'s layout.

    One launch at a time: `launch` refuses a second while one is running.
    """

    def __init__(self, shape: StepShape, weights: DraftWeights, *, memory: ex.Memory | None = None) -> None:
        check_sizes(shape)
        self.shape = shape
        self.memory = ex.Memory(ranks=shape.ranks) if memory is None else memory
        self.busy = False
        ranks = range(shape.ranks)
        pool = np.zeros(shape.layers * pool_bytes(shape), np.uint8)
        self.weights = [self.memory.array(rank, "weights", pack_rank(shape, weights, rank)) for rank in ranks]
        self.local = [View(self._zeros(rank, "local", local_block(shape)), local_block(shape)) for rank in ranks]
        exchange = exchange_block(shape)
        self.exchange = [View(self._zeros(rank, "exchange", exchange, True), exchange) for rank in ranks]
        self.keys = [self.memory.array(rank, "keys", pool) for rank in ranks]
        self.values = [self.memory.array(rank, "values", pool) for rank in ranks]
        addresses = np.array([view.region.address for view in self.exchange], np.int64)
        self.peers = [self.memory.array(rank, "peers", addresses) for rank in ranks]
        self.health = self.memory.array(0, "health", np.zeros(2, np.uint64), uncached=True)

    def _zeros(self, rank: int, name: str, block: Block, uncached: bool = False) -> ex.Region:
        return self.memory.array(rank, name, np.zeros(block.nbytes, np.uint8), uncached=uncached)

    def check(self, shape: StepShape) -> None:
        """Refuse a plan of another workspace, naming what differs. Raises KernelError."""
        check_same_layout(self.shape, shape)

    def arguments(self, rank: int, ticks: int) -> tuple[Any, ...]:
        """Launcher arguments of a rank, in the order of `stages.step.ARGUMENTS`. Raises KernelError naming one that is
        not what the kernel reads."""
        shape, pool = self.shape, self.shape.layers * pool_bytes(self.shape)
        arrays: dict[str, tuple[ex.Region, type, int]] = {
            "weights": (self.weights[rank], np.uint8, weight_block(shape).nbytes),
            "local": (self.local[rank].region, np.uint8, local_block(shape).nbytes),
            "own": (self.exchange[rank].region, np.uint8, exchange_block(shape).nbytes),
            "peers": (self.peers[rank], np.int64, 8 * shape.ranks),
            "keys": (self.keys[rank], np.uint8, pool),
            "values": (self.values[rank], np.uint8, pool),
            "health": (self.health, np.uint64, 8),
        }
        for name, (region, dtype, nbytes) in arrays.items():
            check_argument(f"{name} of rank {rank}", region.address, region.array, dtype, nbytes)
        check_ticks(ticks)
        return (*(region for region, _, _ in arrays.values()), ticks, rank, shape.layers)

    def launch(self, plan: Plan, program: ex.Program, ticks: int, **options: Any) -> ex.Report:
        """Run one step on all ranks. Raises KernelError, before anything runs, while another launch is live and for
        arguments or inputs that cannot be; see `failures.failure` after."""
        self.check(plan.shape)
        if self.busy:
            raise KernelError("one launch a workspace", [Fault("workspace", "a live launch", "none")])
        for view in self.local:
            check_inputs(plan.shape, view)
        self.busy = True
        try:
            launches = [ex.Launch(program, self.arguments(rank, ticks), rank=rank) for rank in range(plan.shape.ranks)]
            return ex.run(launches, memory=self.memory, **options)
        finally:
            self.busy = False

    def copy_page(self, source: int, target: int) -> None:
        """Copy a page of every layer's keys and values, on all ranks. Raises KernelError where there is none."""
        check_pages(self.shape, {"source": source, "target": target})
        for region in (*self.keys, *self.values):
            pages = region.array.reshape(self.shape.layers, self.shape.pages, -1)
            pages[:, target] = pages[:, source]

    @property
    def health_word(self) -> int:
        """The health word as the kernels left it."""
        return int(self.health.array[0])

    @property
    def ranks(self) -> range:
        """Ranks whose memory is here."""
        return range(self.shape.ranks)

    def blocks(self, rank: int) -> tuple[View, View]:
        """Local and exchange arrays of a rank."""
        return self.local[rank], self.exchange[rank]

    def reset(self) -> None:
        """After a failure: clear the health word and set every rank's epoch past all tags that may be in memory."""
        self.health.array[:] = HEALTHY
        highest = max(int(view("epoch").view(np.uint32)[0]) for view in self.local)
        for view in self.local:
            view("epoch")[0] = np.uint32((highest + 1) & 0xFFFFFFFF).view(np.int32)
