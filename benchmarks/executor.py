#!/usr/bin/env python3
"""Speed, translation and memory of the executor's fast engine, in one run.

    python benchmarks/executor.py [--full] [--repeats 3] [--reference] [--output benchmarks/results/executor.json]

Protocol: one thread; times are the CPU time of the process (the machine may be shared: its load average is recorded),
each the best of `--repeats` runs after one that warms the caches. A wave-operation is one lowered operation executed by
one wave, branches and constants not counted (`Report.wave_ops`). Every run includes laying the machine out and making
the report, and excludes lowering and translation. Modes: "round robin" without a memory model (every access checked for
bounds), "round robin, caches" with stale caches, and "seeded" with everything that the engine models: delayed and torn
stores, late loads, delayed LDS, stale caches, uninitialised reads. The mixed kernel (executor_kernels.ring_kernel)
checks its own results: every tagged pair must have come in time. Translation is measured cold (no cache) and from the
cache on disk, for each kernel, per lowered operation, branches included. `--full` adds the full-size geometry: 256 CTAs
x 512 threads x 4 ranks, about 10,000 operations a wave, with its peak memory. Targets of the issue are printed beside
the figures; the process leaves with 1 if one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import executor_kernels as kernels
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import monodraft.executor as ex
from monodraft.executor.fast import native_library
from monodraft.executor.fast.kernel import translate
from monodraft.executor.fast.translate import Translation

PLAIN = ex.MemoryModel.sequential().without("races", "uninitialised")
HARSH = ex.MemoryModel.harsh().without("races")
MODES: dict[str, tuple[ex.Schedule, ex.MemoryModel]] = {
    "round robin": (ex.Schedule.round_robin(), PLAIN),
    "round robin, caches": (ex.Schedule.round_robin(), HARSH),
    "seeded": (ex.Schedule.random(1), HARSH),
}
TARGETS = {"round robin": 5e6, "seeded": 1e6}
TRANSLATION_TARGET_MS, FULL_SECONDS, FULL_GIGABYTES = 1.0, 60.0, 16.0
BOUND = 10**9


def best(repeats: int, run: Callable[[], ex.Report]) -> tuple[float, ex.Report]:
    """Least CPU seconds of some runs, after one that warms up."""
    report, times = run(), []
    for _ in range(repeats):
        start = time.process_time()
        report = run()
        times.append(time.process_time() - start)
    return min(times), report


def run_class(program: ex.Program, mode: str, steps: int, engine: Any) -> ex.Report:
    memory = ex.Memory()
    source = memory.array(0, "source", np.ones(1 << 14, np.int32))
    out = memory.array(0, "out", np.zeros(1 << 16, np.int32))
    schedule, model = MODES[mode]
    launch = ex.Launch(program, [source, out, steps])
    return ex.run(launch, memory=memory, schedule=schedule, model=model, engine=engine)


def run_ring(program: ex.Program, ctas: int, ranks: int, mode: str, steps: int, engine: Any) -> ex.Report:
    """The mixed kernel on `ranks` ranks; raises if a pair did not come."""
    memory = ex.Memory(ranks=ranks)
    weights = np.random.default_rng(0).integers(0, 256, kernels.THREADS * 512).astype(np.uint8) & 0xB7
    threads = ctas * kernels.THREADS
    source = [memory.array(r, "source", weights) for r in range(ranks)]
    pairs = [memory.array(r, "pairs", np.zeros(4 * threads, np.int32)) for r in range(ranks)]
    out = [memory.array(r, "out", np.zeros((threads, 2), np.int32)) for r in range(ranks)]
    launches = [
        ex.Launch(program, [source[r], pairs[r], pairs[(r + 1) % ranks], out[r], steps, BOUND], rank=r)
        for r in range(ranks)
    ]
    schedule, model = MODES[mode]
    report = ex.run(launches, memory=memory, schedule=schedule, model=model, engine=engine)
    if not all(each.array[:, 1].all() for each in out):
        raise SystemExit("the mixed kernel timed out: its figures mean nothing")
    return report


def rate(name: str, mode: str, seconds: float, report: ex.Report, engine: str) -> dict[str, Any]:
    return {
        "kernel": name,
        "mode": mode,
        "engine": engine,
        "wave_ops": report.wave_ops,
        "turns": report.switches,
        "cpu_s": seconds,
        "wave_ops_per_s": report.wave_ops / seconds,
    }


def translation(name: str, program: ex.Program, repeats: int) -> dict[str, Any]:
    """Milliseconds an operation to translate, cold and from the cache on disk."""
    needed = Translation(program)
    needed.text()
    for function in needed.called:
        native_library.resolve(function)
    operations, cold, cached = program.count(), [], []
    for _ in range(repeats):
        start = time.process_time()
        translate(program, keep=False)
        cold.append(time.process_time() - start)
    translate(program)
    from monodraft.executor.fast import kernel

    for _ in range(repeats):
        kernel._LOADED.clear()
        start = time.process_time()
        translate(program)
        cached.append(time.process_time() - start)
    return {
        "kernel": name,
        "operations": operations,
        "cold_ms_per_op": min(cold) * 1e3 / operations,
        "cached_ms_per_op": min(cached) * 1e3 / operations,
    }


def small_run(repeats: int) -> dict[str, Any]:
    """CPU time of one seeded run of 8 waves that is laid out already, and of one through `executor.run`."""
    from monodraft.executor.fast import prepare

    program = kernels.ring_kernel(1)
    memory = ex.Memory()
    weights = np.ones(kernels.THREADS * 512, np.uint8)
    arrays = [memory.array(0, "source", weights), memory.array(0, "pairs", np.zeros(4 * kernels.THREADS, np.int32))]
    out = memory.array(0, "out", np.zeros((kernels.THREADS, 2), np.int32))
    launch = ex.Launch(program, [*arrays, arrays[1], out, 1, BOUND])
    runner = prepare(launch, memory=memory)
    runner.run(ex.Schedule.random(0))
    count = 100 * repeats
    start = time.process_time()
    for seed in range(count):
        runner.run(ex.Schedule.random(seed))
    prepared = (time.process_time() - start) / count
    start = time.process_time()
    for seed in range(count):
        ex.run(launch, memory=memory, schedule=ex.Schedule.random(seed), engine="fast")
    return {"waves": 8, "prepared_ms": prepared * 1e3, "run_ms": (time.process_time() - start) / count * 1e3}


def measure(arguments: argparse.Namespace, tick: Callable[[str], None]) -> dict[str, Any]:
    programs = {name: kernels.class_kernel(name) for name in kernels.CLASSES}
    mixed = kernels.ring_kernel(16)
    result: dict[str, Any] = {"machine": machine(), "rates": [], "translation": []}
    for name, program in (*programs.items(), ("mixed, 16 CTAs", mixed)):
        tick(f"translation: {name}")
        result["translation"].append(translation(name, program, arguments.repeats))
    steps = {"valu": 4000, "dpp": 4000, "lds": 400, "memory": 200, "matrix": 200}
    for name, program in programs.items():
        for mode in MODES:
            tick(f"{name}, {mode}")
            timed = best(arguments.repeats, lambda p=program, m=mode, n=name: run_class(p, m, steps[n], "fast"))
            result["rates"].append(rate(name, mode, *timed, "fast"))
    for mode in MODES:
        tick(f"mixed, {mode}")
        timed = best(arguments.repeats, lambda m=mode: run_ring(mixed, 16, 1, m, 54, "fast"))
        result["rates"].append(rate("mixed, 16 CTAs", mode, *timed, "fast"))
    if arguments.reference:
        for mode in MODES:
            tick(f"mixed, {mode}, reference engine")
            start = time.process_time()
            report = run_ring(mixed, 16, 1, mode, 2, "reference")
            result["rates"].append(rate("mixed, 16 CTAs", mode, time.process_time() - start, report, "reference"))
    tick("small runs")
    result["small_run"] = small_run(arguments.repeats)
    if arguments.full:
        full = kernels.ring_kernel(256)
        translate(full)
        result["full"] = []
        for mode in MODES:
            tick(f"256 CTAs x 4 ranks, {mode}")
            start, wall = time.process_time(), time.monotonic()
            report = run_ring(full, 256, 4, mode, 54, "fast")
            row = rate("mixed, 256 CTAs x 4 ranks", mode, time.process_time() - start, report, "fast")
            row["wall_s"] = time.monotonic() - wall
            row["ops_per_wave"] = report.wave_ops / (256 * 8 * 4)
            row["peak_gigabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
            result["full"].append(row)
    result["peak_gigabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    result["missed"] = missed(result)
    return result


def missed(result: dict[str, Any]) -> list[str]:
    """Targets of the issue that the figures do not reach."""
    failures = []
    for row in result["rates"]:
        target = TARGETS.get(row["mode"])
        if row["kernel"].startswith("mixed") and row["engine"] == "fast" and target and row["wave_ops_per_s"] < target:
            failures.append(f"mixed, {row['mode']}: {row['wave_ops_per_s']:.3g} below {target:.3g} wave-operations/s")
    for row in result["translation"]:
        if row["kernel"].startswith("mixed") and row["cold_ms_per_op"] > TRANSLATION_TARGET_MS:
            failures.append(f"translation: {row['cold_ms_per_op']:.2f} ms an operation, above {TRANSLATION_TARGET_MS}")
    for row in result.get("full", []):
        if row["mode"] != "seeded" and row["cpu_s"] > FULL_SECONDS:
            failures.append(f"full size, {row['mode']}: {row['cpu_s']:.0f} s, above {FULL_SECONDS:.0f}")
        if row["peak_gigabytes"] > FULL_GIGABYTES:
            failures.append(f"full size, {row['mode']}: {row['peak_gigabytes']:.1f} GB, above {FULL_GIGABYTES:.0f}")
    return failures


def machine() -> dict[str, Any]:
    model = next((x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")), "?:?")
    return {
        "cpu": model.partition(":")[2].strip(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "target": os.environ.get("MONODRAFT_EXECUTOR_CPU", "host"),
        "load_average": os.getloadavg(),
    }


def show(result: dict[str, Any], console: Console) -> None:
    table = Table("kernel", "engine", "mode", "wave-operations", "CPU s", "M/s", title="speed, one thread")
    for row in (*result["rates"], *result.get("full", [])):
        figures = (f"{row['wave_ops']:,}", f"{row['cpu_s']:.3f}", f"{row['wave_ops_per_s'] / 1e6:.2f}")
        table.add_row(row["kernel"], row["engine"], row["mode"], *figures)
    console.print(table)
    table = Table("kernel", "operations", "cold, ms an op", "cached, ms an op", title="translation")
    for row in result["translation"]:
        table.add_row(
            row["kernel"], str(row["operations"]), f"{row['cold_ms_per_op']:.2f}", f"{row['cached_ms_per_op']:.3f}"
        )
    console.print(table)
    small = result["small_run"]
    console.print(
        f"8 waves, seeded: {small['prepared_ms']:.2f} ms a prepared run, {small['run_ms']:.2f} ms by executor.run"
    )
    console.print(
        f"peak memory {result['peak_gigabytes']:.2f} GB; load average {result['machine']['load_average'][0]:.1f}"
    )
    for failure in result["missed"]:
        console.print(f"[red]target missed: {failure}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="add 256 CTAs x 512 threads x 4 ranks (about a minute)")
    parser.add_argument("--reference", action="store_true", help="add the reference engine on a short mixed run")
    parser.add_argument("--repeats", type=int, default=3, help="runs of which the best counts (default 3)")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "executor.json")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error(f"--repeats: found {arguments.repeats}, wanted at least 1")
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("MONODRAFT_CACHE", folder)
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("starting", total=None)
            result = measure(arguments, lambda text: progress.update(task, description=text))
    show(result, Console())
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if result["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
