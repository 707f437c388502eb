"""The fast engine: prepares a job, runs it, and tells what happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from monodraft.executor.engine import Job, Limits, check_residency, default_model
from monodraft.executor.errors import (
    BarrierMismatch,
    Deadlock,
    ExecutorError,
    Livelock,
    OutOfBounds,
    UninitialisedRead,
    Where,
)
from monodraft.executor.fast import records
from monodraft.executor.fast.host import Part, Prepared
from monodraft.executor.fast.records import Cta, Event, Wave
from monodraft.executor.fast.runtime_schedule import TRACE_BARRIER, TRACE_CTA, TRACE_LAST, TRACE_POLL, TRACE_STAGE
from monodraft.executor.fast.words import fields, size_of
from monodraft.executor.gpu import Gpu
from monodraft.executor.launch import Launch, resolve
from monodraft.executor.memory import BASE, Memory
from monodraft.executor.model import MemoryModel
from monodraft.executor.report import Report, Span, Wait
from monodraft.executor.schedule import Schedule

WAVE = {name: offset // 8 for name, offset in fields(Wave).items()}
CTA = {name: offset // 8 for name, offset in fields(Cta).items()}
MOST_PLACES = 8


class FastEngine:
    """Kernels as native code under a native scheduler; see docs/executor-fast.md for what it leaves out."""

    def run(self, job: Job) -> Report:
        """Run to the end, or raise what went wrong."""
        return Runner(Prepared(job, again=False)).run(job.schedule)


def prepare(
    launches: Sequence[Launch] | Launch,
    *,
    memory: Memory,
    gpu: Gpu | None = None,
    model: MemoryModel | None = None,
    limits: Limits | None = None,
    trace: bool = False,
    not_resident: Literal["refuse", "wait"] = "refuse",
) -> Runner:
    """Lay out launches once, to run them with many schedules: `prepare(...).run(Schedule.random(seed))`.

    Arguments as of `executor.run`; the launches' arguments must be numbers and regions of `memory`, not NumPy arrays.
    Every run starts from the regions' contents at preparation. Raises BadLaunch, UnknownOperation or NotResident.
    """
    launches = [launches] if isinstance(launches, Launch) else list(launches)
    gpu = gpu or Gpu.mi355x()
    dispatches = tuple(resolve(each, memory, gpu)[0] for each in launches)
    if not_resident == "refuse":
        check_residency(dispatches, gpu)
    model = model or default_model("fast")
    schedule, limits = Schedule.round_robin(), limits or Limits()
    return Runner(Prepared(Job(dispatches, memory, gpu, schedule, model, limits, trace, not_resident == "wait")))


class Runner:
    """A prepared job."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared

    def run(self, schedule: Schedule) -> Report:
        """One run; the second and later ones start from the arrays as they were at preparation."""
        prepared = self.prepared
        prepared.start(schedule)
        outcome = prepared.go()
        if outcome != records.FINISHED:
            raise Finding(prepared, schedule).error(outcome)
        return make_report(prepared, schedule)


class Finding:
    """Makes an error of a machine that stopped."""

    def __init__(self, prepared: Prepared, schedule: Schedule) -> None:
        self.prepared = prepared
        self.machine = prepared.machine
        self.seed = schedule.seed

    def error(self, outcome: int) -> ExecutorError:
        if outcome == records.FAULTED:
            return self.fault()
        if outcome == records.BAD_BARRIER:
            return self.bad_barrier()
        live = [int(n) for n in self.prepared.block.words(self.machine["live"], self.machine["live_count"])]
        if outcome == records.DEADLOCK:
            return self.deadlock(live)
        if outcome == records.STUCK:
            seconds = self.machine["jumped"] / 1e8
            text = f"only polls for {seconds:.0f} s of the 100 MHz clock: the waits have no bound, or a longer one"
            return Livelock(text, self.stand(live), self.seed)
        assert outcome == records.WORK_LIMIT
        limit = self.prepared.job.limits.wave_ops
        return Livelock(f"more than {limit} operations without an end", self.stand(live), self.seed)

    def fault(self) -> ExecutorError:
        m = self.machine
        kind, address, nbytes = m["fault_kind"], m["fault_address"], m["fault_bytes"]
        lanes = tuple(lane for lane in range(64) if m["fault_lanes"] >> lane & 1)
        place = self.where(m["fault_wave"], m["fault_place"], lanes)
        near = self.prepared.job.memory.near(address - BASE)
        verb = self.part(m["fault_wave"]).kernel.verbs[m["fault_place"]]
        match kind:
            case records.OUT_OF_BOUNDS:
                return OutOfBounds(f"{verb} of {nbytes} bytes at {address:#x}: {near}", [place], self.seed)
            case records.MISALIGNED:
                at = f"LDS offset {address}" if address < BASE else f"{address:#x}: {near}"
                return OutOfBounds(f"misaligned {verb} of {nbytes} bytes at {at}", [place], self.seed)
            case records.LDS_BOUNDS:
                size = self.part(m["fault_wave"]).dispatch.lds_bytes
                return OutOfBounds(f"{verb} of {nbytes} bytes at LDS offset {address} of {size}", [place], self.seed)
            case records.UNINITIALISED:
                return UninitialisedRead(f"load of {nbytes} bytes that nothing wrote: {near}", [place], self.seed)
            case records.LDS_UNINITIALISED:
                text = f"load of {nbytes} bytes of LDS at offset {address} that nothing wrote"
                return UninitialisedRead(f"{text} (as far as this wave can see)", [place], self.seed)
        assert kind == records.SPLIT_BARRIER
        return BarrierMismatch("a barrier that these lanes of the wave do not reach together", [place], self.seed)

    def bad_barrier(self) -> BarrierMismatch:
        """`fault_wave` is the first wave of the CTA."""
        first = self.machine["fault_wave"]
        part = self.part(first)
        waves = range(first, first + part.dispatch.waves)
        here = [w for w in waves if self.row(w)[WAVE["state"]] == records.AT_BARRIER]
        gone = ", ".join(
            f"{(w - part.first_wave) % part.dispatch.waves} after {int(self.row(w)[WAVE['barriers']])} barriers"
            for w in waves
            if w not in here
        )
        count = f"{len(here)} of {part.dispatch.waves} wait, ended: wave {gone}"
        text = f"a barrier not reached by all waves of the CTA: {count}"
        return BarrierMismatch(text, [self.where(w, lanes=self.lanes(w)) for w in here[:4]], self.seed)

    def deadlock(self, live: list[int]) -> Deadlock:
        states = [(p.first_wave + i, int(s)) for p in self.prepared.parts for i, s in enumerate(p.column("state"))]
        waiting = [number for number, state in states if state == records.AT_BARRIER]
        queued = self.machine["cta_count"] - self.machine["started"]
        rest = f"; {queued} CTAs wait for room on the GPU" if queued else ""
        text = f"{len(live)} waves poll memory that nobody will write, {len(waiting)} wait at a barrier{rest}"
        return Deadlock(text, self.stand([*live, *waiting]), self.seed)

    # -- places

    def part(self, wave: int) -> Part:
        return next(p for p in self.prepared.parts if wave < p.first_wave + p.waves)

    def row(self, wave: int) -> np.ndarray:
        """The record of a wave."""
        part = self.part(wave)
        return part.table[wave - part.first_wave]

    def lanes(self, wave: int) -> tuple[int, ...]:
        """The lanes that a wave between two turns goes on with: those of its lowest waiting step."""
        layout = self.part(wave).kernel.layout
        masks = self.row(wave)[layout.masks // 8 :][: len(layout.steps)]
        mask = int(next((each for each in masks if each), 0))
        return tuple(lane for lane in range(64) if mask >> lane & 1)

    def where(self, wave: int, place: int | None = None, lanes: tuple[int, ...] = ()) -> Where:
        part = self.part(wave)
        cta, number = divmod(wave - part.first_wave, part.dispatch.waves)
        text = source_line(part, int(self.row(wave)[WAVE["place"]]) if place is None else place)
        return Where(text, part.dispatch.rank, cta, number, lanes)

    def stand(self, waves: list[int]) -> list[Where]:
        """Where waves stand, one for each line of each rank first."""
        first: dict[tuple[int | None, str], Where] = {}
        for wave in waves:
            place = self.where(wave, lanes=self.lanes(wave))
            first.setdefault((place.rank, place.line), place)
        return list(first.values())[:MOST_PLACES]


def source_line(part: Part, place: int) -> str:
    """The source line of one of the runtime's places, with its text."""
    places = part.kernel.places
    if place >= len(places):
        return "unknown line"
    line = part.kernel.program.kernel.places[places[place]]
    return f"{line}  `{line.text}`" if line.text else str(line)


TRAFFIC = (
    *("load plain", "load plain", "load device", "load system"),
    *("store plain", "store plain", "store device", "store system"),
    *("load lds", "store lds", "atomic"),
)


def make_report(prepared: Prepared, schedule: Schedule) -> Report:
    """Counts and times of a run that finished."""
    m = prepared.machine
    report = Report("fast", schedule.seed, ticks=float(m["clock"]), switches=m["turns"])
    for part in prepared.parts:
        for count, kinds in zip(part.counts, part.kernel.kinds, strict=True):
            if count:
                for kind, number in kinds.items():
                    report.instructions[kind] += int(count) * number
    report.wave_ops = sum(report.instructions.values())
    for name, count in zip(TRAFFIC, prepared.block.words(m["traffic"], len(TRAFFIC)), strict=True):
        if count:
            report.bytes[name] += int(count)
    report.events.append(f"digest {m['digest'] & (1 << 64) - 1:016x}")
    report.resident = most_resident(prepared)
    if prepared.job.trace:
        add_trace(prepared, report)
    return report


def most_resident(prepared: Prepared) -> int:
    """The most CTAs at once on any rank, as the dispatcher admits them."""
    by_rank: dict[int, list[int]] = {}
    for part in prepared.parts:
        fits = prepared.job.gpu.resident(part.dispatch.waves, part.dispatch.lds_bytes)
        by_rank.setdefault(part.dispatch.rank, []).append(min(part.dispatch.ctas, fits))
    return max(sum(each) for each in by_rank.values())


WAITS = {TRACE_BARRIER: "barrier", TRACE_POLL: "poll"}


def add_trace(prepared: Prepared, report: Report) -> None:
    """Waits at barriers and in polls, stages and lives of CTAs."""
    m, finding = prepared.machine, Finding(prepared, Schedule())
    count, width = min(m["trace_count"], m["trace_room"]), size_of(Event) // 8
    stages: dict[tuple[int, int], int] = {}
    for kind, wave, place, start, end in prepared.block.words(m["trace"], count * width).reshape(count, width).tolist():
        where = finding.where(wave, place)
        rank, cta, number = where.rank or 0, where.cta or 0, where.wave or 0
        line = where.line.partition("  `")[0]
        if kind in WAITS:
            report.waits.append(Wait(WAITS[kind], line, rank, cta, number, float(start), float(end)))
            continue
        name = "CTA"
        if kind in (TRACE_STAGE, TRACE_LAST):
            stage = stages[rank, cta] = stages.get((rank, cta), -1) + 1
            name = f"{stage} to the end" if kind == TRACE_LAST else f"{stage} to the barrier at {line}"
        assert kind in (TRACE_STAGE, TRACE_LAST, TRACE_CTA)
        report.spans.append(Span(name, rank, cta, float(start), float(end)))
