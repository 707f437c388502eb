"""A run for people: Perfetto's JSON (a track per CTA and per wave that waited) and a plain-text summary."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from monodraft.errors import Fault
from monodraft.executor.errors import BadLaunch
from monodraft.executor.report import Report, Wait

TICKS_PER_US = 100.0
TRACKS = 64  # tracks reserved for a CTA: its stages, then its waves


def perfetto(report: Report) -> dict[str, Any]:
    """The run as a trace object: one process a rank, one track a CTA with its life and stages, one a waiting wave.

    Times are microseconds of the modelled clock. Needs a report of `run(..., trace=True)`.
    """
    require_trace(report)
    events: list[dict[str, Any]] = []
    for span in report.spans:
        events.append(complete(span.name, "stage", span.rank, track(span.cta), span.start, span.end))
    for wait in report.waits:
        name = f"{wait.kind} {wait.line}"
        events.append(complete(name, wait.kind, wait.rank, track(wait.cta, wait.wave), wait.start, wait.end))
    events.sort(key=lambda event: (event["pid"], event["tid"], event["ts"], -event["dur"]))
    other = {"engine": report.engine, "seed": report.seed, "wave_ops": report.wave_ops}
    return {"traceEvents": [*names(report), *events], "displayTimeUnit": "ns", "otherData": other}


def write_perfetto(report: Report, path: Path | str) -> None:
    """Write the trace where ui.perfetto.dev or chrome://tracing can open it."""
    Path(path).write_text(json.dumps(perfetto(report), indent=0, sort_keys=True))


def complete(name: str, category: str, rank: int, tid: int, start: float, end: float) -> dict[str, Any]:
    """A complete ("X") event."""
    begin, stop = round(start / TICKS_PER_US, 3), round(end / TICKS_PER_US, 3)
    duration = round(max(stop - begin, 0.0), 3)
    return {"name": name, "cat": category, "ph": "X", "pid": rank, "tid": tid, "ts": begin, "dur": duration}


def track(cta: int, wave: int | None = None) -> int:
    return cta * TRACKS + (0 if wave is None else wave + 1)


def names(report: Report) -> list[dict[str, Any]]:
    """Metadata events that name ranks and tracks."""
    ctas = sorted({(span.rank, span.cta) for span in report.spans})
    waves = sorted({(wait.rank, wait.cta, wait.wave) for wait in report.waits})
    result = [named("process_name", rank, 0, f"rank {rank}") for rank in sorted({rank for rank, _ in ctas})]
    result += [named("thread_name", rank, track(cta), f"CTA {cta}") for rank, cta in ctas]
    result += [named("thread_name", rank, track(cta, wave), f"CTA {cta} wave {wave}") for rank, cta, wave in waves]
    return result


def named(what: str, rank: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": rank, "tid": tid, "args": {"name": name}}


def summary(report: Report) -> str:
    """Instructions by kind, bytes by scope, and where the waves waited and how long."""
    lines = [
        f"{report.engine} engine, seed {report.seed}: {report.wave_ops:,} wave operations, "
        f"{report.ticks / TICKS_PER_US:,.1f} us on the modelled clock, {report.switches:,} turns"
    ]
    lines += table("instructions", sorted(report.instructions.items(), key=lambda item: -item[1]))
    lines += table("bytes", sorted(report.bytes.items(), key=lambda item: -item[1]))
    if report.waits:
        lines += wait_table(report.waits)
    return "\n".join(lines)


def table(title: str, rows: Iterable[tuple[str, int]]) -> list[str]:
    return ["", title, *(f"  {name:<16} {count:>16,}" for name, count in rows)]


def wait_table(waits: list[Wait]) -> list[str]:
    """One row for each kind and source line, the longest total first."""
    groups: dict[tuple[str, str], list[Wait]] = defaultdict(list)
    for wait in waits:
        groups[wait.kind, wait.line].append(wait)
    rows = []
    for (kind, line), members in groups.items():
        spent = [(each.end - each.start) / TICKS_PER_US for each in members]
        longest = members[spent.index(max(spent))]
        who = f"rank {longest.rank} cta {longest.cta} wave {longest.wave}"
        rows.append((sum(spent), kind, len(members), max(spent), who, line))
    lines = ["", "waits", f"  {'total us':>10} {'kind':<8} {'times':>7} {'longest us':>11}  who, where"]
    for total, kind, times, most, who, line in sorted(rows, reverse=True):
        lines.append(f"  {total:>10,.2f} {kind:<8} {times:>7,} {most:>11,.2f}  {who}, {line}")
    return lines


def require_trace(report: Report) -> None:
    if not report.spans:
        raise BadLaunch("no trace", faults=[Fault("report", "no spans", "a report of run(..., trace=True)")])
