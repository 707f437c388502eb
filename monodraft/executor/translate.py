"""Turns a Program into one Python generator function over lanes: the reference engine's translation.

    def kernel(w, arguments): ...

`w` is the wave (`wave.py`), every SSA value a local variable `v<number>`, `m` the active mask (None: all lanes),
`pending` the blocks that other lanes wait at, with their masks. The lowest block runs first, which reconverges lanes
where structured code does. Yields: MEMORY before a memory operation or before a late load is waited for, BARRIER,
POLL around clock reads and sleeps, BACK at a loop's back edge.
"""

from __future__ import annotations

from functools import lru_cache
from types import CodeType
from typing import Any

import ml_dtypes
import numpy as np

from monodraft.executor import lanes, matrix, numerics, values
from monodraft.executor.errors import UnknownOperation, Where
from monodraft.executor.operations import find
from monodraft.executor.operations.table import Known, NotKnown, Use, key
from monodraft.executor.program import Function, Op, Program, Scalar, Target

MEMORY, BARRIER, POLL, BACK = 0, 1, 2, 3
BRANCHES = ("llvm.br", "llvm.cond_br", "llvm.switch", "llvm.return", "llvm.unreachable")
YIELDS_BEFORE = {"load": "yield MEMORY", "store": "yield MEMORY", "atomic": "yield MEMORY", "clock": "yield POLL"}


def namespace() -> dict[str, Any]:
    """What generated code may name."""
    names: dict[str, Any] = {"np": np, "MEMORY": MEMORY, "BARRIER": BARRIER, "POLL": POLL, "BACK": BACK}
    for module in (numerics, lanes, values):
        names.update({name: item for name, item in vars(module).items() if not name.startswith("_")})
    names.update(mfma_scaled=matrix.scaled, mfma_plain=matrix.plain)
    names.update(float8_e4m3fn=ml_dtypes.float8_e4m3fn, float8_e5m2=ml_dtypes.float8_e5m2)
    names.update(branch=branch, go=go, split=split, leave=leave)
    return names


# ---- divergence, called from generated code


def branch(condition: Any, m: Any) -> Any:
    """True or False where all active lanes agree, else (mask taken, mask not taken)."""
    if condition.__class__ is np.bool_:
        return bool(condition)
    taken = condition if m is None else condition & m
    if not taken.any():
        return False
    rest = ~condition if m is None else m & ~condition
    return (taken, rest) if rest.any() else True


def go(pending: dict[int, Any], target: int, m: Any) -> tuple[int, Any]:
    """All running lanes go to `target`: the next block and its mask."""
    if not pending:
        return target, m
    put(pending, target, m)
    return lowest(pending)


def split(pending: dict[int, Any], targets: list[tuple[int, Any]]) -> tuple[int, Any]:
    """Running lanes go to several blocks."""
    for target, mask in targets:
        put(pending, target, mask)
    return lowest(pending)


def leave(pending: dict[int, Any]) -> tuple[int, Any]:
    """The running lanes end; others go on."""
    return lowest(pending)


def put(pending: dict[int, Any], target: int, m: Any) -> None:
    waiting = pending.get(target)
    pending[target] = m if waiting is None else waiting | m


def lowest(pending: dict[int, Any]) -> tuple[int, Any]:
    block = min(pending)
    mask = pending.pop(block)
    return block, None if mask.all() else mask


# ---- translation


class Translation:
    """The generated function and how many operations of which kind each block has."""

    def __init__(self, source: str, kernel: Any, kinds: list[dict[str, int]]) -> None:
        self.source = source
        self.kernel = kernel
        self.kinds = kinds
        self.sizes = [sum(block.values()) for block in kinds]


_CACHE: dict[tuple[str, bool], Translation] = {}


def translate(program: Program, late: bool) -> Translation:
    """The program's function, cached by the module's text. Raises UnknownOperation naming every unknown operation."""
    cache_key = (program.fingerprint, late)
    if cache_key not in _CACHE:
        _CACHE[cache_key] = _Translator(program.kernel, late).run()
    return _CACHE[cache_key]


@lru_cache(maxsize=256)
def compiled(source: str, name: str) -> CodeType:
    return compile(source, f"<executor {name}>", "exec")


def bits(item: Any) -> Any:
    """What tells constants apart: NaN payloads and signs of zero included."""
    if isinstance(item, np.generic):
        return (item.dtype.str, item.tobytes())
    if isinstance(item, tuple):
        return tuple(bits(each) for each in item)
    return repr(item)


class _Translator:
    def __init__(self, function: Function, late: bool) -> None:
        self.function = function
        self.late = late
        self.names = namespace()
        self.constants: dict[int, str] = {}
        self.by_identity: dict[Any, str] = {}
        self.prelude: list[str] = []
        self.lines: list[str] = []
        self.defined_by: dict[int, Op] = {}
        self.home: dict[int, int] = {}
        self.used: set[int] = set()
        self.shared: set[int] = set()
        self.in_flight: set[int] = set()
        self.settled: set[int] = set()
        self.known: dict[int, Known] = {}
        self.kinds: list[dict[str, int]] = [{} for _ in function.blocks]

    def run(self) -> Translation:
        self.survey()
        self.check()
        body = self.function_text()
        source = "\n".join([*self.prelude, *body, ""])
        exec(compiled(source, self.function.name), self.names)
        return Translation(source, self.names["kernel"], self.kinds)

    # ---- what is used where

    def survey(self) -> None:
        for index, block in enumerate(self.function.blocks):
            for value in block.arguments:
                self.home[value] = index
            for op in block.ops:
                for value in op.results:
                    self.home[value] = index
                    self.defined_by[value] = op
        for index, block in enumerate(self.function.blocks):
            for op in block.ops:
                inputs = [*op.operands, *(each for target in op.targets for each in target.arguments)]
                self.used.update(inputs)
                self.shared.update(each for each in inputs if self.home[each] != index)

    def check(self) -> None:
        """Look every operation up; all unknown ones are reported together."""
        unknown: dict[str, list[str]] = {}
        for block in self.function.blocks:
            for op in block.ops:
                if op.name in BRANCHES:
                    continue
                entry = find(op)
                if entry is None:
                    unknown.setdefault(key(op), []).append(self.function.line(op))
                else:
                    self.known[id(op)] = entry
                    if entry.kind == "constant":
                        self.constants[op.results[0]] = str(self.emit(op, entry, []))
                    if self.late:
                        self.note_in_flight(op, entry)
        if unknown:
            self.refuse(unknown)

    def note_in_flight(self, op: Op, entry: Known) -> None:
        if entry.kind == "load" or (entry.renames and any(each in self.in_flight for each in op.operands)):
            self.in_flight.update(op.results)

    def refuse(self, unknown: dict[str, list[str]]) -> None:
        names = ", ".join(f"{name} ({len(lines)}x)" for name, lines in unknown.items())
        places = [Where(f"{name}: {lines[0]}") for name, lines in unknown.items()]
        raise UnknownOperation(
            f"{self.function.name} uses operations that the reference engine does not know: {names}", places
        )

    # ---- text

    def function_text(self) -> list[str]:
        blocks = self.function.blocks
        carried = sorted({value for block in blocks[1:] for value in block.arguments} | self.shared)
        names = [f"v{value}" for value in carried if not self.is_constant(value)]
        self.lines = ["def kernel(w, arguments):", " m = w.initial_mask; pending = {}; b = 0; counts = w.counts"]
        if names:
            self.lines.append(f" {' = '.join(names)} = None")
        for position, value in enumerate(blocks[0].arguments):
            self.lines.append(f" v{value} = arguments[{position}]")
        self.lines.append(" while True:")
        self.tree(0, len(blocks), "  ")
        return self.lines

    def is_constant(self, value: int) -> bool:
        op = self.defined_by.get(value)
        return op is not None and id(op) in self.known and self.known[id(op)].kind == "constant"

    def tree(self, low: int, high: int, indent: str) -> None:
        """Binary dispatch on the block number."""
        if high - low == 1:
            self.block(low, indent)
            return
        middle = (low + high) // 2
        self.lines.append(f"{indent}if b < {middle}:")
        self.tree(low, middle, indent + " ")
        self.lines.append(f"{indent}else:")
        self.tree(middle, high, indent + " ")

    def block(self, number: int, indent: str) -> None:
        self.settled = set()
        kinds: dict[str, int] = {}
        head = len(self.lines)
        for op in self.function.blocks[number].ops:
            if op.name in BRANCHES:
                self.end(number, op, indent)
                break
            entry = self.known[id(op)]
            if entry.kind == "constant":
                continue
            if op.results and not entry.effect and not any(each in self.used for each in op.results):
                continue
            if entry.kind not in ("rename", "hint"):
                kinds[entry.kind] = kinds.get(entry.kind, 0) + 1
            self.lines += [indent + line for line in self.operation(op, entry)]
        self.lines.insert(head, f"{indent}counts[{number}] += 1; w.ops += {sum(kinds.values())}")
        self.kinds[number] = kinds

    def operation(self, op: Op, entry: Known) -> list[str]:
        waiting = [each for each in op.operands if each in self.in_flight and each not in self.settled]
        if entry.renames and waiting:
            return self.renaming(op, entry)
        before = self.settle(waiting)
        if entry.kind in YIELDS_BEFORE:
            before.append(YIELDS_BEFORE[entry.kind])
        emitted = self.emit(op, entry, [self.name(each) for each in op.operands])
        if isinstance(emitted, list):
            return before + emitted
        if not op.results:
            return [*before, emitted]
        if entry.renames:
            self.settled.update(op.results)
        return before + self.assign(op, entry, emitted)

    def emit(self, op: Op, entry: Known, operands: list[str]) -> str | list[str]:
        try:
            return entry.emit(Use(op, self.function, operands, self.constant, self.value_of))
        except NotKnown as error:
            self.refuse({f"{key(op)}: {error}": [self.function.line(op)]})
            raise

    def renaming(self, op: Op, entry: Known) -> list[str]:
        """A renaming of loads in flight, put off by `rename`."""
        inputs = [f"a{index}" for index in range(len(op.operands))]
        expression = self.emit(op, entry, inputs)
        function = f"F{len(self.prelude)}"
        self.prelude.append(f"{function} = lambda {', '.join(inputs)}: {expression}")
        names = ", ".join(self.name(each) for each in op.operands)
        return self.assign(op, entry, f"rename({function}, {names})")

    def settle(self, waiting: list[int]) -> list[str]:
        lines = []
        for value in dict.fromkeys(waiting):
            self.settled.add(value)
            lines += [
                f"if v{value}.__class__ in IN_FLIGHT:",
                " yield MEMORY",
                f" v{value} = v{value}.settle()",
            ]
        return lines

    def assign(self, op: Op, entry: Known, expression: str) -> list[str]:
        value = op.results[0]
        if value in self.shared:
            return [f"t = {expression}", f"v{value} = t if m is None else merge(m, t, v{value})"]
        return [f"v{value} = {expression}"]

    def name(self, value: int) -> str:
        return self.constants.get(value, f"v{value}")

    def constant(self, item: Any) -> str:
        """A name for a constant object."""
        identity = (type(item), bits(item))
        if identity not in self.by_identity:
            self.by_identity[identity] = f"K{len(self.by_identity)}"
            self.names[self.by_identity[identity]] = item
        return self.by_identity[identity]

    def value_of(self, value: int) -> int | None:
        """The integer of a constant value, else None."""
        op = self.defined_by.get(value)
        if op is None or op.name != "llvm.mlir.constant" or not isinstance(self.function.types[value], Scalar):
            return None
        return int(self.names[self.name(value)])

    # ---- ends of blocks

    def end(self, number: int, op: Op, indent: str) -> None:
        inputs = [*op.operands, *(each for target in op.targets for each in target.arguments)]
        waiting = [each for each in inputs if each in self.in_flight and each not in self.settled]
        self.lines += [indent + line for line in self.settle(waiting)]
        if op.name == "llvm.br":
            self.jump(number, op.targets[0], indent)
        elif op.name == "llvm.cond_br":
            self.conditional(number, op, indent)
        elif op.name == "llvm.return":
            self.lines += [f"{indent}if not pending: return", f"{indent}b, m = leave(pending)"]
        elif op.name == "llvm.switch":
            self.refuse({"llvm.switch": [self.function.line(op)]})
        else:
            self.lines.append(f"{indent}raise RuntimeError('llvm.unreachable was reached')")

    def conditional(self, number: int, op: Op, indent: str) -> None:
        taken, other = op.targets
        add = self.lines.append
        add(f"{indent}q = branch({self.name(op.operands[0])}, m)")
        add(f"{indent}if q is True:")
        self.jump(number, taken, indent + " ")
        add(f"{indent}elif q is False:")
        self.jump(number, other, indent + " ")
        add(f"{indent}else:")
        if min(taken.block, other.block) <= number:
            add(f"{indent} yield BACK")
        for target, mask in ((taken, "q[0]"), (other, "q[1]")):
            for line in self.pass_arguments(target, mask):
                add(f"{indent} {line}")
        add(f"{indent} b, m = split(pending, [({taken.block}, q[0]), ({other.block}, q[1])])")

    def jump(self, number: int, target: Target, indent: str) -> None:
        """All running lanes go to one block."""
        add = self.lines.append
        if target.block <= number:
            add(f"{indent}yield BACK")
        if target.arguments:
            add(f"{indent}if m is None:")
            self.lines += [f"{indent} {line}" for line in self.pass_arguments(target, None)]
            add(f"{indent}else:")
            self.lines += [f"{indent} {line}" for line in self.pass_arguments(target, "m")]
        add(f"{indent}b, m = go(pending, {target.block}, m)")

    def pass_arguments(self, target: Target, mask: str | None) -> list[str]:
        """Block arguments, all at once."""
        if not target.arguments:
            return []
        left = [f"v{value}" for value in self.function.blocks[target.block].arguments]
        right = [self.name(value) for value in target.arguments]
        if mask is not None:
            right = [f"merge({mask}, {new}, {old})" for new, old in zip(right, left, strict=True)]
        return [f"{', '.join(left)} = {', '.join(right)}"]
