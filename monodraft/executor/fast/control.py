"""Barriers, waits, fences, the clock, and hints that change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monodraft.executor.fast.emit import I64
from monodraft.executor.fast.records import AGENT_SCOPE, BARRIER, CTA_SCOPE, POLL, SYSTEM_SCOPE, WAVE_SCOPE
from monodraft.executor.fast.table import Operands, Unknown, known, table_name
from monodraft.executor.program import Op

if TYPE_CHECKING:
    from monodraft.executor.fast.translate import Translation

SCOPES = {
    "": SYSTEM_SCOPE,
    "system": SYSTEM_SCOPE,
    "agent": AGENT_SCOPE,
    "cluster": AGENT_SCOPE,
    "workgroup": CTA_SCOPE,
    "wavefront": WAVE_SCOPE,
    "singlethread": WAVE_SCOPE,
}


def scope_of(name: str) -> int:
    """The scope of a sync scope's name; `-one-as` ones order one address space and count as the whole."""
    base = name.removesuffix("one-as").removesuffix("-")
    if base not in SCOPES:
        raise Unknown(f"sync scope {name!r}")
    return SCOPES[base]


@known("llvm.amdgcn.s.barrier", "llvm.amdgcn.barrier")
def barrier(t: Translation, op: Op, x: Operands) -> list[str]:
    """Waits for LDS as FlyDSL's barrier does (its fence stands before it); not for vector memory."""
    t.call("reach_barrier", t.e.scalar(t.memory_place(op)), t.mask_bits)
    t.event = BARRIER
    return []


@known("llvm.amdgcn.s.waitcnt")
def wait_count(t: Translation, op: Op, x: Operands) -> list[str]:
    """gfx9's encoding: vmcnt in bits 0-3 and 14-15, lgkmcnt in bits 8-11."""
    bits = op.attributes.get("bitfield")
    if bits is None:
        bits = t.need_constant(op, 0)
    vector = bits & 15 | (bits >> 14 & 3) << 4
    t.call("wait_count", t.e.scalar(vector), t.e.scalar(bits >> 8 & 15))
    return []


@known("llvm.fence")
def fence(t: Translation, op: Op, x: Operands) -> list[str]:
    ordering, scope = int(op.attributes["ordering"]), scope_of(op.attributes.get("syncscope", ""))
    t.call("fence", t.e.scalar(ordering), t.e.scalar(scope))
    return []


@known("llvm.amdgcn.s.sleep")
def sleep(t: Translation, op: Op, x: Operands) -> list[str]:
    count = op.attributes.get("count")
    t.call("sleep", t.e.scalar(int(count if count is not None else t.need_constant(op, 0))))
    t.event = POLL
    return []


@known("llvm.amdgcn.s.memrealtime", "llvm.amdgcn.s.memtime")
def clock(t: Translation, op: Op, x: Operands) -> list[str]:
    """The 100 MHz clock; s_memtime counts 24 core cycles a tick."""
    ticks = t.read_clock()
    if "realtime" not in str(op.attributes.get("intrin", op.name)):
        ticks = t.e.binary("mul", ticks, t.e.scalar(24))
    t.event = POLL
    return [t.e.splat(ticks, I64)]


HINTS = (
    "sched.barrier",
    "sched.group.barrier",
    "s.setprio",
    "s.nop",
    "iglp.opt",
    "wave.barrier",
    "s.icache.inv",
)


@known(*(f"llvm.amdgcn.{name}" for name in HINTS), "llvm.intr.assume")
def hint(t: Translation, op: Op, x: Operands) -> list[str]:
    return []


@known(*(f"llvm.amdgcn.{what}.dim.{axis}" for what in ("grid", "workgroup") for axis in "xyz"))
def dimension(t: Translation, op: Op, x: Operands) -> list[str]:
    """Grid size in CTAs, and block size."""
    name = table_name(op)
    return [t.launch_size("xyz".index(name[-1]) + (3 if "workgroup" in name else 0), t.element_of(op.results[0]))]


@known("call __ockl_get_num_groups", "call __ockl_get_local_size")
def launch_size(t: Translation, op: Op, x: Operands) -> list[str]:
    """The same by the device library."""
    axis, kind = t.need_constant(op, 0), t.element_of(op.results[0])
    return [t.launch_size(axis + (3 if "local_size" in str(op.attributes["callee"]) else 0), kind)]


@known("llvm.inline_asm")
def inline_assembly(t: Translation, op: Op, x: Operands) -> list[str]:
    """Texts with a registered meaning: see `assembly.py`."""
    from monodraft.executor.fast.assembly import emit_assembly

    return emit_assembly(t, op, x)
