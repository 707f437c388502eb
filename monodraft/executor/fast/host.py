"""Builds the records of a machine in memory and runs it: the host's half of the engine.

A `Prepared` holds one job laid out for the native runtime. Running it again with another seed costs a copy of the small
records and of the arrays, no translation and no allocation.
"""

from __future__ import annotations

import ctypes
import random
from dataclasses import dataclass

import numpy as np

from monodraft.errors import Fault
from monodraft.executor.engine import Job, check_schedule
from monodraft.executor.errors import BadLaunch
from monodraft.executor.fast import records
from monodraft.executor.fast.block import Block, Record
from monodraft.executor.fast.kernel import Kernel, translate
from monodraft.executor.fast.layout import Layout
from monodraft.executor.fast.native_library import runtime
from monodraft.executor.fast.records import Cache, Cta, Event, Machine, Wave
from monodraft.executor.fast.runtime_access import SEEN
from monodraft.executor.fast.runtime_pending import LOAD_BYTES, SPEEDS, STORE_BYTES
from monodraft.executor.fast.translate import SCRATCH_BYTES, SCRATCH_OFFSET
from monodraft.executor.fast.words import fields, size_of
from monodraft.executor.gpu import WAVE
from monodraft.executor.launch import Dispatch
from monodraft.executor.lds import JUNK
from monodraft.executor.memory import BASE
from monodraft.executor.schedule import Pick, Schedule

LINE = 128
WHOLE = 1 << 32
VICTIM_SPEED = WHOLE // 100_000
SPEED_TABLE = np.rint((WHOLE - 1) * 10.0 ** (-5 * np.arange(SPEEDS) / SPEEDS)).astype(np.int64)
TRACE_ROOM = 1 << 20
# Schedules as the reference engine draws them: the decades of the waves' speeds and the longest turn in scheduling
# points are drawn for each run.
SPEED_DECADES, SLICES, ROUND_ROBIN_SLICE = (1, 3, 5), (1, 2, 4, 20), 256
TURNS_AT_ONCE = 1 << 20
"""Turns between which the host looks whether it is interrupted."""


@dataclass
class Part:
    """One dispatch in the machine: its kernel and where its waves are."""

    dispatch: Dispatch
    kernel: Kernel
    first_wave: int
    waves: int
    table: np.ndarray
    counts: np.ndarray
    saved: np.ndarray
    lds: np.ndarray
    lds_bytes: int

    def column(self, name: str) -> np.ndarray:
        """One field of all waves."""
        return self.table[:, fields(Wave)[name] // 8]


def round_up(value: int, step: int) -> int:
    return -(-value // step) * step


class Prepared:
    """A job laid out for the native runtime."""

    def __init__(self, job: Job, *, again: bool = True) -> None:
        """`again`: the job will be run more than once, so its arrays are copied to start each run alike."""
        refuse_model(job)
        self.job = job
        self.kernels = [translate(each.program) for each in job.dispatches]
        self.run_native = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(
            runtime().address("run_machine")
        )
        self.reset_native = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(
            runtime().address("reset_caches")
        )
        self.total = sum(each.ctas * each.waves for each in job.dispatches)
        self.ctas = sum(each.ctas for each in job.dispatches)
        self.block = Block(self._room())
        self.machine = Record(self.block, Machine, self.block.take(SCRATCH_OFFSET + SCRATCH_BYTES))
        self._fixed()
        self.cta_records = self.block.take(self.ctas * size_of(Cta))
        self.cta_table = self.block.words(self.cta_records, self.ctas * size_of(Cta) // 8).reshape(self.ctas, -1)
        self.wave_addresses = self.block.words(self.block.take(8 * self.total), self.total)
        self.parts: list[Part] = []
        for number, (dispatch, kernel) in enumerate(zip(job.dispatches, self.kernels, strict=True)):
            self.parts.append(self._part(number, dispatch, kernel))
        self._caches()
        self._regions()
        self.cta_saved = self.cta_table.copy()
        regions = job.memory.regions if again else []
        self.arrays = [(region.array, region.array.copy()) for region in regions]
        self.written = [(r.written, r.written.copy()) for r in regions if r.written is not None]
        self.fresh = True

    # -- sizes

    def _cache_bytes(self) -> int:
        lines = self.job.memory.used // LINE + 2
        return lines * (LINE + 16 + 1 + 8 + 8) + 6 * 64 + size_of(Cache)

    def _wave_bytes(self, kernel: Kernel) -> int:
        rings = records.PENDING * (STORE_BYTES + LOAD_BYTES)
        return round_up(kernel.layout.size, 64) + round_up(rings, 64) + 8 * SEEN

    def _room(self) -> int:
        job, model = self.job, self.job.model
        room = size_of(Machine) + SCRATCH_BYTES + TRACE_ROOM * size_of(Event) * job.trace + (1 << 20)
        room += self.ctas * (size_of(Cta) + 64) + self.total * 64 + len(job.memory.regions) * 64
        for dispatch, kernel in zip(job.dispatches, self.kernels, strict=True):
            room += dispatch.ctas * dispatch.waves * self._wave_bytes(kernel) + 16 * len(kernel.layout.steps)
            room += (
                dispatch.ctas * (2 * dispatch.lds_bytes + 192) + dispatch.waves * 1024 + 8 * len(dispatch.words) + 1024
            )
        xcds = {(each.rank, number) for each in job.dispatches for number in range(min(each.ctas, job.gpu.xcds))}
        caches = self.ctas * model.l1 + len(xcds) * model.l2 + job.memory.ranks * model.device
        return room + caches * (self._cache_bytes() + 8)

    # -- records

    def _fixed(self) -> None:
        """Fields of the machine that no run changes."""
        m, job, model, block = self.machine, self.job, self.job.model, self.block
        host = job.memory.raw.ctypes.data
        m["memory"], m["base"], m["arena"] = host, BASE, host - BASE
        m["caches"] = model.l1 or model.l2 or model.device
        m["check_written"] = model.uninitialised
        m["mark_regions"] = any(r.written is not None for r in job.memory.regions)
        m["watch_regions"] = model.uninitialised and m["mark_regions"]
        m["count_regions"] = any(r.loads is not None for r in job.memory.regions)
        m["plain_memory"] = not m["caches"] and not m["mark_regions"]
        m["torn"] = model.torn
        m["speeds"] = block.take(8 * SPEEDS)
        block.words(m["speeds"], SPEEDS)[:] = SPEED_TABLE
        m["wave_count"], m["cta_count"] = self.total, self.ctas
        m["live"] = block.take(8 * self.total)
        m["busy"] = block.take(8 * job.memory.ranks)
        m["left"] = block.take(8 * len(job.dispatches))
        m["traffic"] = block.take(8 * 16)
        m["jump_limit"], m["idle_limit"] = job.limits.jump, job.limits.idle_ticks
        m["work_limit"] = job.limits.wave_ops
        cost = job.gpu.cost
        for name in ("operation", "load", "coherent_load", "store", "barrier", "sleep"):
            m[f"{name}_cost"] = round(getattr(cost, name) * 65536)
        if job.trace:
            m["trace"], m["trace_room"] = block.take(TRACE_ROOM * size_of(Event)), TRACE_ROOM

    def _part(self, number: int, dispatch: Dispatch, kernel: Kernel) -> Part:
        """The waves, CTAs and LDS of one dispatch."""
        block, layout = self.block, kernel.layout
        first_wave = sum(part.waves for part in self.parts)
        first_cta = sum(part.dispatch.ctas for part in self.parts)
        waves, stride = dispatch.ctas * dispatch.waves, self._wave_bytes(kernel)
        start = block.take(waves * stride)
        table = block.words(start, waves * stride // 8).reshape(waves, stride // 8)
        arguments = block.take(8 * max(len(dispatch.words), 1))
        block.words(arguments, len(dispatch.words))[:] = [(w + 2**63) % 2**64 - 2**63 for w in dispatch.words]
        dims = block.take(48)
        block.words(dims, 6)[:] = [*dispatch.grid, *dispatch.block]
        counts, sizes = (block.take(8 * len(layout.steps)) for _ in range(2))
        block.words(sizes, len(layout.steps))[:] = [kinds.total() for kinds in kernel.kinds]
        # The bytes of LDS, then for each whether it was written.
        lds_bytes = dispatch.lds_bytes
        lds_stride = round_up(2 * lds_bytes + 64, 64)
        lds = block.take(dispatch.ctas * lds_stride)
        lds_table = block.bytes(lds, dispatch.ctas * lds_stride).reshape(dispatch.ctas, lds_stride)
        numbers = np.arange(waves)
        cta = numbers // dispatch.waves
        x, y, _ = dispatch.grid
        addresses = start + numbers * stride
        rings = addresses + round_up(layout.size, 64)
        threads = self._threads(dispatch)
        columns = {
            "masks": addresses + layout.masks,
            "words": addresses + layout.words,
            "word_count": layout.word_count,
            "step_count": len(layout.steps),
            "counts": counts,
            "sizes": sizes,
            "arguments": arguments,
            "threads": threads + 768 * (numbers % dispatch.waves),
            "cta_x": cta % x,
            "cta_y": cta // x % y,
            "cta_z": cta // (x * y),
            "dims": dims,
            "lds": lds + cta * lds_stride,
            "lds_bytes": dispatch.lds_bytes,
            "number": first_wave + numbers,
            "rank": dispatch.rank,
            "cta": self.cta_records + (first_cta + cta) * size_of(Cta),
            "step": kernel.step,
            "state": records.NOT_STARTED,
            "store_ring": rings,
            "load_ring": rings + records.PENDING * STORE_BYTES,
            "seen": rings + round_up(records.PENDING * (STORE_BYTES + LOAD_BYTES), 64),
            "delayed_place": -1,
            "speed": WHOLE - 1,
        }
        offsets = fields(Wave)
        for name, value in columns.items():
            table[:, offsets[name] // 8] = value
        self._start_masks(dispatch, layout, table)
        self._cta_rows(number, dispatch, first_cta, first_wave)
        self.wave_addresses[first_wave : first_wave + waves] = addresses
        head = table[:, : (layout.words + 8 * layout.word_count) // 8]
        counters = block.words(counts, len(layout.steps))
        return Part(dispatch, kernel, first_wave, waves, table, counters, head.copy(), lds_table, lds_bytes)

    def _threads(self, dispatch: Dispatch) -> int:
        """Thread indices of every wave of a CTA, i32 [waves][3][64]."""
        address = self.block.take(768 * dispatch.waves)
        table = self.block.bytes(address, 768 * dispatch.waves).view(np.int32).reshape(dispatch.waves, 3, 64)
        flat = np.arange(dispatch.waves * WAVE)
        x, y, _ = dispatch.block
        for axis, index in enumerate((flat % x, flat // x % y, flat // (x * y))):
            table[:, axis] = index.reshape(-1, WAVE)
        return address

    def _start_masks(self, dispatch: Dispatch, layout: Layout, table: np.ndarray) -> None:
        """The first step is pending for all lanes that have a thread."""
        table[:, layout.masks // 8] = -1
        table[:, layout.words // 8] = 1
        rest = dispatch.threads % WAVE
        if rest:
            table[dispatch.waves - 1 :: dispatch.waves, layout.masks // 8] = (1 << rest) - 1

    def _cta_rows(self, number: int, dispatch: Dispatch, first_cta: int, first_wave: int) -> None:
        count = dispatch.ctas
        rows, offsets = self.cta_table[first_cta : first_cta + count], fields(Cta)
        resident = max(self.job.gpu.resident(dispatch.waves, dispatch.lds_bytes), 1)
        columns = {
            "rank": dispatch.rank,
            "number": np.arange(count),
            "first_wave": first_wave + np.arange(count) * dispatch.waves,
            "wave_count": dispatch.waves,
            "running": dispatch.waves,
            "launch": number,
            "share": WHOLE // resident,
        }
        for name, value in columns.items():
            rows[:, offsets[name] // 8] = value

    def _caches(self) -> None:
        """A device cache per rank, an L2 per XCD in use, an L1 per CTA, each with its parent."""
        model, gpu, offsets = self.job.model, self.job.gpu, fields(Cta)
        devices: dict[int, int] = {}
        l2: dict[tuple[int, int], int] = {}
        l1: list[int] = []
        for row in self.cta_table:
            rank, number = int(row[offsets["rank"] // 8]), int(row[offsets["number"] // 8])
            if model.device and rank not in devices:
                devices[rank] = self._cache(0, rank)
            xcd = (rank, number % gpu.xcds)
            if model.l2 and xcd not in l2:
                l2[xcd] = self._cache(devices.get(rank, 0), rank)
            if model.l1:
                l1.append(self._cache(l2.get(xcd, devices.get(rank, 0)), rank))
                row[offsets["l1"] // 8] = l1[-1]
            row[offsets["l2"] // 8] = l2.get(xcd, 0)
            row[offsets["device"] // 8] = devices.get(rank, 0)
        every = [*l2.values(), *devices.values(), *l1]
        table = self.block.take(8 * max(len(every), 1))
        self.block.words(table, len(every))[:] = every
        self.machine["all_caches"] = table
        self.machine["cache_count"], self.machine["cache_total"] = len(l2) + len(devices), len(every)
        self.machine["ctas"] = self.cta_records
        self.machine["waves"] = self.wave_addresses.ctypes.data

    def _cache(self, parent: int, rank: int) -> int:
        block, lines = self.block, self.job.memory.used // LINE + 2
        cache = Record(block, Cache, block.take(size_of(Cache)))
        for name, nbytes in (("data", LINE), ("dirty", 16), ("flags", 1), ("filled", 8), ("dirty_list", 8)):
            cache[name] = block.take(nbytes * lines)
        cache["parent"], cache["rank"] = parent, rank
        return cache.address

    def _regions(self) -> None:
        regions = sorted(self.job.memory.regions, key=lambda each: each.address)
        width = size_of(records.Region) // 8
        table = self.block.words(self.block.take(8 * width * max(len(regions), 1)), width * max(len(regions), 1))
        table = table.reshape(-1, width)
        table[:] = 0
        self.stamps = [np.zeros(each.nbytes if each.loads is not None else 0, np.uint64) for each in regions]
        for row, region, stamps in zip(table, regions, self.stamps, strict=False):
            written = region.written.ctypes.data if region.written is not None else 0
            counts = (region.loads.ctypes.data, stamps.ctypes.data) if region.loads is not None else (0, 0)
            row[:] = [region.address, region.address + region.nbytes, region.uncached, written, 0, *counts]
        self.region_rows = list(zip(regions, table, strict=False))
        self.machine["regions"], self.machine["region_count"] = table.ctypes.data, max(len(regions), 1)

    # -- runs

    def restore(self) -> None:
        """Arrays and records as they were when the job was prepared."""
        for array, copy in self.arrays:
            array[...] = copy
        for written, copy in self.written:
            written[...] = copy
        for part in self.parts:
            part.table[:, : part.saved.shape[1]] = part.saved
            part.table[:, -SEEN:] = 0
        self.cta_table[:] = self.cta_saved
        self.reset_native(self.machine.address, 0)

    def start(self, schedule: Schedule) -> None:
        """Fields of the machine that a run begins with."""
        refuse_schedule(schedule)
        check_schedule(schedule, self.job.dispatches, self.job.memory)
        if not self.fresh:
            self.restore()
        self.fresh = False
        m, model, seeded = self.machine, self.job.model, schedule.kind != "round_robin"
        zero = (
            *("clock", "clock_part", "live_count", "position", "started", "progress", "seen_progress", "spin_epoch"),
            *("spinning", "clock_reads", "jumped", "work", "spent", "counted_work", "turns", "fault_kind"),
            *("polls", "seen_polls"),
            *("trace_count", "digest", "commit_rate"),
        )
        for name in zero:
            m[name] = 0
        m["spins_needed"], m["next_jump"], m["pause_at"] = 12, 100, TURNS_AT_ONCE
        m["late_stores"], m["late_loads"] = seeded and model.delayed_stores, seeded and model.late_loads
        m["late_lds"], m["seeded"] = seeded and model.delayed_lds, seeded
        self.block.words(m["busy"], self.job.memory.ranks)[:] = 0
        self.block.words(m["left"], len(self.parts))[:] = [part.dispatch.ctas for part in self.parts]
        self.block.words(m["traffic"], 16)[:] = 0
        for part in self.parts:
            part.counts[:] = 0
            if part.lds_bytes:
                part.lds[:, : part.lds_bytes] = JUNK
                part.lds[:, part.lds_bytes :] = 0
        choose = random.Random(schedule.seed if schedule.seed is not None else 0)
        m["random0"] = choose.getrandbits(64)
        m["speed_range"] = choose.choice(SPEED_DECADES) * SPEEDS // 5
        m["slice_limit"] = choose.choice(SLICES) if seeded else ROUND_ROBIN_SLICE
        if m["late_stores"] or m["late_loads"] or m["late_lds"]:
            m["commit_rate"] = int(65536 * 10 ** (-2.5 * choose.random()))
        self._victims(schedule, choose)
        self._speeds(choose)

    def _victims(self, schedule: Schedule, choose: random.Random) -> None:
        """The waves that an adversarial schedule starves, and the store that it delays."""
        delayed = schedule.delay
        for region, row in self.region_rows:
            row[4] = delayed is not None and region.name == delayed
        self.machine["delayed_regions"] = any(row[4] for _, row in self.region_rows)
        starve = schedule.starve
        if isinstance(starve, str):
            number = choose.randrange(self.total)
            part = next(p for p in self.parts if number < p.first_wave + p.waves)
            cta, wave = divmod(number - part.first_wave, part.dispatch.waves)
            rank = part.dispatch.rank
            starve = {"rank": Pick(rank), "cta": Pick(rank, cta), "wave": Pick(rank, cta, wave)}[starve]
        place = choose.random()
        chosen = self.parts[choose.randrange(len(self.parts))].kernel
        for part in self.parts:
            stores = part.kernel.stores
            at = stores[int(place * len(stores))] if delayed == "store" and part.kernel is chosen and stores else -1
            part.column("delayed_place")[:] = at
            part.column("victim")[:] = 0
            if starve is not None:
                size, rank = part.dispatch.waves, part.dispatch.rank
                part.column("victim")[:] = [starve.matches(rank, *divmod(n, size)) for n in range(part.waves)]

    def _speeds(self, choose: random.Random) -> None:
        """First speeds of the waves; a victim's is the least there is."""
        speeds = self.block.words(self.machine["speeds"], SPEEDS)
        rng = np.random.default_rng(choose.getrandbits(64))
        for part in self.parts:
            drawn = speeds[rng.integers(0, self.machine["speed_range"], part.waves)]
            part.column("speed")[:] = np.where(part.column("victim") != 0, VICTIM_SPEED, drawn)

    def go(self) -> int:
        """Run until the machine stops; lets the host notice an interrupt now and then."""
        while True:
            outcome = self.run_native(self.machine.address, 0)
            if outcome != records.PAUSED:
                return outcome
            self.machine["pause_at"] += TURNS_AT_ONCE


def refuse_model(job: Job) -> None:
    """What this engine does not model is refused, not ignored."""
    if job.model.races:
        wanted = "races off (model.without('races')), or engine='reference'"
        raise BadLaunch("the fast engine has no race detector", faults=[Fault("model.races", "True", wanted)])


def refuse_schedule(schedule: Schedule) -> None:
    if schedule.kind == "replay":
        wanted = "the seed of the run (it replays by itself), or engine='reference'"
        raise BadLaunch(
            "the fast engine records no decisions", faults=[Fault("schedule", "a replay of decisions", wanted)]
        )
