"""`monodraft compile`: the one-launch draft step of a drafter compiled for gfx950. Needs FlyDSL, no GPU and no ROCm."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from monodraft.checkpoint import read_config
from monodraft.checkpoint.shipped import DRAFTER
from monodraft.cli.writing import make_folder, write_bytes, write_text
from monodraft.errors import Fault, KernelError
from monodraft.plan.device import check_device
from monodraft.plan.order import check_order
from monodraft.plan.shape import StepShape
from monodraft.plan.step import Plan


def compile_command(
    folder: Annotated[Path, typer.Argument(help="Folder of the drafter; only its config.json is read.")] = DRAFTER,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where to write.")] = Path("compiled"),
    ranks: Annotated[int, typer.Option(help="Tensor-parallel ranks: 1, 2, 4 or 8.")] = 4,
    ctas: Annotated[int, typer.Option(help="CTAs a rank, one a compute unit; an MI355X has 256.")] = 256,
    requests: Annotated[int, typer.Option(help="Requests drafted together; requests x block is at most 16 rows.")] = 1,
    positions: Annotated[int, typer.Option(help="Most positions of a request.")] = 8192,
) -> None:
    """Write the kernel's gfx950 assembly and a resource report to a folder, and the code object where it can be linked.

    All ranks run the same kernel; the rank is an argument. The hand-offs that tracing meets are compared with the plan.
    A code object needs LLVM's ld.lld on the path; without it the report says so.
    """
    config = read_config(folder)
    shape = StepShape(config, ranks=ranks, ctas=ctas, requests=requests, positions=min(positions, config.max_positions))
    check_device(shape, ctas)
    plan = Plan(shape)
    check_order(plan)
    compiler = _compiler()
    console = Console(stderr=True)
    with console.status(f"tracing and compiling for gfx950 ({ranks} ranks, {ctas} CTAs)"):
        compiled = compiler.compile_plan(plan)
    isa, code_object, reason = compiled.isa, compiled.code_object, compiled.missing
    used = compiler.resources(isa)
    faults = used.faults()
    make_folder(out)
    write_text(out / "draft.s", isa)
    if code_object is not None:
        write_bytes(out / "draft.hsaco", code_object)
    report: dict[str, Any] = {
        "drafter": str(folder),
        "shape": {"ranks": ranks, "ctas": ctas, "requests": requests, "rows": shape.rows, "positions": shape.positions},
        "resources": asdict(used),
        "fits": not faults,
        "code_object": "draft.hsaco" if code_object is not None else reason,
        "ranks": {str(rank): {"kernel": "draft.s", "rank_argument": rank} for rank in range(ranks)},
    }
    write_text(out / "report.json", json.dumps(report, indent=1) + "\n")
    if faults:
        raise KernelError("the kernel does not fit gfx950; its assembly and report are written", faults)
    print(
        f"{out}/draft.s: {used.instructions} instructions, {used.vgprs} VGPRs, {used.sgprs} SGPRs"
        f" ({used.sgpr_spills} kept in vector lanes), {used.lds_bytes} bytes of LDS, {used.scratch_bytes} of scratch"
    )
    print(f"{out}/draft.hsaco" if code_object is not None else f"no code object: {reason}")


def _compiler() -> Any:
    """The compiling module, or a clear error where FlyDSL is not installed."""
    try:
        from monodraft.stages import compile as compiler
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "flydsl":
            raise
        wanted = 'FlyDSL: pip install "monodraft[gfx950]"'
        raise KernelError("the draft step cannot be compiled", [Fault("flydsl", "not installed", wanted)]) from None
    return compiler
