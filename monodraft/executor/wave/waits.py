"""How what is pending becomes visible: waits, fences, clock, sleep and barriers."""

from __future__ import annotations

from typing import Any

import numpy as np

from monodraft.executor.detect import LDS, LOADS, STORES
from monodraft.executor.errors import BarrierMismatch
from monodraft.executor.pending import InFlight, PendingStore, overlap, touches
from monodraft.executor.wave.state import WaveState


class Waits(WaveState):
    """Pending stores and late loads, and what forces them."""

    def commit(self, store: PendingStore) -> None:
        """A pending store becomes visible as far as its level reaches, which is something new to others."""
        self.take_effect(store)
        self.machine.changes += 1

    def take_effect(self, store: PendingStore) -> None:
        self.cta.path.write(store.level, store.index, store.size, store.data)
        machine = self.machine
        if machine.marks_writes:
            machine.mark_written(store.index, store.size)
        if store.release and machine.detector is not None:
            machine.detector.hand_on(store.index, store.size, store.release)

    def commit_lds(self, store: PendingStore) -> None:
        self.cta.lds.write(store.index, store.size, store.data)
        self.machine.changes += 1

    def commit_with_older(self, queue: list[PendingStore], position: int) -> None:
        """Commit the store at `position`, after older ones of the wave that share a dword with it."""
        chosen = queue[position]
        for earlier in [each for each in queue[:position] if overlap(each, chosen)]:
            queue.remove(earlier)
            self.commit(earlier) if queue is self.pending else self.commit_lds(earlier)
        queue.remove(chosen)
        self.commit(chosen) if queue is self.pending else self.commit_lds(chosen)

    def flush_touching(self, index: np.ndarray, size: int) -> None:
        """A wave sees its own stores: those that an access touches come first, with all older ones they depend on."""
        while (last := max((i for i, s in enumerate(self.pending) if touches(s, index, size)), default=-1)) >= 0:
            self.commit_with_older(self.pending, last)

    def flush_lds_touching(self, index: np.ndarray, size: int) -> None:
        while (last := max((i for i, s in enumerate(self.pending_lds) if touches(s, index, size)), default=-1)) >= 0:
            self.commit_with_older(self.pending_lds, last)

    def settle_touching(self, queue: list[InFlight], index: np.ndarray, size: int) -> None:
        """A load in flight takes its value before the wave's own later store to the same place."""
        for each in [each for each in queue if each.late.complete is not None and each.touches(index, size)]:
            each.late.settle()

    def wait(self, vmcnt: int | None, lgkmcnt: int | None) -> None:
        """s_waitcnt: at most so many of the newest operations stay outstanding (None: do not wait)."""
        if vmcnt is not None:
            self.drain(self.issued - vmcnt)
        if lgkmcnt is not None:
            self.drain_lds(self.issued_lds - lgkmcnt)

    def drain(self, number: int) -> None:
        """Global memory operations up to `number` complete."""
        detector = self.machine.detector
        if self.pending:
            for store in [each for each in self.pending if each.number <= number]:
                self.pending.remove(store)
                self.commit(store)
        if self.late:
            for each in [each for each in self.late if each.number <= number]:
                each.late.settle()
            self.late = [each for each in self.late if each.number > number]
        if detector is not None:
            detector.complete(self.identity, STORES, number)
            detector.complete(self.identity, LOADS, number)

    def drain_lds(self, number: int) -> None:
        for store in [each for each in self.pending_lds if each.number <= number]:
            self.pending_lds.remove(store)
            self.commit_lds(store)
        if self.late_lds:
            for each in [each for each in self.late_lds if each.number <= number]:
                each.late.settle()
            self.late_lds = [each for each in self.late_lds if each.number > number]
        if self.machine.detector is not None:
            self.machine.detector.complete(self.identity, LDS, number)

    def drain_loads(self) -> None:
        for each in self.late:
            each.late.settle()
        self.late = []

    def fence(self, level: int, acquire: bool, release: bool) -> None:
        """A workgroup fence waits for LDS only; wider ones drain, write back and invalidate as far as they reach."""
        if release:
            self.drain_lds(self.issued_lds)
        if level < 2:
            return
        if release:
            self.drain(self.issued)
            self.cta.path.release(level)
        if acquire:
            self.drain_loads()
            self.cta.path.acquire(level)

    def clock(self, place: int) -> np.int64:
        """s_memrealtime: the 100 MHz counter."""
        self.place = place
        self.looks += 1
        self.reads_clock = True
        return np.int64(self.machine.ticks)

    def sleep(self, count: int, place: int) -> None:
        self.place = place
        self.looks += 1
        self.work += count * self.machine.cost.sleep

    def barrier(self, m: Any, pending: dict[int, Any], place: int) -> None:
        """Arrive at the CTA's barrier; every lane that has not ended must be here."""
        self.place = place
        self.work += self.machine.cost.barrier
        if pending:
            missing = np.logical_or.reduce(list(pending.values()))
            lanes = tuple(int(lane) for lane in np.nonzero(missing)[0])
            raise self.machine.failure(
                BarrierMismatch,
                "a barrier that these lanes of the wave do not reach together",
                [self.where(place, lanes)],
            )
        self.barriers += 1
