"""The shape of a memory access, its scope, and the way between lanes and memory words."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from monodraft.executor.gpu import WAVE

WORD: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32}
SCOPES = ("plain", "plain", "device", "system")


@dataclass(frozen=True)
class Access:
    """`count` elements of `dtype` per lane (0: one, not in a vector). Memory is touched in words of at most 4 bytes."""

    dtype: np.dtype
    count: int
    atomic: bool = False

    @cached_property
    def nbytes(self) -> int:
        return int(self.dtype.itemsize * max(self.count, 1))

    @cached_property
    def word(self) -> int:
        return min(self.dtype.itemsize, 4)

    @cached_property
    def words(self) -> int:
        return self.nbytes // self.word

    @cached_property
    def steps(self) -> np.ndarray:
        """Word offsets within an access."""
        return np.arange(self.words)


@dataclass(frozen=True)
class Scope:
    """How far an access reaches: level 0 plain (own caches), 2 device (SC1), 3 system (SC0 SC1).

    `sync`: it orders others (coherent bits, or an atomic), so that the race detector takes it as synchronisation and
    not as data. `acquire` and `release` are its fences.
    """

    level: int
    sync: bool = False
    acquire: bool = False
    release: bool = False


def uncached(scope: Scope) -> Scope:
    """The same access to uncached memory: there are no caches to keep it from anybody, whatever its bits say."""
    return Scope(3, True, scope.acquire, scope.release)


@dataclass(frozen=True)
class Lanes:
    """Which lanes an access concerns. `uniform`: one address for all; else `active` are their numbers."""

    uniform: bool
    active: np.ndarray | None

    def numbers(self, mask: np.ndarray | None) -> tuple[int, ...]:
        """Lane numbers, for messages."""
        if self.active is not None:
            return tuple(int(lane) for lane in self.active)
        return tuple(range(WAVE)) if mask is None else tuple(int(lane) for lane in np.nonzero(mask)[0])

    def where(self, mask: np.ndarray | None, bad: Any) -> tuple[int, ...]:
        """Numbers of the lanes whose row of `bad` [n] is set, for messages."""
        numbers = self.numbers(mask)
        return numbers if self.uniform else tuple(n for n, wrong in zip(numbers, bad, strict=True) if wrong)


UNIFORM = Lanes(True, None)
ALL = Lanes(False, None)


def gather_addresses(address: Any, mask: np.ndarray | None) -> tuple[np.ndarray, Lanes]:
    """Addresses of the active lanes [n], and who they are."""
    if not isinstance(address, np.ndarray) or address.ndim == 0:
        return np.array([address], np.int64), UNIFORM
    if mask is None:
        return address, ALL
    return address[mask], Lanes(False, np.nonzero(mask)[0])


def word_index(start: np.ndarray, shape: Access) -> np.ndarray:
    """Word indices [n, words] from byte offsets [n]."""
    first = start >> (shape.word >> 1)  # words are 1, 2 or 4 bytes
    return first[:, None] + shape.steps if shape.words > 1 else first[:, None]


def to_lanes(words: np.ndarray, shape: Access, lanes: Lanes) -> Any:
    """Words [n, words] as a value: a NumPy array per component, a scalar each where the address was uniform."""
    data = np.ascontiguousarray(words).view(shape.dtype)
    if lanes.uniform:
        parts = list(data[0])
    elif lanes.active is None:
        parts = [np.ascontiguousarray(column) for column in data.T]
    else:
        parts = []
        for column in data.T:
            part = np.zeros(WAVE, shape.dtype)
            part[lanes.active] = column
            parts.append(part)
    return tuple(parts) if shape.count else parts[0]


def from_lanes(value: Any, shape: Access, lanes: Lanes, mask: np.ndarray | None, n: int) -> np.ndarray:
    """The words [n, words] of a value to store. Where one address takes many lanes, the last active lane wins."""
    data = np.empty((n, max(shape.count, 1)), shape.dtype)
    for index, part in enumerate(value if shape.count else (value,)):
        if isinstance(part, np.ndarray) and part.ndim:
            if lanes.uniform:
                part = part[WAVE - 1] if mask is None else part[np.nonzero(mask)[0][-1]]
            elif lanes.active is not None:
                part = part[lanes.active]
        data[:, index] = part
    return data.view(WORD[shape.word])
