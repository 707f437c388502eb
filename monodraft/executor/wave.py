"""One wave: what generated code calls for everything that is not arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from monodraft.executor import atomics
from monodraft.executor.access import Access, Lanes, Scope, from_lanes, gather_addresses, to_lanes, word_index
from monodraft.executor.coherence import SYSTEM
from monodraft.executor.detect import LDS, LOADS, STORES
from monodraft.executor.errors import BarrierMismatch, OutOfBounds, UninitialisedRead, Where
from monodraft.executor.gpu import WAVE
from monodraft.executor.memory import BASE, Region
from monodraft.executor.pending import PIECE, PendingStore, overlap, pieces, touches
from monodraft.executor.values import Late

if TYPE_CHECKING:
    from monodraft.executor.machine import Cta, Machine

BUFFER_WHOLE = 0xFFFFFFFF


class Wave:
    """State of 64 lanes that run in lockstep. `m` arguments are the active mask, None for all lanes."""

    def __init__(self, machine: Machine, cta: Cta, number: int, identity: int) -> None:
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
        self.work = 0.0
        self.place = 0
        self.issued = 0  # vector memory operations, counted as vmcnt does
        self.issued_lds = 0
        self.pending: list[PendingStore] = []
        self.pending_lds: list[PendingStore] = []
        self.late: list[tuple[int, Late]] = []
        self.late_lds: list[tuple[int, Late]] = []
        self.barriers = 0
        self.progress = 0
        self.reads_clock = False
        self.seen: dict[int, int] = {}

    # ---- messages

    def where(self, place: int | None = None, lanes: tuple[int, ...] = ()) -> Where:
        """Here, or at another place of the same kernel."""
        line = self.cta.dispatch.program.kernel.places[self.place if place is None else place]
        text = f"{line}  `{line.text}`" if line.text else str(line)
        return Where(text, self.cta.dispatch.rank, self.cta.number, self.number, lanes)

    # ---- addresses

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
        if (start & (shape.word - 1)).any():
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
        bad: Any = (start < 0) | (start + shape.nbytes > self.cta.lds.nbytes) | (start & (shape.word - 1) != 0)
        if bad.any():
            who = lanes.where(m, bad)
            raise self.machine.failure(
                OutOfBounds,
                f"{verb} of {shape.nbytes} bytes at LDS offset {int(start[bad][0])} of {self.cta.lds.nbytes}",
                [self.where(place, who)],
            )
        return word_index(start, shape)

    # ---- global memory

    def load(self, address: Any, shape: Access, scope: Scope, m: Any, place: int) -> Any:
        """A global load: its value, or a `Late` under late loads."""
        start, lanes = gather_addresses(address, m)
        return self.load_at(start - BASE, lanes, shape, scope, m, place)

    def load_at(self, start: np.ndarray, lanes: Lanes, shape: Access, scope: Scope, m: Any, place: int) -> Any:
        machine = self.machine
        region = self.region(start, shape, lanes, m, place, "load")
        index = word_index(start, shape)
        level = SYSTEM if region.uncached else scope.level
        self.issued += 1
        number = self.issued
        self.work += machine.cost.memory
        machine.count_bytes("load", level, start.size * shape.nbytes)
        if self.pending:
            self.flush_touching(index, shape.word)
        if machine.watches_writes:
            self.check_written(start, shape, lanes, m, place)
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
        self.late.append((number, late))
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
        if self.pending:
            self.flush_touching(index, size)
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
        level = SYSTEM if region.uncached else scope.level
        if scope.release:
            self.fence(scope.level, False, True)
        self.issued += 1
        self.work += machine.cost.memory
        machine.count_bytes("store", level, start.size * shape.nbytes)
        index = word_index(start, shape)
        data = from_lanes(value, shape, lanes, m, start.size)
        release = self.note_store(index, shape.word, place, scope, lanes, m)
        store = PendingStore(self.issued, level, index, shape.word, data, place, region, release)
        if machine.delayed_stores:
            self.pending += pieces(store, machine.policy) if machine.model.torn else [store]
        else:
            self.commit(store)

    def commit(self, store: PendingStore) -> None:
        """A pending store becomes visible as far as its level reaches."""
        self.cta.path.write(store.level, store.index, store.size, store.data)
        machine = self.machine
        if machine.watches_writes:
            machine.mark_written(store.index, store.size)
        if store.release and machine.detector is not None:
            machine.detector.hand_on(store.index, store.size, store.release)
        machine.changes += 1

    def flush_touching(self, index: np.ndarray, size: int) -> None:
        """A wave sees its own stores: those that an access touches come first, with all older ones they depend on."""
        while (last := max((i for i, s in enumerate(self.pending) if touches(s, index, size)), default=-1)) >= 0:
            self.commit_with_older(self.pending, last)

    def commit_with_older(self, queue: list[PendingStore], position: int) -> None:
        """Commit the store at `position`, after older ones of the wave that share a dword with it."""
        chosen = queue[position]
        for earlier in [each for each in queue[:position] if overlap(each, chosen)]:
            queue.remove(earlier)
            self.commit(earlier) if queue is self.pending else self.commit_lds(earlier)
        queue.remove(chosen)
        self.commit(chosen) if queue is self.pending else self.commit_lds(chosen)

    # ---- buffers

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
        """A wide load at the edge: element by element."""
        single = Access(shape.dtype, 0, shape.atomic)
        parts = []
        for element in range(max(shape.count, 1)):
            mask = inside[:, element]
            part = np.zeros(WAVE, shape.dtype)
            if mask.any():
                where = np.broadcast_to(address, (WAVE,)) + np.int64(element * shape.dtype.itemsize)
                loaded = self.load(where, single, scope, mask, place)
                part = loaded.settle() if isinstance(loaded, Late) else loaded
            parts.append(part)
        return tuple(parts) if shape.count else parts[0]

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
            for element in range(shape.count):
                if partial[:, element].any():
                    where = everywhere + np.int64(element * shape.dtype.itemsize)
                    self.store(where, value[element], single, scope, partial[:, element], place)
        elif inside.any():
            self.store(everywhere, value, shape, scope, inside, place)
        else:
            self.place = place
            self.issued += 1
        return None

    # ---- LDS

    def load_lds(self, address: Any, shape: Access, scope: Scope, m: Any, place: int) -> Any:
        """A load from the CTA's LDS."""
        machine = self.machine
        start, lanes = gather_addresses(address, m)
        index = self.local_index(start, shape, lanes, m, place, "load")
        self.issued_lds += 1
        number = self.issued_lds
        self.work += machine.cost.operation
        machine.count_bytes("load", "lds", start.size * shape.nbytes)
        self.flush_lds_touching(index, shape.word)
        self.note_lds(index, shape.word, number, place, scope, lanes, m, stored=False)
        if machine.late_loads and machine.policy.load_moment():
            late = Late(lambda: self.sample_lds(index, shape, lanes, m, place, number))
            self.late_lds.append((number, late))
            return late
        return self.sample_lds(index, shape, lanes, m, place, number)

    def sample_lds(self, index: np.ndarray, shape: Access, lanes: Lanes, m: Any, place: int, number: int) -> Any:
        machine = self.machine
        self.flush_lds_touching(index, shape.word)
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
        return to_lanes(self.cta.lds.read(index, shape.word), shape, lanes)

    def store_lds(self, address: Any, value: Any, shape: Access, scope: Scope, m: Any, place: int) -> None:
        """A store to the CTA's LDS."""
        machine = self.machine
        start, lanes = gather_addresses(address, m)
        index = self.local_index(start, shape, lanes, m, place, "store")
        self.issued_lds += 1
        self.work += machine.cost.operation
        machine.count_bytes("store", "lds", start.size * shape.nbytes)
        data = from_lanes(value, shape, lanes, m, start.size)
        self.note_lds(index, shape.word, self.issued_lds, place, scope, lanes, m, stored=True)
        store = PendingStore(self.issued_lds, 0, index, shape.word, data, place)
        if machine.delayed_lds:
            self.pending_lds += pieces(store, machine.policy) if machine.model.torn else [store]
        else:
            self.commit_lds(store)

    def commit_lds(self, store: PendingStore) -> None:
        self.cta.lds.write(store.index, store.size, store.data)
        self.machine.changes += 1

    def flush_lds_touching(self, index: np.ndarray, size: int) -> None:
        while (last := max((i for i, s in enumerate(self.pending_lds) if touches(s, index, size)), default=-1)) >= 0:
            self.commit_with_older(self.pending_lds, last)

    # ---- atomics

    def atomic(self, address: Any, operation: str, values: Any, shape: Access, scope: Scope, m: Any, place: int) -> Any:
        """A read-modify-write, lane by lane in order, at the scope's level (at least L2). Gives the old value; for a
        compare and exchange (old value, success)."""
        start, lanes = self.atomic_lanes(address, m)
        start = start - BASE
        region = self.region(start, shape, lanes, m, place, "atomic")
        if scope.release:
            self.fence(scope.level, False, True)
        self.issued += 1
        self.work += self.machine.cost.memory
        level = SYSTEM if region.uncached else max(scope.level, 1)
        self.machine.count_bytes("atomic", level, start.size * shape.nbytes)
        index = word_index(start, shape)
        self.flush_touching(index, shape.word)
        self.note_load(index, shape.word, self.issued, place, scope, lanes, m)
        if self.machine.detector is not None:
            self.machine.detector.observe(self.identity, index, shape.word)
        release = self.note_store(index, shape.word, place, scope, lanes, m)

        def read(rows: np.ndarray) -> np.ndarray:
            return self.cta.path.read(level, rows, shape.word)

        def write(rows: np.ndarray, data: np.ndarray) -> None:
            self.commit(PendingStore(self.issued, level, rows, shape.word, data, place, region, release))

        old, success = atomics.apply(operation, values, index, shape, lanes, read, write)
        self.note_value(place, old, start)
        if scope.acquire:
            self.fence(scope.level, True, False)
        value = to_lanes(old, shape, lanes)
        return (value, atomics.spread(success, lanes)) if operation == "cmpxchg" else value

    def atomic_lds(
        self, address: Any, operation: str, values: Any, shape: Access, scope: Scope, m: Any, place: int
    ) -> Any:
        """The same on the CTA's LDS."""
        start, lanes = self.atomic_lanes(address, m)
        index = self.local_index(start, shape, lanes, m, place, "atomic")
        self.issued_lds += 1
        self.flush_lds_touching(index, shape.word)
        lds = self.cta.lds
        self.note_lds(index, shape.word, self.issued_lds, place, Scope(0, sync=True), lanes, m, stored=True)
        old, success = atomics.apply(
            operation,
            values,
            index,
            shape,
            lanes,
            lambda rows: lds.read(rows, shape.word),
            lambda rows, data: lds.write(rows, shape.word, data),
        )
        self.machine.changes += 1
        value = to_lanes(old, shape, lanes)
        return (value, atomics.spread(success, lanes)) if operation == "cmpxchg" else value

    @staticmethod
    def atomic_lanes(address: Any, m: Any) -> tuple[np.ndarray, Lanes]:
        """Every active lane does its own atomic, also where the address is uniform."""
        if not isinstance(address, np.ndarray) or address.ndim == 0:
            address = np.full(WAVE, address, np.int64)
        return gather_addresses(address, m)

    # ---- waits

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
            for _, late in [each for each in self.late if each[0] <= number]:
                late.settle()
            self.late = [each for each in self.late if each[0] > number]
        if detector is not None:
            detector.complete(self.identity, STORES, number)
            detector.complete(self.identity, LOADS, number)

    def drain_lds(self, number: int) -> None:
        for store in [each for each in self.pending_lds if each.number <= number]:
            self.pending_lds.remove(store)
            self.commit_lds(store)
        if self.late_lds:
            for _, late in [each for each in self.late_lds if each[0] <= number]:
                late.settle()
            self.late_lds = [each for each in self.late_lds if each[0] > number]
        if self.machine.detector is not None:
            self.machine.detector.complete(self.identity, LDS, number)

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

    def drain_loads(self) -> None:
        for _, late in self.late:
            late.settle()
        self.late = []

    def clock(self, place: int) -> np.int64:
        """s_memrealtime: the 100 MHz counter."""
        self.place = place
        self.reads_clock = True
        return np.int64(self.machine.ticks)

    def sleep(self, count: int, place: int) -> None:
        self.place = place
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

    # ---- notes for the detectors

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
