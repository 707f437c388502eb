"""The race detector: vector clocks per wave over plain memory and LDS.

Every wave numbers its accesses, separately for global stores, global loads and LDS. What the others may rely on is not
the number of the last access but the last one known complete: drained by a wait (or, for a load, used). A barrier, or
a synchronising access that observes a synchronising store, hands these on. Two accesses to the same bytes by different
waves, one of them a store and at least one plain, are a race unless the first was complete and handed on to the
second. So a flag stored before its data are drained does not order them, whatever happened to arrive in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from monodraft.executor.backing import lazy_zeros

STORES, LOADS, LDS = 0, 1, 2
SLOTS = 2  # remembered readers per granule; a third concurrent reader replaces the last


@dataclass(frozen=True)
class Conflict:
    """The earlier access of a race: who, where, and whether it stored."""

    wave: int
    place: int
    stored: bool
    row: int


class Shadow:
    """Last store and last plain loads of every granule of a memory. Wave numbers are stored plus 1; 0 is nobody."""

    def __init__(self, nbytes: int, granule: int) -> None:
        self.granule = granule
        count = nbytes // granule + 1
        self.store_wave = lazy_zeros(4 * count).view(np.int32)
        self.store_number = lazy_zeros(4 * count).view(np.int32)
        self.store_place = lazy_zeros(4 * count).view(np.int32)
        self.load_wave = [lazy_zeros(4 * count).view(np.int32) for _ in range(SLOTS)]
        self.load_number = [lazy_zeros(4 * count).view(np.int32) for _ in range(SLOTS)]
        self.load_place = [lazy_zeros(4 * count).view(np.int32) for _ in range(SLOTS)]


class Detector:
    """Vector clocks of all waves. Component 3 w + kind belongs to wave w's accesses of that kind."""

    def __init__(self, waves: int, nbytes: int, granule: int) -> None:
        self.clocks = np.zeros((waves, 3 * waves), np.int32)
        self.shadow = Shadow(nbytes, granule)
        self.granule = granule
        self.handed = lazy_zeros(4 * (nbytes // 4 + 1)).view(np.int32)  # per dword: number of the last release seen
        self.releases: list[np.ndarray] = [np.zeros(3 * waves, np.int32)]
        self.last_release = [0] * waves

    def complete(self, wave: int, kind: int, number: int) -> None:
        """Accesses of this kind up to `number` are known complete."""
        component = 3 * wave + kind
        if number > self.clocks[wave, component]:
            self.clocks[wave, component] = number

    def barrier(self, waves: list[int]) -> None:
        self.clocks[waves] = self.clocks[waves].max(axis=0)

    def release(self, wave: int) -> int:
        """A number for what the wave may hand on now; the last one again where nothing was added."""
        last = self.last_release[wave]
        if last and np.array_equal(self.releases[last], self.clocks[wave]):
            return last
        self.releases.append(self.clocks[wave].copy())
        self.last_release[wave] = len(self.releases) - 1
        return self.last_release[wave]

    def hand_on(self, index: np.ndarray, size: int, release: int) -> None:
        """A synchronising store became visible."""
        self.handed[index.reshape(-1) * size // 4] = release

    def observe(self, wave: int, index: np.ndarray, size: int) -> None:
        """A synchronising load took what it saw."""
        for release in np.unique(self.handed[index.reshape(-1) * size // 4]):
            if release:
                np.maximum(self.clocks[wave], self.releases[release], out=self.clocks[wave])

    def granules(self, index: np.ndarray, size: int, granule: int) -> np.ndarray:
        """Granules [n, per access] of word indices [n, words]."""
        first = index[:, 0] * size // granule
        count = max(index.shape[1] * size // granule, 1)
        return first[:, None] + np.arange(count)

    def store(self, shadow: Shadow, wave: int, kind: int, number: int, at: np.ndarray, place: int, sync: bool) -> Any:
        """Record a store; the Conflict if it races with an earlier access, else None."""
        clock = self.clocks[wave]
        found = self.against_stores(shadow, wave, clock, at, kind, sync)
        if found is None:
            found = self.against_loads(shadow, wave, clock, at, kind)
        shadow.store_wave[at] = wave + 1
        shadow.store_number[at] = -number if sync else number
        shadow.store_place[at] = place
        for slot in range(SLOTS):
            shadow.load_wave[slot][at] = 0
        return found

    def load(self, shadow: Shadow, wave: int, kind: int, number: int, at: np.ndarray, place: int, sync: bool) -> Any:
        """Record a load; the Conflict if it races with an earlier store, else None. Synchronising loads leave no
        trace: polling a word that is later stored plainly is not what this detector is for."""
        clock = self.clocks[wave]
        found = self.against_stores(shadow, wave, clock, at, STORES if kind == LOADS else LDS, sync)
        if sync:
            return found
        self.remember(shadow, wave, clock, kind, number, at, place)
        return found

    def against_stores(
        self, shadow: Shadow, wave: int, clock: np.ndarray, at: np.ndarray, kind: int, sync: bool
    ) -> Conflict | None:
        owner, number = shadow.store_wave[at], shadow.store_number[at]
        other = (owner != 0) & (owner != wave + 1)
        if not other.any():
            return None
        known = clock[3 * np.maximum(owner - 1, 0) + kind]
        bad = other & (np.abs(number) > known)
        if sync:
            bad &= number > 0
        return self.first(bad, owner, shadow.store_place[at], True)

    def against_loads(self, shadow: Shadow, wave: int, clock: np.ndarray, at: np.ndarray, kind: int) -> Conflict | None:
        reads = LOADS if kind == STORES else LDS
        for slot in range(SLOTS):
            owner = shadow.load_wave[slot][at]
            other = (owner != 0) & (owner != wave + 1)
            if not other.any():
                continue
            bad = other & (shadow.load_number[slot][at] > clock[3 * np.maximum(owner - 1, 0) + reads])
            found = self.first(bad, owner, shadow.load_place[slot][at], False)
            if found is not None:
                return found
        return None

    @staticmethod
    def first(bad: np.ndarray, owner: np.ndarray, place: np.ndarray, stored: bool) -> Conflict | None:
        if not bad.any():
            return None
        row = int(np.nonzero(bad.any(axis=1))[0][0])
        column = int(np.nonzero(bad[row])[0][0])
        return Conflict(int(owner[row, column]) - 1, int(place[row, column]), stored, row)

    def remember(
        self, shadow: Shadow, wave: int, clock: np.ndarray, kind: int, number: int, at: np.ndarray, place: int
    ) -> None:
        """Put a plain load into a slot: over one of the same wave, an ordered one, an empty one, else the last."""
        pending = np.ones(at.shape, np.bool_)
        for slot in range(SLOTS):
            owner = shadow.load_wave[slot][at]
            known = clock[3 * np.maximum(owner - 1, 0) + kind]
            free = (owner == 0) | (owner == wave + 1) | (shadow.load_number[slot][at] <= known)
            take = pending & (free | (slot == SLOTS - 1))
            where = at[take]
            shadow.load_wave[slot][where] = wave + 1
            shadow.load_number[slot][where] = number
            shadow.load_place[slot][where] = place
            pending &= ~take
            if not pending.any():
                return
