"""`monodraft kernels`: every device word compiled for gfx950, with what it costs. Needs FlyDSL, no GPU and no ROCm."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from monodraft.device.geometry import Geometry
from monodraft.device.isa import Kernel
from monodraft.device.lint import lint
from monodraft.errors import Fault, InputError, KernelError

CLASSES = {
    "vector": ("v_",),
    "scalar": ("s_",),
    "global": ("buffer_", "global_", "flat_"),
    "lds": ("ds_",),
}
"""Instruction classes by the start of the mnemonic; `v_mfma` counts as `matrix`."""

COLUMNS = {
    "vgprs": "VGPR",
    "sgprs": "SGPR",
    "lds_bytes": "LDS",
    "scratch_bytes": "scr",
    "instructions": "all",
    "vector": "vec",
    "scalar": "scal",
    "global": "glob",
    "lds": "ds",
    "matrix": "mat",
}


def kernels(
    isa: str | None = typer.Option(
        None, "--isa", metavar="NAME", help="Print the gfx950 assembly of this word, for instance poll_pairs."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON: one object a word, for scripts."),
    hidden: int = typer.Option(6144, help="Hidden size of the geometry to compile for."),
    ranks: int = typer.Option(4, help="Tensor-parallel ranks."),
    waves: int = typer.Option(8, help="Waves of a CTA."),
) -> None:
    """List the device words with registers, LDS and instruction counts from the compiled gfx950 assembly.

    Each word is compiled alone, in the smallest kernel that uses it; the counts include that kernel's loads and stores.
    """
    probes = _probes()
    geometry = Geometry(hidden=hidden, ranks=ranks, waves=waves)
    if isa is not None:
        print(probes.probe_isa(_chosen(isa, probes.PROBES), geometry))
        return
    names = sorted(probes.PROBES)
    words = {}
    shown = names if as_json or not sys.stderr.isatty() else track(names, "compiling", console=Console(stderr=True))
    for each in shown:
        text = probes.probe_isa(each, geometry)
        words[each] = {**costs(probes.parse(text)[0]), "findings": [str(finding) for finding in lint(text)]}
    if as_json:
        version = importlib.metadata.version("flydsl")
        print(json.dumps({"flydsl": version, "geometry": asdict(geometry), "words": words}, indent=1))
    else:
        Console().print(_table(words, geometry))


def costs(kernel: Kernel) -> dict[str, Any]:
    """Registers, LDS, scratch and instruction counts of one compiled kernel."""
    counts = dict.fromkeys([*CLASSES, "matrix"], 0)
    for mnemonic, count in kernel.mnemonics().items():
        counts[_class_of(mnemonic)] += count
    return {
        "vgprs": kernel.vgprs,
        "agprs": kernel.agprs,
        "sgprs": kernel.sgprs,
        "lds_bytes": kernel.lds_bytes,
        "scratch_bytes": kernel.scratch_bytes,
        "spills": kernel.vgpr_spills + kernel.sgpr_spills,
        "instructions": sum(counts.values()),
        **counts,
    }


def _class_of(mnemonic: str) -> str:
    if mnemonic.startswith("v_mfma"):
        return "matrix"
    return next(name for name, starts in CLASSES.items() if mnemonic.startswith(starts))


def _probes() -> Any:
    """The probes module, or a clear error where FlyDSL is not installed."""
    try:
        from monodraft.device import probes
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "flydsl":
            raise
        wanted = 'FlyDSL: pip install "monodraft[gfx950]"'
        raise KernelError("the device words cannot be compiled", [Fault("flydsl", "not installed", wanted)]) from None
    return probes


def _chosen(name: str, known: Iterable[str]) -> str:
    if name not in known:
        raise InputError("no such device word", [Fault("--isa", name, "one of " + ", ".join(sorted(known)))])
    return name


def _table(words: dict[str, dict[str, Any]], geometry: Geometry) -> Table:
    title = f"gfx950, hidden {geometry.hidden}, {geometry.ranks} ranks, {geometry.waves} waves a CTA"
    caption = "instructions by kind; each word alone in the smallest kernel that uses it"
    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("word", no_wrap=True)
    for header in COLUMNS.values():
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("lint")
    for name, word in words.items():
        verdict = "[green]clean[/]" if not word["findings"] else "[red]" + "; ".join(word["findings"]) + "[/]"
        table.add_row(name, *(str(word[column]) for column in COLUMNS), verdict)
    return table
