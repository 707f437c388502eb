"""Barriers, waits, fences, the clock, and hints that change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monodraft.executor.fast.emit import I32, I64
from monodraft.executor.fast.records import AGENT_SCOPE, BARRIER, CTA_SCOPE, POLL, SYSTEM_SCOPE, WAVE_SCOPE
from monodraft.executor.fast.table import Operands, Unknown, known
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


@known("llvm.amdgcn.s.memrealtime", "llvm.amdgcn.s.memtime", "llvm.readcyclecounter", "llvm.intr.readcyclecounter")
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
    "s.dcache.inv",
)


@known(
    *(f"llvm.amdgcn.{name}" for name in HINTS), "llvm.intr.assume", "llvm.intr.lifetime.start", "llvm.intr.lifetime.end"
)
def hint(t: Translation, op: Op, x: Operands) -> list[str]:
    return []


@known(
    "call __ockl_get_num_groups", "call __ockl_get_local_size", "call __ockl_get_local_id", "call __ockl_get_group_id"
)
def launch_size(t: Translation, op: Op, x: Operands) -> list[str]:
    """Grid and block sizes of the launch."""
    axis, name, kind = t.need_constant(op, 0), str(op.attributes["callee"]), t.element_of(op.results[0])
    if name.endswith(("local_id", "group_id")):
        value = t.thread_index(axis) if name.endswith("local_id") else t.cta_index(axis)
        return [t.e.convert("zext", value, I32, kind)]
    return [t.launch_size(axis + (3 if name.endswith("local_size") else 0), kind)]


@known("llvm.inline_asm")
def inline_assembly(t: Translation, op: Op, x: Operands) -> list[str]:
    """Texts with a registered meaning: see `assembly.py`."""
    from monodraft.executor.fast.assembly import emit_assembly

    return emit_assembly(t, op, x)
