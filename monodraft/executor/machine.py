"""Runs the waves of all launches: dispatch, turns, barriers, clock, and the end of what cannot go on."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from monodraft.executor.access import SCOPES
from monodraft.executor.coherence import Caches, Path
from monodraft.executor.detect import Conflict, Detector, Shadow
from monodraft.executor.engine import Job
from monodraft.executor.errors import (
    BadLaunch,
    BarrierMismatch,
    Deadlock,
    ExecutorError,
    Livelock,
    Race,
    Where,
)
from monodraft.executor.launch import Dispatch
from monodraft.executor.lds import Lds
from monodraft.executor.memory import BASE
from monodraft.executor.pending import PendingStore
from monodraft.executor.policy import Policy
from monodraft.executor.program import leaves
from monodraft.executor.report import Report, Span, Wait
from monodraft.executor.translate import BARRIER, MEMORY, Translation, translate
from monodraft.executor.values import build
from monodraft.executor.wave import Wave
from monodraft.executor.wave.state import WaveState

# A wave counts as spinning after so many events in a row that brought nothing new.
SPINS = 12
# A loop that looks at nothing (no load, clock or sleep) for so many turns is work, not a poll.
BLANK_TURNS = 8
# When all waves spin, they are stuck after so many more rounds in which none of them looked at the clock; a bounded
# wait looks at it every 64 rounds or so.
BLIND_ROUNDS = 1500
MOST_RACING_WAVES = 2048


@dataclass(eq=False)
class Cta:
    """A workgroup: where it runs and what it shares."""

    dispatch: Dispatch
    launch: int
    number: int
    index: tuple[int, int, int]
    path: Path
    lds: Lds
    shadow: Shadow
    waves: list[Wave] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    running: int = 0
    start: float = 0.0
    stage_start: float = 0.0
    stage: int = 0


class Machine:
    """One run of one job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.memory = job.memory
        self.model = job.model
        self.cost = job.gpu.cost
        self.policy = Policy(job.schedule)
        self.caches = Caches(job.memory, job.model)
        self.late_loads = job.model.late_loads and self.policy.delays
        self.delayed_stores = job.model.delayed_stores and self.policy.delays
        self.delayed_lds = job.model.delayed_lds and self.policy.delays
        self.marks_writes = any(region.written is not None for region in job.memory.regions)
        self.checks_reads = self.marks_writes and job.model.uninitialised
        self.translations = [translate(each.program, self.late_loads) for each in job.dispatches]
        self.report = Report("reference", job.schedule.seed)
        self.bytes: Counter[tuple[str, int | str]] = Counter()
        self.detector = self.make_detector()
        self.ticks = 0.0
        self.changes = 0
        self.waves: list[Wave] = []
        self.runs: list[Generator[int, None, None]] = []
        self.ctas: list[Cta] = []
        self.queue: deque[tuple[int, int]] = deque(
            (launch, number) for launch, each in enumerate(job.dispatches) for number in range(each.ctas)
        )
        self.busy: dict[int, float] = {}
        self.resident: Counter[int] = Counter()
        self.left = [each.ctas for each in job.dispatches]
        self.live: list[int] = []
        self.spins: list[int] = []
        self.marks: list[tuple[int, int]] = []
        self.spin_start: list[float] = []
        self.spin_place: list[int] = []
        self.ops_seen: list[int] = []
        self.looks: list[int] = []
        self.blank: list[int] = []
        self.ops = 0
        self.spinning: set[int] = set()
        self.jump = 0.0
        self.idled = 0.0
        self.blind = 0
        # Waves with pending stores, in the order of their first one.
        self.holders: dict[int, None] = {}

    def make_detector(self) -> Detector | None:
        if not self.model.races:
            return None
        waves = sum(each.ctas * each.waves for each in self.job.dispatches)
        if waves > MOST_RACING_WAVES:
            raise BadLaunch(
                f"the race detector follows at most {MOST_RACING_WAVES} waves, this run has {waves}: "
                "use a smaller grid, or model=MemoryModel.harsh().without('races')"
            )
        self.granule = min((smallest_access(each) for each in self.job.dispatches), default=4)
        return Detector(waves, self.memory.used, self.granule)

    # ---- dispatch

    def start_ctas(self) -> None:
        """Start queued CTAs while they fit, in order."""
        while self.queue:
            launch, number = self.queue[0]
            dispatch = self.job.dispatches[launch]
            share = 1 / max(self.job.gpu.resident(dispatch.waves, dispatch.lds_bytes), 1)
            if self.busy.get(dispatch.rank, 0.0) + share > 1 + 1e-9:
                return
            self.queue.popleft()
            self.busy[dispatch.rank] = self.busy.get(dispatch.rank, 0.0) + share
            self.start_cta(launch, dispatch, number)

    def start_cta(self, launch: int, dispatch: Dispatch, number: int) -> None:
        x, y, _ = dispatch.grid
        index = (number % x, number // x % y, number // (x * y))
        path = self.caches.path(dispatch.rank, number % self.job.gpu.xcds)
        shadow = Shadow(dispatch.lds_bytes if self.detector else 0, getattr(self, "granule", 4))
        cta = Cta(dispatch, launch, number, index, path, Lds(dispatch.lds_bytes), shadow)
        cta.start = cta.stage_start = self.ticks
        self.ctas.append(cta)
        arguments = build_arguments(dispatch)
        for wave_number in range(dispatch.waves):
            wave = Wave(self, cta, wave_number, len(self.waves))
            cta.waves.append(wave)
            self.waves.append(wave)
            self.runs.append(self.translations[launch].kernel(wave, arguments))
            self.live.append(wave.identity)
            self.spins.append(0)
            self.marks.append((0, 0))
            self.spin_start.append(-1.0)
            self.spin_place.append(0)
            self.ops_seen.append(0)
            self.looks.append(0)
            self.blank.append(0)
        cta.running = dispatch.waves
        self.resident[dispatch.rank] += 1
        self.report.resident = max(self.report.resident, self.resident[dispatch.rank])

    # ---- the loop

    def run(self) -> Report:
        self.start_ctas()
        policy = self.policy
        policy.start([(w.cta.dispatch.rank, w.cta.number, w.number) for w in self.waves])
        switches = 0
        while self.live:
            position = policy.next_wave(self.live)
            identity = self.live[position]
            switches += 1
            self.turn(position, identity, policy.slice())
            if len(policy.speeds) < len(self.waves):
                policy.speeds += [1.0] * (len(self.waves) - len(policy.speeds))
            if not self.live and not self.finished():
                self.stuck()
            if not switches & 1023:
                self.check_limits()
        self.report.switches = switches
        return self.finish()

    def turn(self, position: int, identity: int, points: int) -> None:
        """Let one wave run up to `points` scheduling points."""
        run, wave, policy = self.runs[identity], self.waves[identity], self.policy
        event = MEMORY
        for _ in range(points):
            event = next(run, -1)
            if event != MEMORY:
                break
            if policy.delays and policy.commits():
                self.commit_some()
        if policy.delays and policy.commits():
            self.commit_some()
        self.advance(wave)
        if event == -1:
            self.end_wave(position, wave)
        elif event == BARRIER:
            self.arrive(position, wave)
        else:
            self.note_spin(wave)

    def advance(self, wave: Wave) -> None:
        """The clock goes on by the wave's work, shared among the waves that run at the same time."""
        executed = wave.ops - self.ops_seen[wave.identity]
        self.ops_seen[wave.identity] = wave.ops
        self.ops += executed
        self.ticks += (wave.work + executed * self.cost.operation) / max(len(self.live), 1)
        wave.work = 0.0

    def commit_some(self) -> None:
        """One pending store of some wave becomes visible, unless the schedule delays it."""
        holders = list(self.holders)
        if not holders:
            return
        wave = self.waves[holders[self.policy.below(len(holders))]]
        queues = [queue for queue in (wave.pending, wave.pending_lds) if queue]
        if not queues:
            del self.holders[wave.identity]
            return
        queue = queues[self.policy.below(len(queues))] if len(queues) > 1 else queues[0]
        position = self.policy.below(len(queue))
        if self.free(wave, queue[position]):
            wave.commit_with_older(queue, position)

    def free(self, wave: Wave, store: PendingStore) -> bool:
        name = store.region.name if store.region is not None else None
        return self.policy.may_commit(name, (wave.cta.launch, store.place))

    # ---- barriers and ends

    def arrive(self, position: int, wave: Wave) -> None:
        self.live.pop(position)
        wave.cta.waiting.append(wave.identity)
        self.mark_progress(wave)
        self.spin_start[wave.identity] = self.ticks
        self.release_barrier(wave.cta)

    def release_barrier(self, cta: Cta) -> None:
        """All waves that still run are here: go on. A wave that ended without coming is a mistake."""
        if not cta.waiting or len(cta.waiting) < cta.running:
            return
        if cta.running < len(cta.waves):
            self.mismatch(cta)
        if self.job.trace:
            self.trace_barrier(cta)
        if self.detector is not None:
            self.detector.barrier(cta.waiting)
        self.live += cta.waiting
        cta.waiting.clear()

    def mismatch(self, cta: Cta) -> None:
        here = [self.waves[each].where() for each in cta.waiting]
        gone = [wave for wave in cta.waves if wave.identity not in cta.waiting]
        numbers = ", ".join(f"{wave.number} after {wave.barriers} barriers" for wave in gone)
        raise self.failure(
            BarrierMismatch,
            f"a barrier not reached by all waves of the CTA: {len(cta.waiting)} of {len(cta.waves)} wait, "
            f"ended: wave {numbers}",
            here[:4],
        )

    def end_wave(self, position: int, wave: Wave) -> None:
        """A wave ends; its stores may stay pending until the end of the kernel."""
        self.live.pop(position)
        self.mark_progress(wave)
        cta = wave.cta
        cta.running -= 1
        if cta.running:
            self.release_barrier(cta)
            return
        rank = cta.dispatch.rank
        if self.job.trace:
            self.report.spans.append(Span("CTA", rank, cta.number, cta.start, self.ticks))
            self.trace_stage(cta, "to the end")
        self.resident[rank] -= 1
        cta.path.forget_l1()
        self.busy[rank] -= 1 / max(self.job.gpu.resident(cta.dispatch.waves, cta.dispatch.lds_bytes), 1)
        self.left[cta.launch] -= 1
        if not self.left[cta.launch]:
            self.end_launch(cta.launch, rank)
        self.start_ctas()

    def end_launch(self, launch: int, rank: int) -> None:
        """The end of a kernel: its stores drain, its rank's caches are written back."""
        for wave in self.waves:
            if wave.cta.launch == launch:
                wave.drain(wave.issued)
        self.caches.finish(rank)
        self.changes += 1

    def finished(self) -> bool:
        return not self.queue and not any(cta.waiting for cta in self.ctas)

    # ---- progress

    def mark_progress(self, wave: Wave) -> None:
        """Something happened that others may see: nobody is idle."""
        if self.job.trace and self.spins[wave.identity] > 1:
            self.trace_poll(wave)
        wave.progress += 1
        self.marks[wave.identity] = (wave.progress, self.changes)
        self.spins[wave.identity] = 0
        self.spin_start[wave.identity] = -1.0
        self.spinning.clear()
        self.jump = 0.0
        self.idled = 0.0
        self.blind = 0

    def note_spin(self, wave: Wave) -> None:
        """After a turn that ended in a poll or a loop: does the wave only repeat itself?"""
        identity = wave.identity
        mark = (wave.progress, self.changes)
        blank = wave.looks == self.looks[identity]
        self.looks[identity] = wave.looks
        self.blank[identity] = self.blank[identity] + 1 if blank else 0
        if mark != self.marks[identity] or self.blank[identity] > BLANK_TURNS:
            self.mark_progress(wave)
            return
        if blank:
            return
        if self.spin_start[identity] < 0:
            self.spin_start[identity] = self.ticks
            self.spin_place[identity] = wave.place
        self.spins[identity] += 1
        if self.spins[identity] >= SPINS:
            self.spinning.add(identity)
            if len(self.spinning) == len(self.live):
                self.idle()

    def idle(self) -> None:
        """Every wave that can run only polls. Let a pending store arrive; else let time pass; else it is stuck."""
        self.spinning.clear()
        for wave in self.waves:
            for queue in (wave.pending, wave.pending_lds):
                if queue:
                    wave.commit_with_older(queue, self.policy.below(len(queue)))
                    return
        for each in self.live:
            self.spins[each] = SPINS - 2
        if not any(self.waves[each].reads_clock for each in self.live):
            self.blind += 1
            if self.blind > BLIND_ROUNDS:
                self.stuck()
            return
        for each in self.live:
            self.waves[each].reads_clock = False
        self.blind = 0
        self.jump = min(max(self.jump * 2, 100.0), float(self.job.limits.jump))
        self.ticks += self.jump
        self.idled += self.jump
        if self.idled > self.job.limits.idle_ticks:
            raise self.failure(
                Livelock,
                f"only polls for {self.idled / 1e8:.0f} s of the 100 MHz clock: waits without a bound, or a longer one",
                self.stand(self.live),
            )

    def stuck(self) -> None:
        waiting = [each for cta in self.ctas for each in cta.waiting]
        queued = f"; {len(self.queue)} CTAs wait for room on the GPU" if self.queue else ""
        raise self.failure(
            Deadlock,
            f"{len(self.live)} waves poll memory that nobody will write, {len(waiting)} wait at a barrier{queued}",
            self.stand([*self.live, *waiting]),
        )

    def stand(self, waves: list[int], most: int = 8) -> list[Where]:
        """Where waves stand, one for each line of each rank first."""
        first: dict[tuple[int, int], Where] = {}
        for each in waves:
            wave = self.waves[each]
            first.setdefault((wave.cta.dispatch.rank, wave.place), wave.where())
        return list(first.values())[:most]

    def check_limits(self) -> None:
        if self.ops > self.job.limits.wave_ops:
            raise self.failure(
                Livelock, f"more than {self.job.limits.wave_ops} operations without an end", self.stand(self.live)
            )

    # ---- for waves

    def count_bytes(self, verb: str, level: int | str, count: int) -> None:
        self.bytes[verb, level] += count

    def unwritten(self, start: np.ndarray, nbytes: int) -> np.ndarray | None:
        """Per lane, whether it touches bytes that nobody wrote; None where all regions are initialised."""
        region = self.memory.find(int(start.min()), nbytes)
        if region is not None and region.written is None and int(start.max()) + nbytes <= region.end:
            return None
        bad = np.zeros(start.size, np.bool_)
        for row, offset in enumerate(start):
            region = self.memory.find(int(offset), nbytes)
            if region is not None and region.written is not None:
                first = int(offset) - region.start
                bad[row] = not region.written[first : first + nbytes].all()
        return bad

    def mark_written(self, index: np.ndarray, size: int) -> None:
        for offset in (index * size).reshape(-1):
            region = self.memory.find(int(offset))
            if region is not None and region.written is not None:
                first = int(offset) - region.start
                region.written[first : first + size] = True

    def failure(self, kind: type[ExecutorError], message: str, places: list[Where]) -> ExecutorError:
        """An error of this run, with its seed and the decisions so far."""
        error = kind(message, places, self.job.schedule.seed)
        error.decisions = tuple(self.policy.recorded)
        return error

    def race(
        self, wave: WaveState, found: Conflict, index: np.ndarray, size: int, place: int, lanes: Any, m: Any, verb: str
    ) -> None:
        other = self.waves[found.wave]
        numbers = lanes.numbers(m)
        who = numbers if lanes.uniform else (numbers[found.row],)
        at = int(index[found.row, 0]) * size
        what = "LDS offset " + str(at) if verb.startswith("LDS") else f"{BASE + at:#x}, {self.memory.near(at)}"
        raise self.failure(
            Race,
            f"{verb} and an earlier {'store' if found.stored else 'load'} of {what} are not ordered",
            [wave.where(place, who), other.where(found.place)],
        )

    # ---- trace

    def trace_barrier(self, cta: Cta) -> None:
        rank = cta.dispatch.rank
        for each in cta.waiting:
            wave = self.waves[each]
            line = cta.dispatch.program.kernel.places[wave.place]
            start = self.spin_start[each]
            self.report.waits.append(Wait("barrier", str(line), rank, cta.number, wave.number, start, self.ticks))
        line = cta.dispatch.program.kernel.places[self.waves[cta.waiting[0]].place]
        self.trace_stage(cta, f"to the barrier at {line}")

    def trace_stage(self, cta: Cta, name: str) -> None:
        span = Span(f"{cta.stage} {name}", cta.dispatch.rank, cta.number, cta.stage_start, self.ticks)
        self.report.spans.append(span)
        cta.stage += 1
        cta.stage_start = self.ticks

    def trace_poll(self, wave: Wave) -> None:
        line = wave.cta.dispatch.program.kernel.places[self.spin_place[wave.identity]]
        start = self.spin_start[wave.identity]
        rank, cta = wave.cta.dispatch.rank, wave.cta.number
        self.report.waits.append(Wait("poll", str(line), rank, cta, wave.number, start, self.ticks))

    def finish(self) -> Report:
        report = self.report
        report.ticks = self.ticks
        for wave in self.waves:
            add_counts(report, wave, self.translations[wave.cta.launch])
        report.wave_ops = sum(report.instructions.values())
        for (verb, level), count in sorted(self.bytes.items(), key=str):
            scope = level if isinstance(level, str) else SCOPES[level]
            report.bytes[f"{verb} {scope}"] += count
        report.decisions = list(self.policy.recorded)
        return report


def add_counts(report: Report, wave: Wave, translation: Translation) -> None:
    for count, kinds in zip(wave.counts, translation.kinds, strict=True):
        if count:
            for kind, number in kinds.items():
                report.instructions[kind] += count * number


def build_arguments(dispatch: Dispatch) -> list[Any]:
    """The kernel's parameters as values, from the argument words."""
    words, result = list(dispatch.words), []
    for kind in dispatch.program.kernel.parameter_types:
        count = len(leaves(kind))
        result.append(build(words[:count], kind))
        words = words[count:]
    return result


def smallest_access(dispatch: Dispatch) -> int:
    """The narrowest element that a kernel loads or stores, in bytes: the grain of the race detector."""
    sizes = [4]
    function = dispatch.program.kernel
    for block in function.blocks:
        for op in block.ops:
            if "load" in op.name and op.results:
                sizes += [leaf.bytes for leaf in leaves(function.types[op.results[0]])]
            elif "store" in op.name:
                sizes += [leaf.bytes for leaf in leaves(function.types[op.operands[0]])]
    return min(sizes)
