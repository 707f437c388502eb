"""Device memory of all ranks: one flat address space, regions with guard gaps, host views.

Device address = `BASE` + offset into one lazily backed host mapping, the same in every run, so that traces of two runs
can be compared byte by byte. Regions are views into the mapping: `Region.array` is what the kernel left there.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from monodraft.errors import Fault
from monodraft.executor.backing import lazy_zeros
from monodraft.executor.errors import BadLaunch

# Addresses start where a GPU's do; the low 32 bits of BASE are 0, so an offset's low half is the address's.
BASE = 0x7F00_0000_0000
GUARD = 256
WORD = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(eq=False)
class Region:
    """An array in a rank's memory.

    `address` is its device address; `array` a live view with the dtype and shape it was made with. `uncached` memory
    (fine-grained peer memory) bypasses every cache. `written` marks initialised bytes of a region made with
    `initialised=False`; it is None where everything is initialised. `loads`, once `count_loads` was called, is a
    uint32 a byte: how many load instructions of waves took it, whichever of their lanes did.
    """

    rank: int
    name: str
    address: int
    array: np.ndarray
    uncached: bool = False
    written: np.ndarray | None = None
    loads: np.ndarray | None = field(default=None, repr=False)

    def count_loads(self) -> None:
        """From here on count loads of every byte in `loads`, from 0; over as many runs as there are."""
        self.loads = np.zeros(self.nbytes, np.uint32)

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    @property
    def start(self) -> int:
        """Offset into the arena."""
        return self.address - BASE

    @property
    def end(self) -> int:
        return self.start + self.nbytes

    def __index__(self) -> int:
        return self.address

    def __repr__(self) -> str:
        return f"<{self.name} of rank {self.rank}: {self.nbytes} bytes at {self.address:#x}>"


@dataclass(eq=False)
class Memory:
    """The memory of `ranks` GPUs. `capacity` is the span of addresses, backed only where touched."""

    ranks: int = 1
    capacity: int = 16 << 30
    regions: list[Region] = field(default_factory=list, init=False)
    # Host arrays that launches placed here, by rank, host address, shape and dtype.
    placed: dict[tuple, Region] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise BadLaunch("memory", faults=[Fault("ranks", str(self.ranks), "at least 1")])
        self.raw = lazy_zeros(self.capacity)[: self.capacity]
        self.words = {size: self.raw.view(kind) for size, kind in WORD.items()}
        self._starts: list[int] = []
        self._top = GUARD

    def array(
        self,
        rank: int,
        name: str,
        values: np.ndarray | Sequence[int] | Sequence[float],
        *,
        align: int = 256,
        address: int | None = None,
        initialised: bool = True,
        uncached: bool = False,
    ) -> Region:
        """Place a copy of `values` in `rank`'s memory, at least 256 bytes from its neighbours.

        `align` is a power of two in bytes. `address` places it there instead: an absolute device address, or, if
        below 2^40, an offset from `BASE` (so `address=2**32 - 64` straddles a 4 GiB boundary). With
        `initialised=False` the values are poison: a read before a write is reported.
        Raises BadLaunch for a rank, alignment or address that does not fit.
        """
        source = np.ascontiguousarray(values)
        self._check(rank, name, source, align)
        start = self._place(source.nbytes, align) if address is None else self._fixed(address, source.nbytes, name)
        view = self.raw[start : start + source.nbytes].view(source.dtype).reshape(source.shape)
        self._copy(start, source)
        written = None if initialised else np.zeros(source.nbytes, np.bool_)
        region = Region(rank, name, BASE + start, view, uncached, written)
        position = bisect.bisect(self._starts, start)
        self._starts.insert(position, start)
        self.regions.insert(position, region)
        return region

    def _copy(self, start: int, source: np.ndarray) -> None:
        """Copy into memory that is still zero, MiB by MiB; what is zero in `source` stays untouched and unbacked."""
        data = source.reshape(-1).view(np.uint8)
        for at in range(0, data.size, 1 << 20):
            piece = data[at : at + (1 << 20)]
            if piece.any():
                self.raw[start + at : start + at + piece.size] = piece

    def _check(self, rank: int, name: str, source: np.ndarray, align: int) -> None:
        faults = []
        if not 0 <= rank < self.ranks:
            faults.append(Fault(f"{name}: rank", str(rank), f"0 to {self.ranks - 1}"))
        if align < 1 or align & (align - 1):
            faults.append(Fault(f"{name}: align", str(align), "a power of two"))
        if source.dtype.hasobject or source.nbytes == 0:
            faults.append(Fault(f"{name}: values", f"{source.dtype} of {source.nbytes} bytes", "numbers, at least one"))
        if any(each.name == name and each.rank == rank for each in self.regions):
            faults.append(Fault(f"{name}: name", "used already on this rank", "a new name"))
        if faults:
            raise BadLaunch("cannot place an array", faults=faults)

    def _place(self, nbytes: int, align: int) -> int:
        start = -(-self._top // align) * align
        if start + nbytes + GUARD > self.capacity:
            raise BadLaunch(
                "out of memory", faults=[Fault("capacity", str(self.capacity), f"{start + nbytes + GUARD}")]
            )
        self._top = -(-(start + nbytes + GUARD) // GUARD) * GUARD
        return start

    def _fixed(self, address: int, nbytes: int, name: str) -> int:
        start = address - BASE if address >= 1 << 40 else address
        if start < GUARD or start + nbytes + GUARD > self.capacity:
            wanted = f"{GUARD:#x} to {self.capacity - GUARD - nbytes:#x} from the base {BASE:#x}"
            raise BadLaunch("cannot place an array", faults=[Fault(f"{name}: address", f"{address:#x}", wanted)])
        for other in self.regions:
            if start < other.end + GUARD and other.start < start + nbytes + GUARD:
                raise BadLaunch(
                    "cannot place an array",
                    faults=[Fault(f"{name}: address", f"{address:#x}", f"{GUARD} bytes away from {other}")],
                )
        # Later automatic placement goes above, so that it cannot run into this region.
        self._top = max(self._top, -(-(start + nbytes + GUARD) // GUARD) * GUARD)
        return start

    def find(self, offset: int, nbytes: int = 1) -> Region | None:
        """The region that holds all of `nbytes` from arena offset `offset`."""
        index = bisect.bisect(self._starts, offset) - 1
        if index < 0:
            return None
        region = self.regions[index]
        return region if offset + nbytes <= region.end else None

    def near(self, offset: int) -> str:
        """What lies at an arena offset, for messages: the region's name, or how far past or before one."""
        index = bisect.bisect(self._starts, offset) - 1
        if index >= 0:
            region = self.regions[index]
            if offset < region.end:
                return f"byte {offset - region.start} of {region.name} (rank {region.rank}, {region.nbytes} bytes)"
            if offset < region.end + 65536:
                size = f"rank {region.rank}, {region.nbytes} bytes"
                return f"{offset - region.end} bytes past the end of {region.name} ({size})"
        if index + 1 < len(self.regions) and self.regions[index + 1].start - offset < 65536:
            region = self.regions[index + 1]
            return f"{region.start - offset} bytes before {region.name} (rank {region.rank})"
        return "no region near"

    @property
    def used(self) -> int:
        """Bytes of the arena up to the end of the last region and its guard."""
        return max((region.end for region in self.regions), default=0) + GUARD
