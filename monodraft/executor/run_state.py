"""What one run of the reference engine holds, and what its waves ask of it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from monodraft.executor.coherence import Caches, Path
from monodraft.executor.detect import Conflict, Detector, Shadow
from monodraft.executor.engine import Job
from monodraft.executor.errors import BadLaunch, ExecutorError, Race, Where
from monodraft.executor.launch import Dispatch
from monodraft.executor.lds import Lds
from monodraft.executor.memory import BASE
from monodraft.executor.policy import Policy
from monodraft.executor.program import leaves
from monodraft.executor.report import Report
from monodraft.executor.translate import translate
from monodraft.executor.wave import Wave
from monodraft.executor.wave.state import WaveState

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


@dataclass
class Standing:
    """How a wave gets on.

    `spins` turns in a row brought nothing new to it or to memory, `blank` ones in a row looked at nothing. `mark`,
    `looks` and `ops` are its counters after the last turn. For the trace: since `start`, at `place`, it has polled for
    `rounds` turns with `seen` as its progress.
    """

    spins: int = 0
    blank: int = 0
    rounds: int = 0
    seen: int = -1
    start: float = 0.0
    place: int = 0
    mark: tuple[int, int] = (0, 0)
    looks: int = 0
    ops: int = 0


class RunState:
    """The state of one run, and the services that waves use."""

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
        self.counts_loads = any(region.loads is not None for region in job.memory.regions)
        self.translations = [translate(each.program, self.late_loads) for each in job.dispatches]
        self.report = Report("reference", job.schedule.seed)
        self.bytes: Counter[tuple[str, int | str]] = Counter()
        self.granule = min(smallest_access(each) for each in job.dispatches)
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
        self.standings: list[Standing] = []
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
        return Detector(waves, self.memory.used, self.granule)

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

    def count_loads(self, index: np.ndarray, size: int) -> None:
        """One load instruction of words [n, words] in regions that count them: each byte once."""
        for word in np.unique(index):
            region = self.memory.find(int(word) * size)
            if region is not None and region.loads is not None:
                first = int(word) * size - region.start
                region.loads[first : first + size] += 1

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
