"""`monodraft pack`: a checkpoint with its linears in MXFP8."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.text import Text

from monodraft.checkpoint.packing import Packed, pack
from monodraft.cli.sizes import human_bytes, parse_bytes, plural
from monodraft.errors import visible


def _progress() -> Progress:
    """A bar on stderr, so that standard output is the result's; silent where stderr is no terminal."""
    return Progress(
        TextColumn("{task.description:<9}"),
        BarColumn(bar_width=40),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )


def _summary(packed: Packed) -> Text:
    files = plural(len(packed.files), "file")
    amount = f"{human_bytes(packed.bytes_in)} → {human_bytes(packed.bytes_out)} in {files}"
    if packed.quantised:
        what = f"{packed.quantised} linears to MXFP8, {packed.copied} tensors as they were"
    else:
        what = f"linears were MXFP8 already: all {packed.copied} tensors byte for byte"
    return Text.assemble(("✓", "bold green"), f" {visible(str(packed.destination))}: {what}, {amount}")


def pack_command(
    source: Annotated[Path, typer.Argument(help="Drafter's folder.", show_default=False)],
    destination: Annotated[Path, typer.Argument(help="Folder to write; it must not exist.", show_default=False)],
    force: Annotated[bool, typer.Option("--force", help="Replace an existing checkpoint, in one step.")] = False,
    max_shard_size: Annotated[str, typer.Option(help="Largest tensor file, such as 500MB or 2GiB.")] = "5GB",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object when done.")] = False,
) -> None:
    """Quantise the linears of a drafter to MXFP8; write it back in its own layout.

    Linears that are MXFP8 already are kept byte for byte. The destination appears
    whole or not at all: after an error, Ctrl-C or a full disk nothing is left.
    Memory stays small whatever the size of the checkpoint.

    Example:

      monodraft pack dspark_qwen3_8b_block7 dspark_qwen3_8b_block7-mxfp8
    """
    limit = parse_bytes(max_shard_size)
    with _progress() as bar:
        tasks = {what: bar.add_task(what, total=None, visible=False) for what in ("checking", "writing")}

        def show(what: str, done: int, total: int) -> None:
            bar.update(tasks[what], completed=done, total=total, visible=True)

        packed = pack(source, destination, max_shard_size=limit, force=force, progress=show)
    if as_json:
        facts = {
            "source": str(packed.source),
            "destination": str(packed.destination),
            "quantised": packed.quantised,
            "copied": packed.copied,
            "files": list(packed.files),
            "bytes_in": packed.bytes_in,
            "bytes_out": packed.bytes_out,
        }
        print(json.dumps(facts, indent=2))
    else:
        Console().print(_summary(packed), soft_wrap=True, highlight=False)
