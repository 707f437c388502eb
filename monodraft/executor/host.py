"""Evaluates the launcher's host function on plain integers: grid, block, dynamic LDS and the kernel's arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from monodraft.executor.errors import BadLaunch, UnknownOperation, Where
from monodraft.executor.program import Function, Op, Pointer, Program, Scalar, Type, leaves


@dataclass(frozen=True)
class HostResult:
    """What gpu.launch_func was given. `arguments` are bit patterns, one per scalar leaf of the kernel's parameters."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_lds: int
    arguments: tuple[int, ...]


def width(kind: Type) -> int:
    """Bits of a scalar or pointer."""
    return kind.bits if isinstance(kind, Scalar) else 64


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def divide(a: int, b: int) -> int:
    """C division, truncating."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


SIGNED: dict[str, Callable[[int, int], int]] = {
    "llvm.sdiv": divide,
    "llvm.srem": lambda a, b: a - divide(a, b) * b,
    "llvm.ashr": lambda a, b: a >> b,
    "llvm.intr.smax": max,
    "llvm.intr.smin": min,
}
UNSIGNED: dict[str, Callable[[int, int], int]] = {
    "llvm.add": lambda a, b: a + b,
    "llvm.sub": lambda a, b: a - b,
    "llvm.mul": lambda a, b: a * b,
    "llvm.and": lambda a, b: a & b,
    "llvm.or": lambda a, b: a | b,
    "llvm.xor": lambda a, b: a ^ b,
    "llvm.shl": lambda a, b: a << b,
    "llvm.lshr": lambda a, b: a >> b,
    "llvm.udiv": lambda a, b: a // b,
    "llvm.urem": lambda a, b: a % b,
    "llvm.intr.umax": max,
    "llvm.intr.umin": min,
}
COMPARE: list[Callable[[int, int], bool]] = [
    lambda a, b: a == b,
    lambda a, b: a != b,
    lambda a, b: a < b,
    lambda a, b: a <= b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
]


def evaluate_host(program: Program, words: Sequence[int]) -> HostResult:
    """Run the host function on the launcher's argument words (one per scalar leaf; missing ones, the stream, are 0)."""
    return _Host(program.host).run(list(words))


class _Host:
    """Values are lists of bit patterns, one per scalar leaf."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.values: dict[int, list[int]] = {}

    def run(self, words: list[int]) -> HostResult:
        for value in self.function.parameters:
            count = len(leaves(self.function.types[value]))
            self.values[value] = (words[:count] + [0] * count)[:count]
            words = words[count:]
        block, launch = 0, None
        for _ in range(100_000):
            ops = self.function.blocks[block].ops
            for op in ops[:-1]:
                if op.name == "gpu.launch_func":
                    launch = self.launched(op)
                else:
                    self.execute(op)
            last = ops[-1]
            if last.name == "llvm.return":
                break
            target = last.targets[self.choose(last)]
            moved = [self.values[each] for each in target.arguments]
            self.values.update(zip(self.function.blocks[target.block].arguments, moved, strict=True))
            block = target.block
        if launch is None:
            raise BadLaunch(
                f"{self.function.name}: the launcher returned without launching a kernel for these arguments"
            )
        return launch

    def choose(self, op: Op) -> int:
        if op.name == "llvm.br":
            return 0
        if op.name == "llvm.cond_br":
            return 0 if self.values[op.operands[0]][0] & 1 else 1
        raise self.unknown(op)

    def launched(self, op: Op) -> HostResult:
        sizes = [signed(self.values[each][0], width(self.function.types[each])) for each in op.operands[:6]]
        shared = 0 if op.operands[6] == -1 else self.values[op.operands[6]][0]
        arguments = tuple(word for each in op.operands[7:] for word in self.values[each])
        return HostResult((sizes[0], sizes[1], sizes[2]), (sizes[3], sizes[4], sizes[5]), shared, arguments)

    def execute(self, op: Op) -> None:
        kind = self.function.types[op.results[0]] if op.results else None
        if kind is None:
            raise self.unknown(op)
        self.values[op.results[0]] = self.result(op, kind)

    def result(self, op: Op, kind: Type) -> list[int]:
        name, attributes = op.name, op.attributes
        inputs = [self.values[each] for each in op.operands]
        if name == "llvm.mlir.constant":
            return list(attributes["value"])
        if name in ("llvm.mlir.poison", "llvm.mlir.undef", "llvm.mlir.zero"):
            return [0] * len(leaves(kind))
        if name in ("llvm.extractvalue", "llvm.insertvalue"):
            return self.aggregate(op, inputs)
        if name == "llvm.select":
            return inputs[1] if inputs[0][0] & 1 else inputs[2]
        source = self.function.types[op.operands[0]]
        bits = width(source)
        scalars = [each[0] for each in inputs]
        if isinstance(kind, Scalar | Pointer):
            limit = (1 << width(kind)) - 1
            if name in SIGNED:
                return [SIGNED[name](*(signed(each, bits) for each in scalars)) & limit]
            if name in UNSIGNED:
                return [UNSIGNED[name](*scalars) & limit]
            if name == "llvm.sext":
                return [signed(scalars[0], bits) & limit]
            if name in (
                "llvm.zext",
                "llvm.trunc",
                "llvm.ptrtoint",
                "llvm.inttoptr",
                "llvm.addrspacecast",
                "llvm.bitcast",
            ):
                return [scalars[0] & limit]
            if name == "llvm.icmp":
                order = attributes["predicate"]
                pair = scalars if order >= 6 else [signed(each, bits) for each in scalars]
                return [int(COMPARE[order if order < 6 else order - 4](*pair))]
        raise self.unknown(op)

    def aggregate(self, op: Op, inputs: list[list[int]]) -> list[int]:
        """extractvalue and insertvalue on the flattened leaves."""
        kind: Any = self.function.types[op.operands[0]]
        start = 0
        for index in op.attributes["position"]:
            fields = kind.fields if hasattr(kind, "fields") else (kind.element,) * kind.count
            start += sum(len(leaves(each)) for each in fields[:index])
            kind = fields[index]
        stop = start + len(leaves(kind))
        if op.name == "llvm.extractvalue":
            return inputs[0][start:stop]
        return [*inputs[0][:start], *inputs[1], *inputs[0][stop:]]

    def unknown(self, op: Op) -> UnknownOperation:
        line = self.function.line(op)
        return UnknownOperation(f"{op.name} in the launcher's host code is not known", [Where(line)])
