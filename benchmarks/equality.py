#!/usr/bin/env python3
"""The one-launch kernel, on the executor, beside the `mxfp8` reference: drafts compared, equal, near ties.

    python benchmarks/equality.py                                      every case (hours on one core)
    python benchmarks/equality.py --families minicpm5 --ranks 1 8      some of them
    python benchmarks/equality.py --markov vanilla --rounds 40         long conversations, as long as a generation
    python benchmarks/equality.py --ranks 2 --rows 1 2 3 --rounds 3    other numbers of query rows
    python benchmarks/equality.py --table benchmarks/results/equality/*.json    print what earlier runs found

Protocol: for each case a small random drafter (hidden 256, 2 layers, vocabulary 512) is written in its vendor's
dialect, names and dtypes and loaded from there (`tests/hosts/checkpoints.py`). A conversation of `--rounds` rounds is
held with kernel and reference: 1 to 8 new context rows for each request, then a block drafted for each, from one seed.
The kernel runs on `--ctas` CTAs a rank, under schedules seeded by the launch's number and the harsh memory model. A
window is 24 positions in each layer, which bites from about the fifth round on.

What equal means, and why a difference may be a near tie, is told in docs/hosts.md and checked in tests/hosts: a token
may differ only where the reference's lead is at most what the distance of the two final rows and roundings explain (the
bound, derived from rows and weights alone); the rest of that block then follows other tokens and is not compared.
"error" is the largest relative distance of a launch's final rows to the reference's, "noise" the reference's to
arithmetic without roundings; the one must stay below sqrt(2) of the other. After every launch all ranks must be
byte-equal.

A case that breaks a rule is listed as failed, with the reason, and the exit code is 1. These are comparisons on a CPU:
nothing here was measured on a GPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

# The comparison and its bounds are the tests' own: one definition of equal, kept where it is itself tested.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "hosts"))

import flydsl
from both import Both
from checkpoints import Release, release_config, released
from drafts import Conversation

import monodraft
import monodraft.executor as ex
from monodraft.checkpoint.config import MarkovKind
from monodraft.errors import MonodraftError
from monodraft.hosts.executor_drafter import ExecutorDrafter
from monodraft.plan.shape import MAX_ROWS
from monodraft.reference import ReferenceDrafter

RESULTS = Path(__file__).parent / "results" / "equality"
WINDOW = 24
FIELDS = ("family", "markov", "window", "ranks", "rows", "rounds")


@dataclass(frozen=True)
class Case:
    """One line of the table. `rows` 0: two blocks of the family's own size. `window`: 0 is full attention."""

    family: Release
    markov: MarkovKind
    window: int
    ranks: int
    rows: int
    rounds: int
    temperature: float = 0.0

    @property
    def blocks(self) -> tuple[int, int]:
        """Block size and requests: the family's own block where it divides the rows, else one block of them all."""
        own = release_config(self.family).block_size
        rows = self.rows or 2 * own
        return (own, rows // own) if rows % own == 0 else (rows, 1)

    def __str__(self) -> str:
        return f"{self.family}, {self.markov}, {'window' if self.window else 'full'}, {self.ranks} ranks"


def hold(case: Case, ctas: int, folder: Path) -> Iterator[Both]:
    """Hold the conversation; yields the comparison after each round."""
    block, requests = case.blocks
    windows = (case.window or None,) * 2
    config, weights = released(case.family, folder, markov=case.markov, windows=windows, block_size=block)
    positions = 64 * -(-(8 * case.rounds + block) // 64)
    executed = ExecutorDrafter(
        config,
        weights,
        ranks=case.ranks,
        ctas=ctas,
        positions=positions,
        max_requests=requests,
        schedule=ex.Schedule.random,
    )
    both = Both(executed, ReferenceDrafter(config, weights, "mxfp8", ranks=case.ranks), weights)
    conversation = Conversation((both,), requests, temperature=case.temperature)
    for _ in range(case.rounds):
        conversation.turn()
        yield both


def judge(case: Case, ctas: int, tick: Any) -> dict[str, Any]:
    """Run one case: its line of the results."""
    row = asdict(case) | {"rows": case.blocks[0] * case.blocks[1], "block": case.blocks[0], "requests": case.blocks[1]}
    start, both = time.monotonic(), None
    with tempfile.TemporaryDirectory() as folder:
        try:
            for both in hold(case, ctas, Path(folder)):  # noqa: B007
                tick()
        except (AssertionError, MonodraftError) as error:
            row["failed"] = f"{type(error).__name__}: {error}"
    if both is not None:
        row |= found(both)
    return row | {"seconds": round(time.monotonic() - start, 1)}


def found(both: Both) -> dict[str, Any]:
    """Figures of a comparison. `compared` counts tokens up to and with the first difference of a block."""
    outcome = both.outcome
    return {
        "proposals": len(both.proposals),
        "compared": outcome.compared,
        "equal": outcome.compared - len(outcome.near_ties),
        "near_ties": [asdict(parting) for parting in both.partings],
        "error": outcome.error,
        "noise": outcome.noise,
        "largest_ratio": outcome.ratio,
        "ranks_byte_equal": True,
    }


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """The lines as a table, then every near tie and failure."""
    table = Table(title="one-launch kernel on the executor beside the mxfp8 reference")
    for name in (*FIELDS, "compared", "equal", "near ties", "error", "noise", "ranks byte-equal"):
        table.add_column(name, justify="left" if name in FIELDS[:3] else "right")
    for row in rows:
        sizes = [f"{row['requests']} x {row['block']}" if name == "rows" else str(row[name]) for name in FIELDS]
        sizes[2] = str(row["window"] or "full")
        if "failed" in row:
            table.add_row(*sizes, "[bold red]failed[/]")
            continue
        figures = [str(row["compared"]), str(row["equal"]), str(len(row["near_ties"]))]
        table.add_row(*sizes, *figures, f"{row['error']:.1e}", f"{row['noise']:.1e}", "yes")
    console.print(table)
    for row in rows:
        name = f"{row['family']}, {row['markov']}, {row['ranks']} ranks, {row['requests']} x {row['block']} rows"
        for tie in row.get("near_ties", []):
            where = f"block {tie['proposal']} slot {tie['slot']}"
            console.print(
                f"near tie: {name}, {where}: the reference led by {tie['lead']:.3g}, bound {tie['bound']:.3g}"
            )
        if "failed" in row:
            console.print(f"[bold red]failed:[/] {name}: {row['failed']}", markup=True, highlight=False)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    choices: dict[str, Any] = {"nargs": "+", "metavar": "X"}
    parser.add_argument(
        "--families", type=Release, default=list(Release), help=f"{', '.join(Release)}; default all", **choices
    )
    parser.add_argument(
        "--markov",
        type=MarkovKind,
        default=list(MarkovKind),
        help=f"of {', '.join(MarkovKind)}; default all",
        **choices,
    )
    parser.add_argument(
        "--windows", choices=("full", "window"), nargs="+", default=["full", "window"], help="attention; default both"
    )
    parser.add_argument("--ranks", type=int, choices=(1, 2, 4, 8), nargs="+", default=[1, 2, 4, 8], help="default all")
    parser.add_argument(
        "--rows", type=int, default=[0], help="query rows a launch, 1 to 16; default two blocks (14 or 16)", **choices
    )
    parser.add_argument("--rounds", type=int, default=6, help="of a conversation (default 6)")
    parser.add_argument("--temperature", type=float, default=0.0, help="of the drafts; 0, the default, is greedy")
    parser.add_argument("--ctas", type=int, default=4, help="CTAs a rank (default 4)")
    parser.add_argument("--out", type=Path, help="JSON file; default benchmarks/results/equality/DATE.json")
    parser.add_argument("--json", action="store_true", help="print the JSON instead of the table")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="only print the results in these files")
    options = parser.parse_args()
    for name, value, most in (("rows", max(options.rows), MAX_ROWS), ("rounds", options.rounds, 200)):
        if not 0 <= value <= most or (name == "rounds" and value == 0):
            parser.error(f"--{name}: found {value}, wanted 1 to {most}")
    if min(options.rows) < 0:
        parser.error(f"--rows: found {min(options.rows)}, wanted 1 to {MAX_ROWS}")
    return options


def run(options: argparse.Namespace, save: Any) -> list[dict[str, Any]]:
    """All cases with a bar; what is found so far goes to `save` after each."""
    windows = [WINDOW if name == "window" else 0 for name in options.windows]
    axes = product(options.families, options.markov, windows, options.ranks, options.rows)
    cases = [Case(*axis, rounds=options.rounds, temperature=options.temperature) for axis in axes]
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("rounds"), TimeElapsedColumn())
    rows: list[dict[str, Any]] = []
    with Progress(*columns, TextColumn("{task.description}"), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(cases) * options.rounds)
        for index, case in enumerate(cases):
            progress.update(task, description=f"case {index + 1} of {len(cases)}: {case}")
            rows.append(judge(case, options.ctas, lambda: progress.advance(task)))
            progress.update(task, completed=(index + 1) * options.rounds)
            save(rows)
    return rows


def main() -> int:
    options = parse()
    console = Console()
    if options.table:
        rows = [row for path in options.table for row in json.loads(path.read_text())["cases"]]
        show(rows, console)
        return any("failed" in row for row in rows)
    torch.set_num_threads(1)
    date = time.strftime("%Y-%m-%d", time.gmtime())
    output = options.out or RESULTS / f"{date}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    header = {
        "what": "drafts of the one-launch gfx950 kernel on the executor (a CPU) beside the mxfp8 reference",
        "date": date,
        "protocol": "benchmarks/equality.py --help",
        "versions": {
            "monodraft": monodraft.__version__,
            "torch": torch.__version__,
            "flydsl": flydsl.__version__,
            "python": platform.python_version(),
        },
        "ctas_a_rank": options.ctas,
    }

    def save(rows: list[dict[str, Any]]) -> None:
        output.write_text(json.dumps({**header, "cases": rows}, indent=1) + "\n")

    rows = run(options, save)
    if options.json:
        console.print_json(data={**header, "cases": rows})
    else:
        show(rows, console)
    return any("failed" in row for row in rows)


if __name__ == "__main__":
    sys.exit(main())
