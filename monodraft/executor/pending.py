"""Stores that a wave has issued and that others cannot see yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from monodraft.executor.policy import Policy

PIECE = 8  # bytes that always become visible together, where naturally aligned
LANE_GROUPS = 4


@dataclass(eq=False)
class PendingStore:
    """A store, or a piece of one: words at `index` [n, words] get `data`. `number` orders it within its wave."""

    number: int
    level: int
    index: np.ndarray
    size: int
    data: np.ndarray
    place: int
    region: Any = None
    release: int = 0

    @property
    def first(self) -> int:
        return int(self.index.min()) * self.size

    @property
    def end(self) -> int:
        return (int(self.index.max()) + 1) * self.size

    def dwords(self) -> np.ndarray:
        return np.unique(self.index * self.size // 4)


def overlap(a: PendingStore, b: PendingStore) -> bool:
    """Whether two stores touch a common dword; such stores of one wave stay in order."""
    if a.first // 4 * 4 >= b.end + 3 or b.first // 4 * 4 >= a.end + 3:
        return False
    return bool(np.intersect1d(a.dwords(), b.dwords()).size)


def touches(store: PendingStore, index: np.ndarray, size: int) -> bool:
    """Whether a store touches a dword of an access at word indices `index`."""
    low, high = int(index.min()) * size, (int(index.max()) + 1) * size
    if low >= store.end + 3 or store.first >= high + 3:
        return False
    return bool(np.intersect1d(store.dwords(), index * size // 4).size)


def pieces(store: PendingStore, policy: Policy) -> list[PendingStore]:
    """A store as it may arrive: random groups of lanes, each in pieces of 8 bytes (4 where misaligned for 8)."""
    lanes, words = store.index.shape
    aligned = not (store.index[:, 0] * store.size % PIECE).any()
    step = max((PIECE if aligned else 4) // store.size, 1)
    order = np.array(policy.shuffled(lanes)) if lanes > 1 else np.array([0])
    groups = [group for group in np.array_split(order, LANE_GROUPS) if group.size]
    return [
        PendingStore(
            store.number,
            store.level,
            store.index[group, start : start + step],
            store.size,
            store.data[group, start : start + step],
            store.place,
            store.region,
            store.release,
        )
        for group in groups
        for start in range(0, words, step)
    ]
