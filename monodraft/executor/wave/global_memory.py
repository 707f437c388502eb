"""Loads, stores and atomics on global memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from monodraft.executor import atomics
from monodraft.executor.access import (
    Access,
    Lanes,
    Scope,
    from_lanes,
    gather_addresses,
    to_lanes,
    uncached,
    word_index,
)
from monodraft.executor.coherence import SYSTEM
from monodraft.executor.detect import LOADS
from monodraft.executor.gpu import WAVE
from monodraft.executor.memory import BASE
from monodraft.executor.pending import PIECE, InFlight, PendingStore, pieces
from monodraft.executor.values import Late
from monodraft.executor.wave.waits import Waits


class GlobalMemory(Waits):
    """Accesses by 64-bit address."""

    def load(self, address: Any, shape: Access, scope: Scope, m: Any, place: int) -> Any:
        """A global load: its value, or a `Late` under late loads."""
        start, lanes = gather_addresses(address, m)
        return self.load_at(start - BASE, lanes, shape, scope, m, place)

    def load_at(self, start: np.ndarray, lanes: Lanes, shape: Access, scope: Scope, m: Any, place: int) -> Any:
        machine = self.machine
        region = self.region(start, shape, lanes, m, place, "load")
        if region.uncached:
            scope = uncached(scope)
        index = word_index(start, shape)
        level = scope.level
        self.issued += 1
        number = self.issued
        self.work += machine.cost.coherent_load if level > 1 else machine.cost.load
        machine.count_bytes("load", level, start.size * shape.nbytes)
        if self.pending:
            self.flush_touching(index, shape.word)
        if machine.checks_reads:
            self.check_written(start, shape, lanes, m, place)
        if machine.counts_loads:
            machine.count_loads(index, shape.word)
        self.note_load(index, shape.word, number, place, scope, lanes, m)
        if scope.acquire:
            self.wait(0, None)
        moment = machine.policy.load_moment() if machine.late_loads and not scope.acquire else 0
        if moment == 0:
            words = self.sample(level, index, shape.word, scope)
            self.note_value(place, words, start)
            if machine.detector is not None:
                machine.detector.complete(self.identity, LOADS, number)
            if scope.acquire:
                self.cta.path.acquire(level)
            return to_lanes(words, shape, lanes)
        late = Late(self.completion(level, index, shape, scope, lanes, number, moment, place, start))
        machine.policy.hesitate(self.identity)
        self.late.append(InFlight(number, late, index, shape.word))
        return late

    def completion(
        self,
        level: int,
        index: np.ndarray,
        shape: Access,
        scope: Scope,
        lanes: Lanes,
        number: int,
        moment: int,
        place: int,
        start: np.ndarray,
    ) -> Any:
        """What a late load does when it is waited for. With moment 2 some lanes and pieces are sampled now already."""
        early: np.ndarray | None = None
        mask: np.ndarray | None = None
        if moment == 2:
            early = self.sample(level, index, shape.word, scope)
            mask = self.early_words(index, shape.word)

        def complete() -> Any:
            words = self.sample(level, index, shape.word, scope)
            if early is not None and mask is not None:
                words = np.where(mask, early, words)
            self.note_value(place, words, start)
            if self.machine.detector is not None:
                self.machine.detector.complete(self.identity, LOADS, number)
            return to_lanes(words, shape, lanes)

        return complete

    def early_words(self, index: np.ndarray, size: int) -> np.ndarray:
        """Which words of a split load come first: whole pieces of 8 bytes, of some of the lanes."""
        policy = self.machine.policy
        lanes, words = index.shape
        chosen = np.zeros(lanes, np.bool_)
        chosen[policy.shuffled(lanes)[: max(lanes // 2, 1)]] = True
        if not self.machine.model.torn:
            return np.broadcast_to(chosen[:, None], index.shape)
        piece = (index * size // PIECE) & 1
        flip = policy.below(2)
        return (piece == flip) if words * size > PIECE else np.broadcast_to(chosen[:, None], index.shape)

    def sample(self, level: int, index: np.ndarray, size: int, scope: Scope) -> np.ndarray:
        """The words as memory shows them to this wave now."""
        words = self.cta.path.read(level, index, size)
        if scope.sync and self.machine.detector is not None:
            self.machine.detector.observe(self.identity, index, size)
        return words

    def store(self, address: Any, value: Any, shape: Access, scope: Scope, m: Any, place: int) -> None:
        """A global store: pending, or visible at once where the model has no delayed stores."""
        start, lanes = gather_addresses(address, m)
        self.store_at(start - BASE, lanes, value, shape, scope, m, place)

    def store_at(
        self, start: np.ndarray, lanes: Lanes, value: Any, shape: Access, scope: Scope, m: Any, place: int
    ) -> None:
        machine = self.machine
        region = self.region(start, shape, lanes, m, place, "store")
        if region.uncached:
            scope = uncached(scope)
        level = scope.level
        if scope.release:
            self.fence(scope.level, False, True)
        self.issued += 1
        self.work += machine.cost.store
        machine.count_bytes("store", level, start.size * shape.nbytes)
        index = word_index(start, shape)
        data = from_lanes(value, shape, lanes, m, start.size)
        if self.late:
            self.settle_touching(self.late, index, shape.word)
        release = self.note_store(index, shape.word, place, scope, lanes, m)
        store = PendingStore(self.issued, level, index, shape.word, data, place, region, release)
        if machine.delayed_stores:
            self.pending += pieces(store, machine.policy) if machine.model.torn else [store]
            machine.holders[self.identity] = None
        else:
            self.commit(store)

    def atomic(self, address: Any, operation: str, values: Any, shape: Access, scope: Scope, m: Any, place: int) -> Any:
        """A read-modify-write, lane by lane in order, at the scope's level (at least L2). Gives the old value; for a
        compare and exchange (old value, success)."""
        start, lanes = self.atomic_lanes(address, m)
        start = start - BASE
        region = self.region(start, shape, lanes, m, place, "atomic")
        if scope.release:
            self.fence(scope.level, False, True)
        self.issued += 1
        self.work += self.machine.cost.coherent_load
        level = SYSTEM if region.uncached else max(scope.level, 1)
        self.machine.count_bytes("atomic", level, start.size * shape.nbytes)
        index = word_index(start, shape)
        self.flush_touching(index, shape.word)
        self.settle_touching(self.late, index, shape.word)
        self.note_load(index, shape.word, self.issued, place, scope, lanes, m)
        if self.machine.detector is not None:
            self.machine.detector.observe(self.identity, index, shape.word)
        release = self.note_store(index, shape.word, place, scope, lanes, m)

        def read(rows: np.ndarray) -> np.ndarray:
            return self.cta.path.read(level, rows, shape.word)

        def write(rows: np.ndarray, data: np.ndarray) -> None:
            # One that writes what is there already may be a poll: nobody sees anything new.
            self.machine.changes += not np.array_equal(read(rows), data)
            self.take_effect(PendingStore(self.issued, level, rows, shape.word, data, place, region, release))

        old, success = atomics.apply(operation, values, index, shape, lanes, read, write)
        self.note_value(place, old, start)
        if scope.acquire:
            self.fence(scope.level, True, False)
        value = to_lanes(old, shape, lanes)
        return (value, atomics.spread(success, lanes)) if operation == "cmpxchg" else value

    @staticmethod
    def atomic_lanes(address: Any, m: Any) -> tuple[np.ndarray, Lanes]:
        """Every active lane does its own atomic, also where the address is uniform."""
        if not isinstance(address, np.ndarray) or address.ndim == 0:
            address = np.full(WAVE, address, np.int64)
        return gather_addresses(address, m)
