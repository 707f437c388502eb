"""Loads that go from a buffer straight to LDS."""

from __future__ import annotations

from typing import Any

import numpy as np

from monodraft.executor.access import Access, Scope, from_lanes, gather_addresses
from monodraft.executor.detect import LDS
from monodraft.executor.gpu import WAVE
from monodraft.executor.lanes import read_first_lane
from monodraft.executor.pending import InFlight
from monodraft.executor.values import Late
from monodraft.executor.wave.buffers import Buffers
from monodraft.executor.wave.local import LocalMemory

# Nothing that a store of the wave could touch: the LDS side of such a load has no global address.
NOWHERE = np.array([[1 << 58]])


class DirectToLds(Buffers, LocalMemory):
    """`buffer_load_dword*_lds`."""

    def load_to_lds(
        self,
        resource: Any,
        target: Any,
        size: int,
        offset: Any,
        base: Any,
        immediate: int,
        scope: Scope,
        m: Any,
        place: int,
    ) -> None:
        """Lane i's `size` bytes at `offset` go to LDS at `target` (uniform) + `immediate` + i * `size`.

        The data lie in LDS when the load's vmcnt wait is over, not before; lanes outside the resource write zeros.
        """
        shape = Access(np.dtype(np.int32), size // 4)
        value = self.load_buffer(resource, offset + np.int32(immediate), base, shape, scope, m, place)
        first = np.int64(read_first_lane(m, target)) + np.int64(immediate)
        start, lanes = gather_addresses(first + np.arange(WAVE, dtype=np.int64) * size, m)
        index = self.local_index(start, shape, lanes, m, place, "store")

        def complete() -> None:
            known = value.settle() if isinstance(value, Late) else value
            data = from_lanes(known, shape, lanes, m, start.size)
            self.issued_lds += 1
            self.note_lds(index, shape.word, self.issued_lds, place, Scope(0), lanes, m, stored=True)
            self.cta.lds.write(index, shape.word, data)
            self.machine.changes += 1
            if self.machine.detector is not None:
                self.machine.detector.complete(self.identity, LDS, self.issued_lds)

        if self.machine.late_loads:
            self.late.append(InFlight(self.issued, Late(complete), NOWHERE, shape.word))
        else:
            complete()
