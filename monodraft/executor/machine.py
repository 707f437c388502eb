"""Runs the waves of all launches: dispatch, turns, barriers, ends of kernels."""

from __future__ import annotations

from typing import Any

from monodraft.executor.access import SCOPES
from monodraft.executor.detect import Shadow
from monodraft.executor.errors import BarrierMismatch
from monodraft.executor.launch import Dispatch
from monodraft.executor.lds import Lds
from monodraft.executor.pending import PendingStore
from monodraft.executor.program import leaves
from monodraft.executor.progress import Progress
from monodraft.executor.report import Report, Span
from monodraft.executor.run_state import Cta, Standing
from monodraft.executor.translate import BARRIER, MEMORY, Translation
from monodraft.executor.values import build
from monodraft.executor.wave import Wave


class Machine(Progress):
    """One run of one job."""

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
        shadow = Shadow(dispatch.lds_bytes if self.detector else 0, self.granule)
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
            self.standings.append(Standing())
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
        standing = self.standings[wave.identity]
        executed = wave.ops - standing.ops
        standing.ops = wave.ops
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
        self.move_on(wave)
        self.standings[wave.identity].start = self.ticks
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
        here = [self.waves[each].where(lanes=self.lanes(each)) for each in cta.waiting]
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
        self.move_on(wave)
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
