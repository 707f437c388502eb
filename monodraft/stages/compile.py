"""The plan's kernel compiled for gfx950: assembly, code object, and what it takes of a compute unit."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from flydsl.compiler.llvm_options import llvm_options

from monodraft.device.flydsl_names import code_object_of, isa_of, lowered_text
from monodraft.device.isa import parse
from monodraft.errors import Fault, KernelError
from monodraft.plan.lds import LDS_BYTES
from monodraft.plan.step import Plan
from monodraft.stages.step import launcher, placeholders

OPTIONS = {"disable-machine-licm": True}
"""LLVM options of the kernel. Hoisting every constant of 20 stages out of the layer loop costs 23 VGPR spills at M3.1's
sizes (0 without it)."""
VGPR_LIMIT = 256
"""VGPRs of a lane: two of the 8 waves share a SIMD's 512."""
SGPR_LIMIT = 106


@dataclass(frozen=True)
class Resources:
    """What the compiled kernel takes. `sgpr_spills` are scalar values kept in lanes of vector registers, no memory."""

    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    scratch_bytes: int
    lds_bytes: int
    instructions: int

    def faults(self) -> list[Fault]:
        """What does not fit gfx950 with one CTA a compute unit."""
        limits = {
            "vgprs": VGPR_LIMIT,
            "sgprs": SGPR_LIMIT,
            "vgpr_spills": 0,
            "scratch_bytes": 0,
            "lds_bytes": LDS_BYTES,
        }
        return [
            Fault(name, str(getattr(self, name)), f"at most {most}")
            for name, most in limits.items()
            if getattr(self, name) > most
        ]


@dataclass(frozen=True)
class Compiled:
    """Assembly of the kernel; `code_object` is its ELF, or None for the reason in `missing`."""

    isa: str
    code_object: bytes | None
    missing: str

    @property
    def kernel(self) -> str:
        """Name of the kernel in the code object."""
        return parse(self.isa)[0].name


def compile_plan(plan: Plan) -> Compiled:
    """The plan's kernel for gfx950. Raises KernelError where tracing meets other hand-offs than planned."""
    record: list[tuple[str, str, str]] = []
    lld = linker()
    with llvm_options(OPTIONS):
        lowered = lowered_text(launcher(plan, record), placeholders())
        check_record(plan, record)
        isa = isa_of(lowered)
        if lld is None:
            return Compiled(isa, None, "no ld.lld on the path (LLVM 15 or newer links it)")
        try:
            return Compiled(isa, code_object_of(lowered, lld), "")
        except Exception as error:  # MLIR's own error class: what a linker said
            return Compiled(isa, None, f"{lld} did not link it: {str(error).splitlines()[0]}")


def check_record(plan: Plan, record: list[tuple[str, str, str]]) -> None:
    """Refuse a kernel whose hand-offs, as traced, are not the plan's, naming the first that differs."""
    wanted = list(plan.record)
    if record == wanted:
        return
    first = next((i for i, pair in enumerate(zip(record, wanted, strict=False)) if pair[0] != pair[1]), None)
    place = min(len(record), len(wanted)) if first is None else first
    found, planned = (" ".join(events[place]) if place < len(events) else "nothing" for events in (record, wanted))
    raise KernelError("the kernel is not the plan's", [Fault(f"hand-off {place}", found, planned)])


def resources(isa: str) -> Resources:
    """Resources of the kernel in an assembly text."""
    kernel = parse(isa)[0]
    return Resources(
        vgprs=kernel.vgprs,
        agprs=kernel.agprs,
        sgprs=kernel.sgprs,
        vgpr_spills=kernel.vgpr_spills,
        sgpr_spills=kernel.sgpr_spills,
        scratch_bytes=kernel.scratch_bytes,
        lds_bytes=kernel.lds_bytes,
        instructions=len(kernel.instructions),
    )


def linker() -> Path | None:
    """`ld.lld` that can link gfx950 code objects, if there is one on the path."""
    found = shutil.which("ld.lld")
    return None if found is None else Path(found)
