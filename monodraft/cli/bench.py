"""`monodraft bench`: the draft step on a Hopper GPU against PyTorch, in one run."""

from __future__ import annotations

import io
import json
import os
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from monodraft.cli.writing import write_bytes, write_text
from monodraft.errors import Fault, InputError

if TYPE_CHECKING:  # torch takes seconds to import; --help and usage errors do not need it
    from monodraft.hopper.bench.kernels import Timing

HELP = """
Time the draft step of released drafters (random weights) on this Hopper GPU: PyTorch eager and torch.compile, each in a
CUDA graph, a chain of launches with programmatic dependent launch, and the one launch, in bf16 and MXFP8.

    monodraft bench
    monodraft bench --shape qwen3-8b --context 1024 --context 4096 --out results.json --plot results.png

Protocol: one request, no new context rows, CUDA-graph replay between events, 5 warm-ups, median of 30. Ratios are to
torch.compile in the same run.
"""

PROTOCOL = "one request, no new context rows, CUDA-graph replay between events, 5 warm-ups, median of 30"


class Shape(StrEnum):
    """Released drafters that can be timed."""

    QWEN3_8B = "qwen3-8b"
    QWEN3_4B = "qwen3-4b"
    MINICPM5_2B = "minicpm5-2b"
    M31 = "m3.1"
    GEMMA4_12B = "gemma4-12b"


def bench(
    shape: Annotated[list[Shape] | None, typer.Option(help="Which drafters; repeatable. Default: all five.")] = None,
    context: Annotated[
        list[int] | None, typer.Option(min=1, help="Committed positions; repeatable. Default: 1024 and 4096.")
    ] = None,
    peers: Annotated[bool, typer.Option(help="Also time PyTorch (torch.compile takes a while).")] = True,
    out: Annotated[Path | None, typer.Option(help="Write all figures to this JSON file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the times into this PNG file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    for path in (out, plot):
        if path is not None:
            check_folder(path)
    if plot is not None:
        check_plotting()
    from monodraft.hopper.launch import require_hopper

    require_hopper()
    shapes = [item.value for item in (shape or list(Shape))]
    rows = measure(shapes, context or [1024, 4096], peers, Console(stderr=True, quiet=as_json))
    figures = as_figures(rows)
    if out is not None:
        write_text(out, json.dumps(figures, indent=1) + "\n")
    if plot is not None:
        draw(rows, plot)
    if as_json:
        print(json.dumps(figures))
    else:
        Console().print(table(rows))


bench.__doc__ = HELP


def measure(shapes: list[str], contexts: list[int], peers: bool, stderr: Console) -> list[Timing]:
    """All times, with a progress bar over shapes and contexts."""
    from monodraft.hopper.bench.kernels import compare

    rows: list[Timing] = []
    with Progress(console=stderr, transient=True) as progress:
        task = progress.add_task("timing", total=len(shapes) * len(contexts))
        for name in shapes:
            for length in contexts:
                progress.update(task, description=f"{name}, context {length}")
                rows += compare(name, length, peers=peers)
                progress.advance(task)
    return rows


def ratios(rows: list[Timing]) -> list[float | None]:
    """Time of torch.compile over the row's, where the run has it for that shape and context."""
    peers = {(row.shape, row.context): row.microseconds for row in rows if row.variant == "compile+graph"}
    return [
        peer / row.microseconds if (peer := peers.get((row.shape, row.context))) is not None else None for row in rows
    ]


def as_figures(rows: list[Timing]) -> dict[str, Any]:
    """Everything measured, for a script."""
    import torch

    properties = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": properties.name if properties else None,
        "protocol": PROTOCOL,
        "times": [
            {
                "shape": row.shape,
                "context": row.context,
                "variant": row.variant,
                "microseconds": row.microseconds,
                "megabytes": row.megabytes or None,
                "gigabytes_per_second": row.gigabytes_per_second or None,
                "of_ceiling": row.of_ceiling or None,
                "ratio_to_compile": ratio,
            }
            for row, ratio in zip(rows, ratios(rows), strict=True)
        ],
    }


def table(rows: list[Timing]) -> Table:
    """The table that the command prints."""
    view = Table(caption=PROTOCOL)
    for name in ("drafter", "context", "variant"):
        view.add_column(name)
    for name in ("us", "GB/s", "of ceiling", "x compile"):
        view.add_column(name, justify="right")
    for row, ratio in zip(rows, ratios(rows), strict=True):
        known = bool(row.megabytes)
        view.add_row(
            row.shape,
            str(row.context),
            row.variant,
            f"{row.microseconds:.1f}",
            f"{row.gigabytes_per_second:.0f}" if known else "",
            f"{row.of_ceiling:.0%}" if known else "",
            f"{ratio:.2f}" if ratio is not None else "",
        )
    return view


def check_folder(path: Path) -> None:
    """InputError, before minutes of measuring, where a file cannot be made at `path`."""
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise InputError("cannot write", [Fault(str(path), "no such writable folder", "a path in a writable folder")])


def check_plotting() -> None:
    """InputError where matplotlib is not there."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        fault = Fault("--plot", "matplotlib is not installed", "pip install 'monodraft[plot]'")
        raise InputError("cannot draw", [fault]) from None


def draw(rows: list[Timing], path: Path) -> None:
    """Bars of microseconds, a group a shape and context."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = list(dict.fromkeys((row.shape, row.context) for row in rows))
    variants = list(dict.fromkeys(row.variant for row in rows))
    figure, axes = pyplot.subplots(figsize=(2 + 2.2 * len(groups), 4.5))
    for index, variant in enumerate(variants):
        of_variant = {(row.shape, row.context): row.microseconds for row in rows if row.variant == variant}
        places = [place + index * 0.8 / len(variants) for place in range(len(groups))]
        axes.bar(places, [of_variant.get(group, 0.0) for group in groups], 0.8 / len(variants), label=variant)
    axes.set_xticks([place + 0.4 for place in range(len(groups))], [f"{name}\n{length}" for name, length in groups])
    axes.set_ylabel("us per draft step")
    axes.legend(fontsize="small")
    figure.tight_layout()
    image = io.BytesIO()
    figure.savefig(image, dpi=150, format="png")
    pyplot.close(figure)
    write_bytes(path, image.getvalue())
