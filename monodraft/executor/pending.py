"""Stores that a wave has issued and that others cannot see yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from monodraft.executor.policy import Policy
from monodraft.executor.values import Late

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


def overlap(a: PendingStore, b: PendingStore) -> bool:
    """Whether two stores touch a common dword; such stores of one wave stay in order."""
    return meet(a.index, a.size, b.index, b.size)


def touches(store: PendingStore, index: np.ndarray, size: int) -> bool:
    """Whether a store touches a dword of an access at word indices `index`."""
    return meet(store.index, store.size, index, size)


def meet(a: np.ndarray, a_size: int, b: np.ndarray, b_size: int) -> bool:
    """Whether two accesses, word indices and word sizes, share a dword."""
    if (
        int(a.min()) * a_size >= (int(b.max()) + 1) * b_size + 3
        or int(b.min()) * b_size >= (int(a.max()) + 1) * a_size + 3
    ):
        return False
    return bool(np.intersect1d(a * a_size // 4, b * b_size // 4).size)


@dataclass(eq=False)
class InFlight:
    """A load that has not been waited for."""

    number: int
    late: Late
    index: np.ndarray
    size: int

    def touches(self, index: np.ndarray, size: int) -> bool:
        return meet(self.index, self.size, index, size)


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
