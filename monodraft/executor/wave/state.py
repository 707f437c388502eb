"""What a wave is: its identity, its counters, where it stands, and what it tells the detectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from monodraft.executor.access import Access, Lanes, Scope, word_index
from monodraft.executor.detect import LDS, LOADS, STORES
from monodraft.executor.errors import OutOfBounds, UninitialisedRead, Where
from monodraft.executor.gpu import WAVE
from monodraft.executor.memory import BASE, Region
from monodraft.executor.pending import InFlight, PendingStore

if TYPE_CHECKING:
    from monodraft.executor.run_state import Cta, RunState


class WaveState:
    """State of 64 lanes that run in lockstep. `m` arguments are the active mask, None for all lanes."""

    def __init__(self, machine: RunState, cta: Cta, number: int, identity: int) -> None:
        self.machine = machine
        self.cta = cta
        self.number = number
        self.identity = identity
        dispatch = cta.dispatch
        self.grid, self.block = dispatch.grid, dispatch.block
        self.block_index = tuple(np.int32(each) for each in cta.index)
        threads = np.arange(number * WAVE, (number + 1) * WAVE, dtype=np.int32)
        x, y, _ = (np.int32(each) for each in dispatch.block)
        self.thread = (threads % x, threads // x % y, threads // (x * y))
        present = threads < dispatch.threads
        self.initial_mask = None if present.all() else present
        self.counts = [0] * len(dispatch.program.kernel.blocks)
        self.ops = 0
        self.work = 0.0
        self.place = 0
        self.issued = 0  # vector memory operations, counted as vmcnt does
        self.issued_lds = 0
        self.pending: list[PendingStore] = []
        self.pending_lds: list[PendingStore] = []
        self.late: list[InFlight] = []
        self.late_lds: list[InFlight] = []
        self.barriers = 0
        self.progress = 0
        self.looks = 0  # loads, clock reads and sleeps
        self.reads_clock = False
        self.seen: dict[int, int] = {}

    def where(self, place: int | None = None, lanes: tuple[int, ...] = ()) -> Where:
        """Here, or at another place of the same kernel."""
        line = self.cta.dispatch.program.kernel.places[self.place if place is None else place]
        text = f"{line}  `{line.text}`" if line.text else str(line)
        return Where(text, self.cta.dispatch.rank, self.cta.number, self.number, lanes)

    def region(self, start: np.ndarray, shape: Access, lanes: Lanes, m: Any, place: int, verb: str) -> Region:
        """The region of an access; all lanes must lie in regions and be aligned for their words."""
        self.place = place
        memory = self.machine.memory
        low, high = int(start.min()), int(start.max())
        region = memory.find(low, shape.nbytes)
        if region is None or high + shape.nbytes > region.end:
            bad = np.array([memory.find(int(each), shape.nbytes) is None for each in start])
            if bad.any():
                self.out_of_bounds(start, bad, shape, lanes, m, place, verb)
            region = memory.find(low, shape.nbytes)
        if shape.word > 1 and (start & (shape.word - 1)).any():
            bad = (start & (shape.word - 1)) != 0
            self.out_of_bounds(start, bad, shape, lanes, m, place, f"misaligned {verb}")
        assert region is not None
        return region

    def out_of_bounds(
        self, start: np.ndarray, bad: np.ndarray, shape: Access, lanes: Lanes, m: Any, place: int, verb: str
    ) -> None:
        first = int(start[bad][0])
        who = lanes.where(m, bad)
        raise self.machine.failure(
            OutOfBounds,
            f"{verb} of {shape.nbytes} bytes at {BASE + first:#x}: {self.machine.memory.near(first)}",
            [self.where(place, who)],
        )

    def local_index(self, start: np.ndarray, shape: Access, lanes: Lanes, m: Any, place: int, verb: str) -> np.ndarray:
        """Word indices into the CTA's LDS, checked."""
        self.place = place
        inside = start.min() >= 0 and start.max() + shape.nbytes <= self.cta.lds.nbytes
        if not inside or (shape.word > 1 and (start & (shape.word - 1)).any()):
            bad: Any = (start < 0) | (start + shape.nbytes > self.cta.lds.nbytes) | (start & (shape.word - 1) != 0)
            who = lanes.where(m, bad)
            raise self.machine.failure(
                OutOfBounds,
                f"{verb} of {shape.nbytes} bytes at LDS offset {int(start[bad][0])} of {self.cta.lds.nbytes}",
                [self.where(place, who)],
            )
        return word_index(start, shape)

    def note_load(
        self, index: np.ndarray, size: int, number: int, place: int, scope: Scope, lanes: Lanes, m: Any
    ) -> None:
        detector = self.machine.detector
        if detector is not None:
            at = detector.granules(index, size, detector.granule)
            found = detector.load(detector.shadow, self.identity, LOADS, number, at, place, scope.sync)
            if found is not None:
                self.machine.race(self, found, index, size, place, lanes, m, "load")

    def note_store(self, index: np.ndarray, size: int, place: int, scope: Scope, lanes: Lanes, m: Any) -> int:
        """Records a store; for a synchronising one the number of what it hands on."""
        detector = self.machine.detector
        if detector is None:
            return 0
        at = detector.granules(index, size, detector.granule)
        found = detector.store(detector.shadow, self.identity, STORES, self.issued, at, place, scope.sync)
        if found is not None:
            self.machine.race(self, found, index, size, place, lanes, m, "store")
        return detector.release(self.identity) if scope.sync else 0

    def note_lds(
        self, index: np.ndarray, size: int, number: int, place: int, scope: Scope, lanes: Lanes, m: Any, stored: bool
    ) -> None:
        detector = self.machine.detector
        if detector is None:
            return
        shadow = self.cta.shadow
        at = detector.granules(index, size, shadow.granule)
        note = detector.store if stored else detector.load
        found = note(shadow, self.identity, LDS, number, at, place, scope.sync)
        if found is not None:
            self.machine.race(self, found, index, size, place, lanes, m, "LDS store" if stored else "LDS load")

    def note_value(self, place: int, words: np.ndarray, start: np.ndarray) -> None:
        """A load that gives something new is progress; one that repeats itself is polling."""
        self.looks += 1
        what = hash((words.tobytes(), start.tobytes()))
        if self.seen.get(place) != what:
            self.seen[place] = what
            self.progress += 1

    def check_written(self, start: np.ndarray, shape: Access, lanes: Lanes, m: Any, place: int) -> None:
        bad = self.machine.unwritten(start, shape.nbytes)
        if bad is None or not bad.any():
            return
        who = lanes.where(m, bad)
        near = self.machine.memory.near(int(start[bad][0]))
        raise self.machine.failure(
            UninitialisedRead, f"load of {shape.nbytes} bytes that nothing wrote: {near}", [self.where(place, who)]
        )
