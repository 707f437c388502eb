"""What an engine is given and gives back; the entry point that picks one."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from monodraft.errors import Fault
from monodraft.executor.errors import BadLaunch, NotResident
from monodraft.executor.gpu import Gpu
from monodraft.executor.launch import Dispatch, Launch, resolve
from monodraft.executor.memory import Memory
from monodraft.executor.model import MemoryModel
from monodraft.executor.report import Report
from monodraft.executor.schedule import Pick, Schedule

EngineName = Literal["reference", "fast"]


@dataclass(frozen=True)
class Limits:
    """When to give up. `wave_ops` is the work limit of a run; `idle_ticks` how far the 100 MHz clock may jump, in all,
    while nothing but polls happens, before the run counts as stuck (100 s); `jump` bounds a single jump (1 ms: the
    resolution to which a time-out in an idle machine is met).
    """

    wave_ops: int = 2_000_000_000
    idle_ticks: int = 10_000_000_000
    jump: int = 100_000

    def __post_init__(self) -> None:
        faults = [Fault(name, str(value), "at least 1") for name, value in vars(self).items() if value < 1]
        if faults:
            raise BadLaunch("limits", faults=faults)


@dataclass(frozen=True)
class Job:
    """Everything a run needs. Engines change `memory` only."""

    dispatches: tuple[Dispatch, ...]
    memory: Memory
    gpu: Gpu
    schedule: Schedule
    model: MemoryModel
    limits: Limits
    trace: bool
    allow_partial_residency: bool


class Engine(Protocol):
    """Runs a job to the end or raises an ExecutorError with seed and places."""

    def run(self, job: Job) -> Report: ...


def run(
    launches: Sequence[Launch] | Launch,
    *,
    memory: Memory | None = None,
    gpu: Gpu | None = None,
    schedule: Schedule | None = None,
    model: MemoryModel | None = None,
    engine: EngineName = "reference",
    limits: Limits | None = None,
    trace: bool = False,
    not_resident: Literal["refuse", "wait"] = "refuse",
) -> Report:
    """Run launches together, as concurrent kernels on the GPUs of their ranks, until all have ended.

    `memory` must be the one that the launches' regions are in (a fresh one serves NumPy arguments only). `gpu` is an
    MI355X, `schedule` round-robin, `model` the harsh memory model (for the fast engine without its race
    detector, which only the reference engine has) unless said otherwise. A grid that cannot be resident
    at once is refused, or with `not_resident="wait"` its later CTAs start as earlier ones end (and a kernel that needs
    them all at once hangs visibly). `trace` keeps waits and spans for `write_perfetto` and `summary`.

    Raises BadLaunch, UnknownOperation or NotResident before anything runs; Deadlock, Livelock, Race, OutOfBounds,
    UninitialisedRead or BarrierMismatch when the kernel does wrong.
    """
    launches = [launches] if isinstance(launches, Launch) else list(launches)
    check_options(launches, memory, gpu, schedule, model, limits, not_resident)
    memory = memory or Memory(ranks=max(each.rank for each in launches) + 1)
    gpu = gpu or Gpu.mi355x()
    resolved = [resolve(each, memory, gpu) for each in launches]
    dispatches = tuple(dispatch for dispatch, _ in resolved)
    if not_resident == "refuse":
        check_residency(dispatches, gpu)
    schedule = schedule or Schedule.round_robin()
    check_schedule(schedule, dispatches, memory)
    job = Job(
        dispatches,
        memory,
        gpu,
        schedule,
        model or default_model(engine),
        limits or Limits(),
        trace,
        not_resident == "wait",
    )
    with np.errstate(all="ignore"):
        report = pick(engine).run(job)
    for _, arguments in resolved:
        for argument in arguments:
            argument.finish()
    return report


def check_options(
    launches: Sequence[Launch],
    memory: Memory | None,
    gpu: Gpu | None,
    schedule: Schedule | None,
    model: MemoryModel | None,
    limits: Limits | None,
    not_resident: str,
) -> None:
    """Refuse what is not of its kind, before anything is traced or placed."""
    faults = [
        Fault(name, repr(value), f"a {kind.__name__}")
        for name, value, kind in (
            ("memory", memory, Memory),
            ("gpu", gpu, Gpu),
            ("schedule", schedule, Schedule),
            ("model", model, MemoryModel),
            ("limits", limits, Limits),
        )
        if value is not None and not isinstance(value, kind)
    ]
    faults += [Fault("launches", repr(each), "a Launch") for each in launches if not isinstance(each, Launch)]
    if not launches:
        faults.append(Fault("launches", "none", "at least one"))
    if not_resident not in ("refuse", "wait"):
        faults.append(Fault("not_resident", repr(not_resident), "'refuse' or 'wait'"))
    if faults:
        raise BadLaunch("run", faults=faults)


def check_schedule(schedule: Schedule, dispatches: Sequence[Dispatch], memory: Memory) -> None:
    """Refuse a schedule whose victims do not exist: it would starve or delay nothing and look as if it had."""
    faults = []
    if schedule.delay is not None and schedule.delay != "store":
        names = sorted({region.name for region in memory.regions})
        if schedule.delay not in names:
            faults.append(Fault("delay", repr(schedule.delay), f"'store' or a region: {', '.join(names)}"))
    if isinstance(schedule.starve, Pick) and not any(picks(schedule.starve, each) for each in dispatches):
        there = "; ".join(f"rank {d.rank}: {d.ctas} CTAs of {d.waves} waves" for d in dispatches)
        faults.append(Fault("starve", repr(schedule.starve), f"a wave that is launched ({there})"))
    if faults:
        raise BadLaunch("schedule", faults=faults)


def picks(pick: Pick, dispatch: Dispatch) -> bool:
    """Whether a dispatch has a wave that `pick` selects."""
    wanted = ((pick.cta, dispatch.ctas), (pick.wave, dispatch.waves))
    return pick.rank in (None, dispatch.rank) and all(each is None or 0 <= each < count for each, count in wanted)


def default_model(engine: str) -> MemoryModel:
    """The harsh model; without the race detector for the fast engine, which has none."""
    return MemoryModel.harsh().without("races") if engine == "fast" else MemoryModel.harsh()


def pick(name: str) -> Engine:
    """The engine of that name."""
    if name == "reference":
        from monodraft.executor.reference import ReferenceEngine

        return ReferenceEngine()
    if name == "fast":
        return importlib.import_module("monodraft.executor.fast").FastEngine()
    raise BadLaunch("run", faults=[Fault("engine", repr(name), "'reference' or 'fast'")])


def check_residency(dispatches: Sequence[Dispatch], gpu: Gpu) -> None:
    """All CTAs of all launches of a rank must fit at once, counting compute units, waves and LDS."""
    for rank in sorted({each.rank for each in dispatches}):
        share = 0.0
        lines = []
        for each in (d for d in dispatches if d.rank == rank):
            most = gpu.resident(each.waves, each.lds_bytes)
            share += each.ctas / most if most else float("inf")
            lines.append(
                Fault(
                    f"{each.program.name}: grid on rank {rank}",
                    f"{each.ctas} CTAs of {each.waves} waves and {each.lds_bytes} bytes of LDS",
                    f"at most {most} at once ({gpu.cus} compute units, {gpu.waves_per_cu} waves and "
                    f"{gpu.lds_per_cu} bytes of LDS each)",
                )
            )
        if share > 1:
            raise NotResident("the grid cannot be resident at once", faults=lines)
