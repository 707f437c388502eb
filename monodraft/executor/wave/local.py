"""Loads, stores and atomics on the LDS of the CTA."""

from __future__ import annotations

from typing import Any

import numpy as np

from monodraft.executor import atomics
from monodraft.executor.access import Access, Lanes, Scope, from_lanes, gather_addresses, to_lanes
from monodraft.executor.detect import LDS
from monodraft.executor.errors import UninitialisedRead
from monodraft.executor.pending import InFlight, PendingStore, pieces
from monodraft.executor.values import Late
from monodraft.executor.wave.global_memory import GlobalMemory
from monodraft.executor.wave.waits import Waits


class LocalMemory(Waits):
    """Accesses by offset into the LDS."""

    def load_lds(self, address: Any, shape: Access, scope: Scope, m: Any, place: int) -> Any:
        """A load from the CTA's LDS."""
        machine = self.machine
        start, lanes = gather_addresses(address, m)
        index = self.local_index(start, shape, lanes, m, place, "load")
        self.issued_lds += 1
        number = self.issued_lds
        machine.count_bytes("load", "lds", start.size * shape.nbytes)
        self.flush_lds_touching(index, shape.word)
        self.note_lds(index, shape.word, number, place, scope, lanes, m, stored=False)
        if machine.late_loads and machine.policy.load_moment():
            late = Late(lambda: self.sample_lds(index, shape, lanes, m, place, number))
            self.late_lds.append(InFlight(number, late, index, shape.word))
            return late
        return self.sample_lds(index, shape, lanes, m, place, number)

    def sample_lds(self, index: np.ndarray, shape: Access, lanes: Lanes, m: Any, place: int, number: int) -> Any:
        machine = self.machine
        if machine.model.uninitialised:
            bad = self.cta.lds.unwritten(index, shape.word).any(axis=1)
            if bad.any():
                who = lanes.where(m, bad)
                offset = int(index[bad][0, 0]) * shape.word
                raise machine.failure(
                    UninitialisedRead,
                    f"load of {shape.nbytes} bytes of LDS at offset {offset} that nothing wrote (as far as this wave "
                    "can see)",
                    [self.where(place, who)],
                )
        if machine.detector is not None:
            machine.detector.complete(self.identity, LDS, number)
        words = self.cta.lds.read(index, shape.word)
        self.note_value(place, words, index)
        return to_lanes(words, shape, lanes)

    def store_lds(self, address: Any, value: Any, shape: Access, scope: Scope, m: Any, place: int) -> None:
        """A store to the CTA's LDS."""
        machine = self.machine
        start, lanes = gather_addresses(address, m)
        index = self.local_index(start, shape, lanes, m, place, "store")
        self.issued_lds += 1
        machine.count_bytes("store", "lds", start.size * shape.nbytes)
        data = from_lanes(value, shape, lanes, m, start.size)
        if self.late_lds:
            self.settle_touching(self.late_lds, index, shape.word)
        self.note_lds(index, shape.word, self.issued_lds, place, scope, lanes, m, stored=True)
        store = PendingStore(self.issued_lds, 0, index, shape.word, data, place)
        if machine.delayed_lds:
            self.pending_lds += pieces(store, machine.policy) if machine.model.torn else [store]
            machine.holders[self.identity] = None
        else:
            self.commit_lds(store)

    def atomic_lds(
        self, address: Any, operation: str, values: Any, shape: Access, scope: Scope, m: Any, place: int
    ) -> Any:
        """The same on the CTA's LDS."""
        start, lanes = GlobalMemory.atomic_lanes(address, m)
        index = self.local_index(start, shape, lanes, m, place, "atomic")
        self.issued_lds += 1
        self.flush_lds_touching(index, shape.word)
        self.settle_touching(self.late_lds, index, shape.word)
        lds = self.cta.lds
        self.note_lds(index, shape.word, self.issued_lds, place, Scope(0, sync=True), lanes, m, stored=True)
        before = lds.read(index, shape.word)
        old, success = atomics.apply(
            operation,
            values,
            index,
            shape,
            lanes,
            lambda rows: lds.read(rows, shape.word),
            lambda rows, data: lds.write(rows, shape.word, data),
        )
        self.machine.changes += not np.array_equal(lds.read(index, shape.word), before)
        self.note_value(place, old, index)
        value = to_lanes(old, shape, lanes)
        return (value, atomics.spread(success, lanes)) if operation == "cmpxchg" else value
