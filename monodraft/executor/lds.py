"""The LDS of one CTA: bytes, and which of them were ever written."""

from __future__ import annotations

import numpy as np

from monodraft.executor.access import WORD

JUNK = 0xCD


class Lds:
    """`nbytes` of LDS that start as junk."""

    def __init__(self, nbytes: int) -> None:
        size = -(-max(nbytes, 1) // 16) * 16
        self.nbytes = nbytes
        self.raw = np.full(size, JUNK, np.uint8)
        self.written = np.zeros(size, np.bool_)
        self.words = {width: self.raw.view(kind) for width, kind in WORD.items()}

    def read(self, index: np.ndarray, size: int) -> np.ndarray:
        return self.words[size][index]

    def write(self, index: np.ndarray, size: int, data: np.ndarray) -> None:
        self.words[size][index] = data
        self.written.reshape(-1, size)[index] = True

    def unwritten(self, index: np.ndarray, size: int) -> np.ndarray:
        """Per word: whether one of its bytes was never written."""
        return ~self.written.reshape(-1, size)[index].all(axis=-1)
