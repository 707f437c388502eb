"""Raw buffer accesses: an address and bounds from a resource."""

from __future__ import annotations

from typing import Any

import numpy as np

from monodraft.executor.access import Access, Scope
from monodraft.executor.gpu import WAVE
from monodraft.executor.values import Late
from monodraft.executor.wave.global_memory import GlobalMemory

BUFFER_WHOLE = 0xFFFFFFFF


class Buffers(GlobalMemory):
    """A resource is (base address, size in bytes)."""

    def load_buffer(
        self, resource: Any, offset: Any, base: Any, shape: Access, scope: Scope, m: Any, place: int
    ) -> Any:
        """A raw buffer load: lanes past the resource's size read 0 (each dword of a wide load by itself)."""
        address, inside = self.buffer_address(resource, offset, base, shape, m)
        if inside is None:
            return self.load(address, shape, scope, m, place)
        partial = self.partly_inside(resource, offset, base, shape, m)
        if partial is not None:
            return self.load_partial(address, partial, shape, scope, m, place)
        if not inside.any():
            self.place = place
            self.issued += 1
            zeros = np.zeros(WAVE, shape.dtype)
            return (zeros,) * shape.count if shape.count else zeros
        return self.load(np.broadcast_to(address, (WAVE,)), shape, scope, inside, place)

    def load_partial(self, address: Any, inside: np.ndarray, shape: Access, scope: Scope, m: Any, place: int) -> Any:
        """A wide load at the edge: element by element, one instruction all the same."""
        single = Access(shape.dtype, 0, shape.atomic)
        parts: list[Any] = []
        self.issued += 1
        for element in range(shape.count):
            mask = inside[:, element]
            part: Any = np.zeros(WAVE, shape.dtype)
            if mask.any():
                where = np.broadcast_to(address, (WAVE,)) + np.int64(element * shape.dtype.itemsize)
                self.issued -= 1  # `load` counts it again
                part = self.load(where, single, scope, mask, place)
            parts.append(part)
        if any(isinstance(part, Late) for part in parts):
            return Late(lambda: tuple(part.settle() if isinstance(part, Late) else part for part in parts))
        return tuple(parts)

    def partly_inside(self, resource: Any, offset: Any, base: Any, shape: Access, m: Any) -> np.ndarray | None:
        """[64, elements] inside flags when some lane is only partly inside, else None."""
        if shape.count < 2:
            return None
        begin = np.broadcast_to(np.asarray(offset).view(np.uint32).astype(np.int64), (WAVE,))
        ends = begin[:, None] + (np.arange(shape.count) + 1) * shape.dtype.itemsize
        inside = ends <= np.broadcast_to(resource[1], (WAVE,))[:, None]
        if m is not None:
            inside &= m[:, None]
        mixed = inside.any(axis=1) & ~inside.all(axis=1)
        return inside if mixed.any() else None

    def buffer_address(self, resource: Any, offset: Any, base: Any, shape: Access, m: Any) -> tuple[Any, Any]:
        """Address per lane, and which lanes lie wholly inside (None: all). Offsets are unsigned 32-bit; the scalar
        offset is added to the address and not to the bounds check."""
        address, size = resource
        within = np.asarray(offset).view(np.uint32).astype(np.int64)[()]
        result = address + within + np.asarray(base).view(np.uint32).astype(np.int64)[()]
        if size.__class__ is np.int64 and size == BUFFER_WHOLE:
            return result, None
        inside = np.broadcast_to(within + shape.nbytes <= size, (WAVE,))
        if m is not None:
            inside = inside & m
        elif inside.all():
            return result, None
        return (result, None) if m is not None and (inside == m).all() else (result, inside)

    def store_buffer(
        self, resource: Any, offset: Any, base: Any, value: Any, shape: Access, scope: Scope, m: Any, place: int
    ) -> None:
        """A raw buffer store: lanes (or dwords) past the resource's size are dropped."""
        address, inside = self.buffer_address(resource, offset, base, shape, m)
        if inside is None:
            return self.store(address, value, shape, scope, m, place)
        partial = self.partly_inside(resource, offset, base, shape, m)
        everywhere = np.broadcast_to(address, (WAVE,))
        if partial is not None:
            single = Access(shape.dtype, 0, shape.atomic)
            self.issued += 1
            for element in range(shape.count):
                if partial[:, element].any():
                    where = everywhere + np.int64(element * shape.dtype.itemsize)
                    self.issued -= 1  # `store` counts it again
                    self.store(where, value[element], single, scope, partial[:, element], place)
        elif inside.any():
            self.store(everywhere, value, shape, scope, inside, place)
        else:
            self.place = place
            self.issued += 1
        return None
