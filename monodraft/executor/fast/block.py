"""The memory that a laid out machine lives in, and its records by field name."""

from __future__ import annotations

import numpy as np

from monodraft.executor.backing import lazy_zeros
from monodraft.executor.fast.words import Struct, fields


class Block:
    """Memory that is backed only where touched, handed out piece by piece."""

    def __init__(self, nbytes: int) -> None:
        self.raw = lazy_zeros(nbytes)
        self.address = self.raw.ctypes.data
        self._top = 0

    def take(self, nbytes: int, align: int = 64) -> int:
        """The address of fresh zeroed bytes."""
        start = -(-self._top // align) * align
        self._top = start + nbytes
        assert self._top <= self.raw.size
        return self.address + start

    def words(self, address: int, count: int) -> np.ndarray:
        """A view of int64 words at an address."""
        start = address - self.address
        return self.raw[start : start + 8 * count].view(np.int64)

    def bytes(self, address: int, count: int) -> np.ndarray:
        start = address - self.address
        return self.raw[start : start + count]


class Record:
    """A record in a block, by field name."""

    def __init__(self, block: Block, kind: type[Struct], address: int) -> None:
        self.address = address
        self._offsets = fields(kind)
        self.words = block.words(address, len(self._offsets))

    def __getitem__(self, name: str) -> int:
        return int(self.words[self._offsets[name] // 8])

    def __setitem__(self, name: str, value: int) -> None:
        self.words[self._offsets[name] // 8] = (int(value) + 2**63) % 2**64 - 2**63
