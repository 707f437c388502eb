"""Identity of threads, clock, barriers, hints, inline assembly."""

from __future__ import annotations

from monodraft.executor.operations.table import NotKnown, Use, key, known
from monodraft.executor.program import Void
from monodraft.executor.values import numpy_type


@known(*(f"llvm.amdgcn.{what}.id.{axis}" for what in ("workitem", "workgroup") for axis in "xyz"), kind="valu")
def identity(use: Use) -> str:
    _, _, what, _, axis = key(use.op).split(".")
    return f"w.{'thread' if what == 'workitem' else 'block_index'}[{'xyz'.index(axis)}]"


@known("call __ockl_get_num_groups", "call __ockl_get_local_size", kind="valu")
def grid_size(use: Use) -> str:
    field = "grid" if "groups" in str(use.attributes["callee"]) else "block"
    return f"np.{numpy_type(use.result).__name__}(w.{field}[int({use.operands[0]})])"


@known("llvm.amdgcn.grid.dim.x", "llvm.amdgcn.grid.dim.y", "llvm.amdgcn.grid.dim.z", kind="valu")
def grid_dimension(use: Use) -> str:
    return f"np.{numpy_type(use.result).__name__}(w.grid[{'xyz'.index(key(use.op)[-1])}])"


@known("llvm.amdgcn.workgroup.dim.x", "llvm.amdgcn.workgroup.dim.y", "llvm.amdgcn.workgroup.dim.z", kind="valu")
def block_dimension(use: Use) -> str:
    return f"np.{numpy_type(use.result).__name__}(w.block[{'xyz'.index(key(use.op)[-1])}])"


@known("llvm.amdgcn.s.memrealtime", "llvm.amdgcn.s.memtime", kind="clock", effect=True)
def clock(use: Use) -> str:
    return f"w.clock({use.op.place})"


@known("llvm.amdgcn.s.barrier", "llvm.amdgcn.barrier", kind="barrier", effect=True)
def barrier(use: Use) -> list[str]:
    return [f"w.barrier(m, pending, {use.op.place})", "yield BARRIER"]


@known("llvm.amdgcn.s.sleep", kind="wait", effect=True)
def sleep(use: Use) -> list[str]:
    count = use.attributes["count"] if "count" in use.attributes else use.literal(0)
    return [f"w.sleep({int(count)}, {use.op.place})", "yield POLL"]


HINTS = ("sched.barrier", "sched.group.barrier", "s.setprio", "s.nop", "iglp.opt", "wave.barrier", "s.icache.inv")


@known(*(f"llvm.amdgcn.{name}" for name in HINTS), "llvm.intr.assume", kind="hint", effect=True)
def hint(use: Use) -> list[str]:
    return []


# Assembly with a known meaning. Waits are spelt as the assembler takes them.
IGNORED = ("s_nop", "s_setprio", "s_icache_inv", "s_sched")


@known("llvm.inline_asm", kind="asm", effect=True)
def assembly(use: Use) -> str | list[str]:
    """Only texts with a known meaning: empty ones (a value passes through), waits, sleeps, barriers, cache operations,
    one on each line."""
    lines = [line.partition(";")[0].partition("//")[0] for line in str(use.attributes["asm_string"]).splitlines()]
    texts = [text for line in lines if (text := " ".join(line.split()))]
    if use.op.results and not isinstance(use.result, Void):
        return pass_through(use, " ".join(texts))
    return [statement for text in texts for statement in instruction(use, text)]


def instruction(use: Use, text: str) -> list[str]:
    """One line of assembly without a result."""
    if text.startswith(IGNORED):
        return []
    if text.startswith("s_waitcnt"):
        return [wait_statement(text)]
    if text.startswith("s_sleep"):
        return [f"w.sleep({int(text.split()[1], 0)}, {use.op.place})", "yield POLL"]
    caches = {
        "buffer_wbl2 sc1": ["w.fence(2, False, True)"],
        "buffer_wbl2 sc0 sc1": ["w.fence(3, False, True)"],
        "buffer_inv sc1": ["w.fence(2, True, False)"],
        "buffer_inv sc0 sc1": ["w.fence(3, True, False)"],
        "s_barrier": [f"w.barrier(m, pending, {use.op.place})", "yield BARRIER"],
    }
    if text not in caches:
        raise NotKnown(f"inline assembly {text!r}")
    return caches[text]


BINARY = {
    "v_add_u32": "+",
    "v_sub_u32": "-",
    "v_mul_lo_u32": "*",
    "v_and_b32": "&",
    "v_or_b32": "|",
    "v_xor_b32": "^",
    "v_add_f32": "+",
    "v_sub_f32": "-",
    "v_mul_f32": "*",
}


def pass_through(use: Use, text: str) -> str:
    """An empty assembly whose first input is tied to its output ("=v,0,...") gives that input back; so does a move.
    Besides a few two-operand instructions whose types agree with their operands."""
    name, _, rest = text.partition(" ")
    if name in BINARY and rest.replace(" ", "") == "$0,$1,$2" and len(use.operands) == 2:
        if use.scalar(0) != use.scalar(1) or use.scalar(0) != ("f32" if name.endswith("f32") else "i32"):
            raise NotKnown(f"inline assembly {text!r} on {use.kind(0)} and {use.kind(1)}")
        return f"{use.operands[0]} {BINARY[name]} {use.operands[1]}"
    constraints = str(use.attributes["constraints"]).split(",")
    moves = ("", "v_mov_b32 $0, $1", "v_mov_b32_e32 $0, $1", "s_mov_b32 $0, $1")
    if text not in moves or not use.operands:
        raise NotKnown(f"inline assembly {text!r} with a result")
    if text == "" and "0" not in constraints:
        raise NotKnown("empty inline assembly whose result is not tied to an input")
    return use.operands[constraints.index("0") - 1 if text == "" else 0]


def wait_statement(text: str) -> str:
    counts: dict[str, str] = {"vmcnt": "None", "lgkmcnt": "None"}
    for part in text.removeprefix("s_waitcnt").replace("&", " ").replace(",", " ").split():
        name, _, rest = part.partition("(")
        if name not in ("vmcnt", "lgkmcnt", "expcnt") or not rest.endswith(")"):
            raise NotKnown(f"inline assembly {text!r}")
        counts[name] = rest[:-1]
    return f"w.wait({counts['vmcnt']}, {counts['lgkmcnt']})"
