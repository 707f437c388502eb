"""How a kernel is cut into steps, and where a wave keeps the values that outlive a step.

A step is a run of operations that the scheduler does not interrupt: a block is cut after every memory operation,
barrier, clock read and sleep. Steps are numbered in program order; the lowest pending one runs next, which brings
diverged lanes together again where the structured source does. A value used in another step than its own has a slot in
the wave's state; block arguments and loaded values always have one. Cheap pure operations on constants and kernel
arguments (buffer resources, casts, thread numbers) have none: they are written again in every step that uses them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from monodraft.executor.fast.emit import lane_types, slot_bytes
from monodraft.executor.fast.records import Wave
from monodraft.executor.fast.table import table_name
from monodraft.executor.fast.words import size_of
from monodraft.executor.program import Function, Op

CONSTANTS = {"llvm.mlir.constant", "llvm.mlir.poison", "llvm.mlir.undef", "llvm.mlir.zero", "llvm.mlir.addressof"}
TERMINATORS = {"llvm.br", "llvm.cond_br", "llvm.switch", "llvm.return", "llvm.unreachable"}
LOADS = {"llvm.load", "llvm.amdgcn.raw.ptr.buffer.load", "llvm.amdgcn.s.buffer.load"}
STORES = {"llvm.store", "llvm.amdgcn.raw.ptr.buffer.store"}
ATOMICS = {"llvm.atomicrmw", "llvm.cmpxchg"}
DIRECT = {"llvm.amdgcn.raw.ptr.buffer.load.lds"}
MEMORY = LOADS | STORES | ATOMICS | DIRECT
EVENTS = {
    "llvm.amdgcn.s.barrier",
    "llvm.amdgcn.barrier",
    "llvm.amdgcn.s.sleep",
    "llvm.amdgcn.s.memrealtime",
    "llvm.amdgcn.s.memtime",
}
EFFECTS = MEMORY | EVENTS | {"llvm.inline_asm", "llvm.fence", "llvm.amdgcn.s.waitcnt"}
CHEAP = {
    *("llvm.inttoptr", "llvm.ptrtoint", "llvm.addrspacecast", "llvm.trunc", "llvm.zext", "llvm.sext", "llvm.bitcast"),
    *("llvm.extractvalue", "llvm.insertvalue", "llvm.insertelement", "llvm.extractelement", "llvm.shufflevector"),
    *(
        "llvm.amdgcn.make.buffer.rsrc",
        "llvm.add",
        "llvm.sub",
        "llvm.shl",
        "llvm.and",
        "llvm.or",
        "llvm.lshr",
        "llvm.ashr",
    ),
    *(f"llvm.amdgcn.workitem.id.{axis}" for axis in "xyz"),
    *(f"llvm.amdgcn.workgroup.id.{axis}" for axis in "xyz"),
}
MOST_AGAIN = 6
"""Operations, at most, that writing a value again may cost."""


@dataclass
class Step:
    """A run of operations of one block."""

    block: int
    ops: list[Op] = field(default_factory=list)


@dataclass
class Layout:
    """The steps of a kernel and the state of its waves. Offsets are in bytes from the wave's record."""

    function: Function
    steps: list[Step]
    first: list[int]
    definition: dict[int, Op]
    constants: dict[int, Op]
    again: set[int]
    slots: dict[int, int]
    loaded: dict[int, int]
    places: dict[int, int]
    masks: int
    words: int
    size: int

    @property
    def word_count(self) -> int:
        """64-bit words that hold a bit for each step."""
        return -(-len(self.steps) // 64)


def ends_step(op: Op) -> bool:
    """Whether the scheduler may switch after an operation."""
    name = table_name(op)
    if name == "llvm.inline_asm":
        text = str(op.attributes["asm_string"])
        return "s_sleep" in text or "s_barrier" in text
    return name in MEMORY or name in EVENTS


def cut(function: Function) -> tuple[list[Step], list[int]]:
    """The steps, and the number of each block's first one."""
    steps: list[Step] = []
    first: list[int] = []
    for number, block in enumerate(function.blocks):
        first.append(len(steps))
        step = Step(number)
        for op in block.ops:
            step.ops.append(op)
            if ends_step(op):
                steps.append(step)
                step = Step(number)
        steps.append(step)
    return steps, first


def uses(op: Op) -> list[int]:
    """All values that an operation reads, those it hands to successors included."""
    return [*op.operands, *(value for target in op.targets for value in target.arguments)]


def lay_out(function: Function) -> Layout:
    """Cut a kernel and give its long-lived values places."""
    steps, first = cut(function)
    definition: dict[int, Op] = {}
    home: dict[int, int] = {}
    for number, step in enumerate(steps):
        for op in step.ops:
            for result in op.results:
                definition[result], home[result] = op, number
    constants = {v: op for v, op in definition.items() if op.name in CONSTANTS}
    again = written_again(function, definition, constants)
    live = {a for block in function.blocks[1:] for a in block.arguments}
    loaded: dict[int, int] = {}
    places: dict[int, int] = {}
    parameters = set(function.parameters)
    for number, step in enumerate(steps):
        for op in step.ops:
            if ends_step(op):
                places[id(op)] = len(places)
            if table_name(op) in LOADS:
                loaded[op.results[0]] = places[id(op)]
                live.add(op.results[0])
            live |= {v for v in uses(op) if home.get(v, number) != number and v not in constants and v not in again}
    for value in again:
        operands = definition[value].operands
        assert all(v in again or v in constants or v in parameters for v in operands), value
    return place_state(function, steps, first, definition, constants, again, live, loaded, places)


def written_again(function: Function, definition: dict[int, Op], constants: dict[int, Op]) -> set[int]:
    """Values that are cheaper to compute again than to keep."""
    cost: dict[int, int] = dict.fromkeys((*constants, *function.parameters), 0)
    for block in function.blocks:
        for op in block.ops:
            if op.name in CONSTANTS or table_name(op) not in CHEAP or not op.results:
                continue
            total = 1 + sum(cost.get(value, MOST_AGAIN) for value in op.operands)
            if total <= MOST_AGAIN:
                cost.update(dict.fromkeys(op.results, total))
    return {value for value in cost if value in definition and value not in constants}


def place_state(
    function: Function,
    steps: list[Step],
    first: list[int],
    definition: dict[int, Op],
    constants: dict[int, Op],
    again: set[int],
    live: set[int],
    loaded: dict[int, int],
    places: dict[int, int],
) -> Layout:
    """Offsets after the wave's record: pending masks, their bits, slots on 64-byte boundaries."""
    words = -(-len(steps) // 64)
    masks = size_of(Wave)
    words_at = masks + 8 * len(steps)
    top = -(-(words_at + 8 * words) // 64) * 64
    slots: dict[int, int] = {}
    for value in sorted(live):
        slots[value] = top
        top += sum(slot_bytes(kind) for kind in lane_types(function.types[value]))
    return Layout(function, steps, first, definition, constants, again, slots, loaded, places, masks, words_at, top)
