"""Zeroed memory of which only what is touched takes up room."""

from __future__ import annotations

import mmap

import numpy as np

NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""Linux's flag for addresses without a promise of memory; Python 3.11 has no name for it."""


def lazy_zeros(nbytes: int) -> np.ndarray:
    """At least `nbytes` (uint8, whole pages), zeroed, backed only where touched."""
    size = max(-(-nbytes // mmap.PAGESIZE), 1) * mmap.PAGESIZE
    return np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE), np.uint8)
