"""Inline assembly with a known meaning: hints, waits, sleeps, cache operations, and values that pass through."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from monodraft.executor.fast.emit import F32, I32
from monodraft.executor.fast.records import (
    ACQUIRE,
    AGENT_SCOPE,
    BARRIER,
    CTA_SCOPE,
    POLL,
    RELEASE,
    SYSTEM_SCOPE,
)
from monodraft.executor.fast.table import Operands, Unknown
from monodraft.executor.program import Op, Void

if TYPE_CHECKING:
    from monodraft.executor.fast.translate import Translation

HINTS = ("s_nop", "s_setprio", "s_icache_inv", "s_sched", ";", "//")
MOVES = ("", "v_mov_b32 $0, $1", "v_mov_b32_e32 $0, $1", "s_mov_b32 $0, $1")
CACHES = {
    "buffer_wbl2 sc0": (RELEASE, CTA_SCOPE),
    "buffer_wbl2 sc1": (RELEASE, AGENT_SCOPE),
    "buffer_wbl2 sc0 sc1": (RELEASE, SYSTEM_SCOPE),
    "buffer_inv sc0": (ACQUIRE, CTA_SCOPE),
    "buffer_inv sc1": (ACQUIRE, AGENT_SCOPE),
    "buffer_inv sc0 sc1": (ACQUIRE, SYSTEM_SCOPE),
}
NO_WAIT = {"vmcnt": 63, "lgkmcnt": 15, "expcnt": 7}


BINARY = {
    "v_add_u32": "add",
    "v_sub_u32": "sub",
    "v_mul_lo_u32": "mul",
    "v_and_b32": "and",
    "v_or_b32": "or",
    "v_xor_b32": "xor",
    "v_add_f32": "fadd",
    "v_sub_f32": "fsub",
    "v_mul_f32": "fmul",
}
"""Instructions of two operands and a result."""


def emit_assembly(t: Translation, op: Op, x: Operands) -> list[str]:
    """The lines of an assembly text, one after the other; one with a result must hand an operand through."""
    lines = [line.partition(";")[0].partition("//")[0] for line in str(op.attributes["asm_string"]).splitlines()]
    texts = [text for line in lines if (text := " ".join(line.split()))]
    if op.results and not isinstance(t.type(op.results[0]), Void):
        return with_result(t, op, x, " ".join(texts))
    for text in texts:
        emit_line(t, op, text)
    return []


def with_result(t: Translation, op: Op, x: Operands, text: str) -> list[str]:
    """An empty text whose input is tied to its output, a move, or an instruction of two operands."""
    name, _, rest = text.partition(" ")
    if name in BINARY and rest.replace(" ", "") == "$0,$1,$2" and len(x) == 2:
        kind = F32 if name.endswith("f32") else I32
        if [t.kinds(value) for value in op.operands] != [[kind], [kind]]:
            raise Unknown(f"inline assembly {text!r} on {' and '.join(str(t.type(v)) for v in op.operands)}")
        return [t.e.lanes(BINARY[name], kind, x[0][0], x[1][0])]
    constraints = str(op.attributes["constraints"]).split(",")
    if text not in MOVES or not x:
        raise Unknown(f"inline assembly {text!r} with a result")
    if text == "" and "0" not in constraints:
        raise Unknown("empty inline assembly whose result is not tied to an input")
    return x[constraints.index("0") - 1 if text == "" else 0]


def emit_line(t: Translation, op: Op, text: str) -> None:
    if not text or text.startswith(HINTS):
        return
    if text.startswith("s_waitcnt"):
        vector, local = wait_counts(text)
        t.call("wait_count", t.e.scalar(vector), t.e.scalar(local))
    elif re.fullmatch(r"s_sleep \w+", text):
        t.call("sleep", t.e.scalar(int(text.split()[1], 0)))
        t.event = POLL
    elif text in CACHES:
        ordering, scope = CACHES[text]
        t.call("cache_operation", t.e.scalar(ordering), t.e.scalar(scope))
    elif text == "s_barrier":
        t.call("reach_barrier", t.e.scalar(t.memory_place(op)), t.mask_bits)
        t.event = BARRIER
    else:
        raise Unknown(f"inline assembly {text!r}")


def wait_counts(text: str) -> tuple[int, int]:
    """vmcnt and lgkmcnt of an s_waitcnt; what it does not name is not waited for."""
    counts = dict(NO_WAIT)
    for part in re.split(r"[&,\s]+", text.removeprefix("s_waitcnt").strip()):
        match = re.fullmatch(r"(\w+)\((\d+)\)", part)
        if match is None or match[1] not in counts:
            raise Unknown(f"inline assembly {text!r}")
        counts[match[1]] = int(match[2])
    return counts["vmcnt"], counts["lgkmcnt"]
