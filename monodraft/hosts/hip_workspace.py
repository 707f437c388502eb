"""The memory of one rank on a ROCm GPU, its peers' exchange memory over IPC, and launches in it.

Written to be run, and NOT run by us: no AMD GPU was at hand. Tests run it on a stand-in for the HIP library.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from monodraft.checkpoint.weights import DraftWeights
from monodraft.device.health import HEALTHY
from monodraft.errors import Fault, KernelError, MonodraftError
from monodraft.hosts.arguments import DTYPES, check_base, check_inputs, check_pages, check_sizes, check_ticks
from monodraft.hosts.consensus import Ranks, fields_of
from monodraft.hosts.hip_graph import Graph
from monodraft.hosts.hip_library import COMPUTE_UNITS, LDS_PER_BLOCK, ON_DEVICE, TO_DEVICE, TO_HOST, Hip, HipError
from monodraft.hosts.packing import pack_rank
from monodraft.hosts.workspace import check_same_layout
from monodraft.plan.device import check_device
from monodraft.plan.layout import Block, exchange_block, local_block, pool_bytes
from monodraft.plan.shape import StepShape
from monodraft.plan.step import Plan

PROBE_SECONDS = 10.0
"""How long a rank waits at start for the marks of its peers."""
HEALTH_BYTES = 256


@dataclass(frozen=True)
class Kernel:
    """A loaded function of a plan's kernel."""

    function: int
    name: str


class Mirror:
    """A block of device memory and its copy on the host, read and written by array name as `workspace.View` does."""

    def __init__(self, hip: Hip, address: int, block: Block) -> None:
        self._hip, self.address, self.block = hip, address, block
        self.array = np.zeros(block.nbytes, np.uint8)

    def __call__(self, name: str, layer: int = 0) -> np.ndarray:
        """A view of an array in the host's copy."""
        array = self.block[name]
        start = self.block.offset(name, layer)
        return self.array[start : start + array.nbytes].view(DTYPES[array.dtype]).reshape(array.shape)

    def download(self, *names: str) -> None:
        """Read arrays, or the whole block, from the device."""
        if not names:
            self._hip.copy(self.array.ctypes.data, self.address, self.array.nbytes, TO_HOST)
        for name in names:
            view, offset = self(name), self.block.offset(name)
            self._hip.copy(view.ctypes.data, self.address + offset, view.nbytes, TO_HOST)

    def upload(self, *names: str) -> None:
        """Write arrays to the device."""
        for name in names:
            view, offset = self(name), self.block.offset(name)
            self._hip.copy(self.address + offset, view.ctypes.data, view.nbytes, TO_DEVICE)


INPUTS = (
    "anchors",
    "starts",
    "temperatures",
    "seeds",
    "page_table",
    "context_count",
    "context_positions",
    "context_slots",
    "features",
)
"""Local arrays that the host writes before a launch. The epoch is not among them: the kernel itself moves it on the
device, so that a launch that is replayed by a graph has a new tag every time."""
OUTPUTS = ("epoch", "tokens", "confidence")
"""Local arrays that are read back after every launch; logits are where they are asked for."""


class HipWorkspace:
    """Weights, scratch, exchange memory and draft pool of this process's rank on GPU `device`.

    All ranks make theirs together: a rank that cannot (too few compute units, no memory, no IPC) makes all raise, the
    one its own error, the others `Refused` with that reason, before any kernel has run; nothing stays allocated. One
    launch at a time. `close` frees everything and may be called twice.
    """

    def __init__(
        self, shape: StepShape, weights: DraftWeights, hip: Hip, ranks: Ranks, device: int, probe: float = PROBE_SECONDS
    ) -> None:
        self.shape, self.hip, self.rank = shape, hip, ranks.rank
        self._group, self._device, self.busy = ranks, device, False
        self._owned = ExitStack()
        self.ranks = [self.rank]
        try:
            self._together("device", self._check_device)
            ranks.same("the plan", fields_of(shape))
            self._together("memory", partial(self._allocate, weights))
            handles = ranks.all("peer memory", self._handle)
            self._together("peer memory", partial(self._map_peers, handles))
            # Each of these ends with all ranks having done it.
            self._together("peer memory", self._mark)
            self._together("peer memory", partial(self._await_marks, probe))
            self._together("peer memory", self._clear_marks)
        except BaseException:
            with suppress(HipError):  # the first error is the one to tell
                self.close()
            raise

    def _together(self, what: str, work: Callable[[], None]) -> None:
        """Do a piece of work on all ranks; all raise if it fails on one."""
        error: MonodraftError | None = None
        try:
            work()
        except MonodraftError as failed:
            error = failed
        self._group.agree(what, error)

    def _check_device(self) -> None:
        if self._group.size != self.shape.ranks:
            raise KernelError(
                "ranks", [Fault("ranks", str(self.shape.ranks), f"{self._group.size}, those of the group")]
            )
        check_sizes(self.shape)
        self.hip.set_device(self._device)
        units, lds = (self.hip.attribute(each, self._device) for each in (COMPUTE_UNITS, LDS_PER_BLOCK))
        check_device(self.shape, units, lds)

    def _own(self, name: str, address: int) -> int:
        """Memory to free at the end; KernelError, naming it, for an address that the kernel cannot use."""
        if address:
            self._owned.callback(self.hip.free, address)
        return check_base(name, address)

    def _allocate(self, weights: DraftWeights) -> None:
        shape, hip = self.shape, self.hip
        packed = pack_rank(shape, weights, self.rank)
        self.weights = self._own("weights", hip.allocate(packed.nbytes))
        hip.copy(self.weights, packed.ctypes.data, packed.nbytes, TO_DEVICE)
        local, exchange = local_block(shape), exchange_block(shape)
        self.local = [Mirror(hip, self._own("local", hip.allocate(local.nbytes)), local)]
        base = self._own("own", hip.allocate_uncached(exchange.nbytes + HEALTH_BYTES))
        self.exchange = [Mirror(hip, base, exchange)]
        hip.zero(self.local[0].address, local.nbytes)
        hip.zero(base, exchange.nbytes + HEALTH_BYTES)
        pool = shape.layers * pool_bytes(shape)
        self.keys, self.values = (self._own(name, hip.allocate(pool)) for name in ("keys", "values"))
        for address in (self.keys, self.values):
            hip.zero(address, pool)
        self.peers = self._own("peers", hip.allocate(8 * shape.ranks))
        self.stream = hip.make_stream()
        self._owned.callback(hip.destroy_stream, self.stream)
        self._handle = hip.export(base) if shape.ranks > 1 else (b"", 0)

    def _map_peers(self, handles: list[tuple[bytes, int]]) -> None:
        """Addresses of all exchange blocks, the own one as it is, to the device."""
        addresses = []
        for rank, (handle, offset) in enumerate(handles):
            if rank == self.rank:
                addresses.append(self.exchange[0].address)
                continue
            base, address = self.hip.open(handle, offset)
            self._owned.callback(self.hip.close, base)
            addresses.append(check_base(f"exchange memory of rank {rank}", address))
        self.addresses = addresses
        self.health = addresses[0] + self.exchange[0].block.nbytes
        table = np.array(addresses, np.int64)
        self.hip.copy(self.peers, table.ctypes.data, table.nbytes, TO_DEVICE)

    def _mark(self) -> None:
        """Write this rank's mark into every peer's memory."""
        mark = np.array([self.rank + 1], np.int64)
        for address in self.addresses:
            self.hip.copy(address + 8 * self.rank, mark.ctypes.data, 8, TO_DEVICE)

    def _await_marks(self, seconds: float) -> None:
        """Wait, `seconds` at most, for the marks of all peers.

        Proves that the mapping is the peer's memory and can be written; that a running kernel sees such stores is
        proven by the first step only, whose waits are bounded.
        """
        wanted, seen = np.arange(1, self.shape.ranks + 1), np.zeros(self.shape.ranks, np.int64)
        until = time.monotonic() + seconds
        while not np.array_equal(seen, wanted):
            late = time.monotonic() >= until
            self.hip.copy(seen.ctypes.data, self.addresses[self.rank], seen.nbytes, TO_HOST)
            if late and not np.array_equal(seen, wanted):
                silent = np.flatnonzero(seen != wanted).tolist()
                faults = [Fault(f"mark of rank {rank}", str(seen[rank]), str(rank + 1)) for rank in silent]
                raise HipError(f"peer memory: a mark did not arrive within {seconds:g} s", faults)

    def _clear_marks(self) -> None:
        self.hip.zero(self.addresses[self.rank], 8 * self.shape.ranks)

    def check(self, shape: StepShape) -> None:
        """Refuse a plan of another workspace, naming what differs. Raises KernelError."""
        check_same_layout(self.shape, shape)

    def check_resident(self, kernel: Kernel) -> None:
        """Refuse a kernel whose CTAs cannot all be resident, by the runtime's own count. Raises KernelError."""
        units = self.hip.attribute(COMPUTE_UNITS, self._device)
        most = units * self.hip.resident(kernel.function, 64 * self.shape.waves)
        if self.shape.ctas > most:
            wanted = f"at most {most}: what {units} compute units hold at once"
            raise KernelError("the grid cannot be resident", [Fault("ctas", str(self.shape.ctas), wanted)])

    def arguments(self, ticks: int) -> list[Any]:
        """Kernel arguments, in the order of `stages.step.ARGUMENTS`. Raises KernelError for a bound that is none."""
        check_ticks(ticks)
        words = (
            self.weights,
            self.local[0].address,
            self.addresses[self.rank],
            self.peers,
            self.keys,
            self.values,
            self.health,
            ticks,
        )
        return [*(ctypes.c_int64(word) for word in words), ctypes.c_int32(self.rank), ctypes.c_int32(self.shape.layers)]

    def capture(self, plan: Plan, kernel: Kernel, ticks: int) -> Graph:
        """A graph of the launch of a plan's kernel, for `launch`; the caller closes it before this workspace."""
        self.check(plan.shape)
        return Graph(self.hip, plan, ticks, self.stream, partial(self._enqueue, plan, kernel, ticks))

    def _enqueue(self, plan: Plan, kernel: Kernel, ticks: int) -> None:
        threads = 64 * plan.shape.waves
        self.hip.launch(kernel.function, plan.shape.ctas, threads, self.stream, self.arguments(ticks))

    def launch(self, plan: Plan, program: Kernel | Graph, ticks: int) -> None:
        """Run one step on this rank, its kernel or its graph, and wait for its end: the kernel's own bound brings it.

        Raises KernelError while another launch is live, for inputs that cannot be and for a graph of another launch;
        see `failures.failure` after.
        """
        self.check(plan.shape)
        if isinstance(program, Graph):
            program.check(plan, ticks)
        if self.busy:
            raise KernelError("one launch a workspace", [Fault("workspace", "a live launch", "none")])
        check_inputs(plan.shape, self.local[0])
        self.busy = True
        try:
            self.local[0].upload(*INPUTS)
            if isinstance(program, Graph):
                program.replay()
            else:
                self._enqueue(plan, program, ticks)
            self.hip.synchronize(self.stream)
            self.local[0].download(*OUTPUTS)
        finally:
            self.busy = False

    @property
    def health_word(self) -> int:
        """The health word of the group, in the memory of rank 0. After a failure it fetches what `blocks` shows."""
        word = np.zeros(1, np.uint64)
        self.hip.copy(word.ctypes.data, self.health, 8, TO_HOST)
        if word[0] != HEALTHY:
            self.local[0].download()
            self.exchange[0].download()
        return int(word[0])

    def blocks(self, rank: int) -> tuple[Mirror, Mirror]:
        """Local and exchange arrays of this rank, as they were after a launch that failed."""
        assert rank == self.rank
        return self.local[0], self.exchange[0]

    def copy_page(self, source: int, target: int) -> None:
        """Copy a page of every layer's keys and values, on this rank. Raises KernelError where there is none."""
        check_pages(self.shape, {"source": source, "target": target})
        layer = pool_bytes(self.shape)
        page = layer // self.shape.pages
        for base in (self.keys, self.values):
            for start in range(base, base + self.shape.layers * layer, layer):
                self.hip.copy(start + target * page, start + source * page, page, ON_DEVICE)

    def reset(self) -> None:
        """After a failure, on all ranks together: clear the health word, set all epochs past all tags in memory."""
        local = self.local[0]
        local.download("epoch")
        epochs = self._group.all("reset", int(local("epoch").view(np.uint32)[0]))
        if self.rank == 0:
            word = np.full(1, HEALTHY, np.uint64)
            self.hip.copy(self.health, word.ctypes.data, 8, TO_DEVICE)
        local("epoch")[0] = np.uint32((max(epochs) + 1) & 0xFFFFFFFF).view(np.int32)
        local.upload("epoch")
        self._group.all("reset", None)  # nobody launches before the word is clear

    def close(self) -> None:
        """Free and unmap everything."""
        self._owned.close()
