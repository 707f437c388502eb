"""Caches that keep old data: one L1 per CTA, one L2 per XCD, one device level per rank, then memory.

A load at scope level k looks at the first cache at or above k and fills it from below; a line that is there already is
used as it is, however old. Below k it sees only bytes that its own caches hold dirty (written and not yet written
back). A store at level k lands in the first writable cache at or above k and updates the copies on the way (caches are
write-through up to their own level, L1 is never dirty). Nothing is evicted: a stale line stays until an acquire drops
it, a dirty byte until a release or the end of the kernel writes it back. That is harsher than any hardware.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from monodraft.executor.access import WORD
from monodraft.executor.backing import lazy_zeros
from monodraft.executor.memory import Memory
from monodraft.executor.model import MemoryModel

LINE = 128
L1, L2, DEVICE, SYSTEM = 0, 1, 2, 3


@dataclass(eq=False)
class Cache:
    """A copy of the arena: `valid` lines hold data, `dirty` bytes (0xFF) are newer than the level below."""

    level: int
    nbytes: int
    raw: np.ndarray = field(init=False)
    dirty: np.ndarray = field(init=False)
    valid: np.ndarray = field(init=False)
    dirty_lines: set[int] = field(default_factory=set, init=False)
    filled: list[np.ndarray] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        size = -(-self.nbytes // LINE) * LINE
        self.raw = lazy_zeros(size)
        self.dirty = lazy_zeros(size)
        self.valid = lazy_zeros(size // LINE).view(np.bool_)
        self.words = {width: self.raw.view(kind) for width, kind in WORD.items()}
        self.dirty_words = {width: self.dirty.view(kind) for width, kind in WORD.items()}
        self.lines = self.raw[: self.raw.size // LINE * LINE].reshape(-1, LINE)
        self.dirty_by_line = self.dirty[: self.raw.size // LINE * LINE].reshape(-1, LINE)

    def drop(self) -> None:
        """Forget clean lines; dirty bytes stay."""
        for lines in self.filled:
            self.valid[lines] = False
        self.filled.clear()


class Path:
    """The caches between one CTA and memory, nearest first."""

    def __init__(self, memory: Memory, caches: list[Cache]) -> None:
        self.memory = memory
        self.caches = caches

    def below(self, level: int) -> int:
        """How many of the caches a load at `level` goes past."""
        return sum(cache.level < level for cache in self.caches)

    def read(self, level: int, index: np.ndarray, size: int) -> np.ndarray:
        """Words at `index` as a load at `level` sees them now."""
        skipped = self.below(level)
        used = self.caches[skipped:]
        if not used:
            value = self.memory.words[size][index]
        else:
            lines = index * size // LINE
            if not used[0].valid[lines].all():
                self.fill(used, np.unique(lines))
            value = used[0].words[size][index]
        for cache in reversed(self.caches[:skipped]):
            if cache.dirty_lines:
                mask = cache.dirty_words[size][index]
                value = (value & ~mask) | (cache.words[size][index] & mask)
        return value

    def fill(self, caches: list[Cache], lines: np.ndarray) -> None:
        """Bring missing lines into the first cache, through the others."""
        cache = caches[0]
        missing = lines[~cache.valid[lines]]
        if not missing.size:
            return
        if len(caches) > 1:
            self.fill(caches[1:], missing)
            source = caches[1].lines[missing]
        else:
            source = self.memory.raw[: cache.raw.size].reshape(-1, LINE)[missing]
        dirty = cache.dirty_by_line[missing]
        cache.lines[missing] = (source & ~dirty) | (cache.lines[missing] & dirty)
        cache.valid[missing] = True
        cache.filled.append(missing)

    def write(self, level: int, index: np.ndarray, size: int, data: np.ndarray) -> None:
        """A store at `level` takes effect. L1 never holds the only copy, so a plain store lands in L2."""
        level = max(level, L2)
        for cache in self.caches:
            cache.words[size][index] = data
            if cache.level >= level:
                cache.dirty_words[size][index] = np.iinfo(WORD[size]).max
                cache.dirty_lines.update(np.unique(index * size // LINE).tolist())
                return
            if cache.dirty_lines:
                cache.dirty_words[size][index] = 0
        self.memory.words[size][index] = data

    def release(self, level: int) -> None:
        """Write dirty bytes back as far as `level`: a release fence, buffer_wbl2."""
        for position, cache in enumerate(self.caches):
            if cache.level < level:
                self.write_back(position)

    def write_back(self, position: int) -> None:
        cache = self.caches[position]
        if not cache.dirty_lines:
            return
        lines = np.array(sorted(cache.dirty_lines))
        row, column = np.nonzero(cache.dirty_by_line[lines])
        index = lines[row] * LINE + column
        below = self.caches[position + 1 :]
        if below:
            below[0].raw[index] = cache.raw[index]
            below[0].dirty[index] = 0xFF
            below[0].dirty_lines.update(cache.dirty_lines)
        else:
            self.memory.raw[index] = cache.raw[index]
        cache.dirty_by_line[lines] = 0
        cache.dirty_lines.clear()

    def forget_l1(self) -> None:
        """The CTA has ended; its stores under way need only what is shared."""
        self.caches = [cache for cache in self.caches if cache.level != L1]

    def acquire(self, level: int) -> None:
        """Drop clean lines of caches below `level`: an acquire fence, buffer_inv."""
        for cache in self.caches:
            if cache.level < level:
                cache.drop()


class Caches:
    """All caches of a run, made when first used."""

    def __init__(self, memory: Memory, model: MemoryModel) -> None:
        self.memory = memory
        self.model = model
        self.nbytes = memory.used
        self.by_xcd: dict[tuple[int, int], Cache] = {}
        self.by_rank: dict[int, Cache] = {}

    def path(self, rank: int, xcd: int) -> Path:
        """The caches of a new CTA on an XCD of a rank."""
        caches = [Cache(L1, self.nbytes)] if self.model.l1 else []
        if self.model.l2:
            if (rank, xcd) not in self.by_xcd:
                self.by_xcd[rank, xcd] = Cache(L2, self.nbytes)
            caches.append(self.by_xcd[rank, xcd])
        if self.model.device:
            if rank not in self.by_rank:
                self.by_rank[rank] = Cache(DEVICE, self.nbytes)
            caches.append(self.by_rank[rank])
        return Path(self.memory, caches)

    def finish(self, rank: int) -> None:
        """The end of a kernel: everything that `rank` wrote reaches memory."""
        device = [self.by_rank[rank]] if rank in self.by_rank else []
        for (owner, _), cache in self.by_xcd.items():
            if owner == rank:
                Path(self.memory, [cache, *device]).release(SYSTEM)
        Path(self.memory, device).release(SYSTEM)
