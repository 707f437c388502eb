"""Writes LLVM-dialect text over 64-lane vectors: constants, casts and the few shapes that every table needs.

A value of the kernel is a list of lane vectors, one for each scalar component of its type (`program.leaves`): the
inserting and extracting that FlyDSL's code is full of costs nothing then. Component types, by kernel type:

| kernel | lane vector |
|---|---|
| i1, i8, i16, i32, i64, f32, f64 | the same, 64 times |
| f16 | 64 x f16 |
| bf16 | 64 x i16: the host's bf16 instructions flush subnormals, the GPU's do not |
| pointer | 64 x i64, LDS pointers too (offset into the CTA's LDS); a buffer resource is two: base and size |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from monodraft.executor.program import BUFFER_SPACE, Pointer, Scalar, Type, leaves

I1, I8, I16, I32, I64, I128 = "i1", "i8", "i16", "i32", "i64", "i128"
F16, F32, F64 = "f16", "f32", "f64"
BYTES = {I1: 8, I8: 1, I16: 2, I32: 4, I64: 8, F16: 2, F32: 4, F64: 8}
"""Bytes a lane takes in a wave's state. An i1 vector is stored as one 64-bit mask; see `slot_bytes`."""


def lane_types(kind: Type) -> list[str]:
    """The lane-vector element types that make up a value of a kernel type."""
    result: list[str] = []
    for leaf in leaves(kind):
        if isinstance(leaf, Pointer):
            result += [I64, I64] if leaf.space == BUFFER_SPACE else [I64]
        else:
            result.append(lane_type(leaf))
    return result


def lane_type(leaf: Type) -> str:
    """The lane-vector element type of one scalar."""
    if isinstance(leaf, Pointer):
        return I64
    assert isinstance(leaf, Scalar), leaf
    return I16 if leaf.name == "bf16" else leaf.name


def slot_bytes(kind: str) -> int:
    """Bytes that 64 lanes of an element type take in a wave's state."""
    return 64 if kind == I1 else -(-64 * BYTES[kind] // 64) * 64


def vec(kind: str) -> str:
    """The vector type of 64 lanes."""
    return f"vector<64x{kind}>"


class Emit:
    """A growing function body. Methods return the SSA name of what they emitted."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.count = 0
        self._constants: dict[tuple[str, str], str] = {}

    # -- plain text

    def emit(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def value(self, expression: str) -> str:
        self.count += 1
        name = f"%t{self.count}"
        self.lines.append(f"  {name} = {expression}")
        return name

    def fresh(self, stem: str) -> str:
        """A new block label."""
        self.count += 1
        return f"^{stem}{self.count}"

    def start_block(self, header: str) -> None:
        """Open a block that the values of other blocks do not reach: shared constants are forgotten."""
        self.lines.append(f"{header}:")
        self._constants.clear()

    def continue_block(self, label: str) -> None:
        """Open a block that is dominated by the one before it."""
        self.lines.append(f"{label}:")

    # -- scalars

    def scalar(self, number: int, kind: str = I64) -> str:
        """An integer constant."""
        return self._constant(f"{signed(number, kind)} : {kind}", kind)

    def _constant(self, text: str, kind: str) -> str:
        key = (text, kind)
        if key not in self._constants:
            self._constants[key] = self.value(f"llvm.mlir.constant({text}) : {kind}")
        return self._constants[key]

    def binary(self, operation: str, a: str, b: str, kind: str = I64) -> str:
        return self.value(f"llvm.{operation} {a}, {b} : {kind}")

    def cast(self, operation: str, x: str, source: str, target: str) -> str:
        return self.value(f"llvm.{operation} {x} : {source} to {target}")

    def compare(self, predicate: str, a: str, b: str, kind: str = I64) -> str:
        return self.value(f'llvm.icmp "{predicate}" {a}, {b} : {kind}')

    def at(self, base: str, offset: int) -> str:
        """A pointer `offset` bytes past the pointer `base`."""
        return self.value(f"llvm.getelementptr {base}[{offset}] : (!llvm.ptr) -> !llvm.ptr, i8") if offset else base

    def load(self, kind: str, base: str, offset: int, align: int = 8) -> str:
        pointer = self.at(base, offset)
        return self.value(f"llvm.load {pointer} {{alignment = {align} : i64}} : !llvm.ptr -> {kind}")

    def store(self, x: str, kind: str, base: str, offset: int, align: int = 8) -> None:
        pointer = self.at(base, offset)
        self.emit(f"llvm.store {x}, {pointer} {{alignment = {align} : i64}} : {kind}, !llvm.ptr")

    def address(self, base: str, offset: int) -> str:
        """The address of a place in a record, as an integer."""
        return self.cast("ptrtoint", self.at(base, offset), "!llvm.ptr", I64)

    def call(self, function: str, *arguments: str) -> str:
        """Call a function of the runtime: integers in, an integer out."""
        kinds = ", ".join([I64] * len(arguments))
        return self.value(f"llvm.call @{function}({', '.join(arguments)}) : ({kinds}) -> i64")

    # -- lane vectors

    def splat_bits(self, bits: int, kind: str) -> str:
        """The same bit pattern in all lanes."""
        if kind == I1:
            return self._constant(f"dense<{'true' if bits & 1 else 'false'}> : vector<64xi1>", vec(I1))
        if kind in (F16, F32, F64):
            text = f"dense<0x{bits:0{2 * BYTES[kind]}X}> : {vec(kind)}"
        else:
            text = f"dense<{signed(bits, kind)}> : {vec(kind)}"
        return self._constant(text, vec(kind))

    def splat(self, x: str, kind: str) -> str:
        """A scalar in all lanes."""
        undefined = self.value(f"llvm.mlir.undef : {vec(kind)}")
        zero = self.scalar(0, I32)
        first = self.value(f"llvm.insertelement {x}, {undefined}[{zero} : i32] : {vec(kind)}")
        return self.shuffle(first, first, [0] * 64, kind)

    def shuffle(self, a: str, b: str, lanes: Iterable[int], kind: str) -> str:
        """Lane i of the result is lane `lanes[i]` of a (0-63) or of b (64-127)."""
        mask = ", ".join(str(int(lane)) for lane in lanes)
        return self.value(f"llvm.shufflevector {a}, {b} [{mask}] : {vec(kind)}")

    def lanes(self, operation: str, kind: str, *x: str) -> str:
        """An elementwise llvm operation."""
        return self.value(f"llvm.{operation} {', '.join(x)} : {vec(kind)}")

    def intrinsic(self, name: str, kind: str, *x: str) -> str:
        """An elementwise llvm.intr operation whose operands and result have one type."""
        kinds = ", ".join([vec(kind)] * len(x))
        return self.value(f'"llvm.intr.{name}"({", ".join(x)}) : ({kinds}) -> {vec(kind)}')

    def convert(self, operation: str, x: str, source: str, target: str) -> str:
        return x if source == target else self.cast(operation, x, vec(source), vec(target))

    def bits_as(self, x: str, source: str, target: str) -> str:
        return self.convert("bitcast", x, source, target)

    def test(self, predicate: str, a: str, b: str, kind: str) -> str:
        return self.value(f'llvm.icmp "{predicate}" {a}, {b} : {vec(kind)}')

    def float_test(self, predicate: str, a: str, b: str, kind: str) -> str:
        return self.value(f'llvm.fcmp "{predicate}" {a}, {b} : {vec(kind)}')

    def select(self, mask: str, a: str, b: str, kind: str) -> str:
        return self.value(f"llvm.select {mask}, {a}, {b} : vector<64xi1>, {vec(kind)}")

    def mask_bits(self, mask: str) -> str:
        """A lane mask as a 64-bit integer."""
        return self.cast("bitcast", mask, vec(I1), I64)

    def mask_lanes(self, bits: str) -> str:
        """A 64-bit integer as a lane mask."""
        return self.cast("bitcast", bits, I64, vec(I1))

    def lane(self, x: str, index: str, kind: str) -> str:
        """One lane, at an i64 index."""
        return self.value(f"llvm.extractelement {x}[{index} : i64] : {vec(kind)}")

    def chain(self, operation: str, kind: str, parts: Sequence[str]) -> str:
        """Fold parts from the left."""
        result = parts[0]
        for part in parts[1:]:
            result = self.lanes(operation, kind, result, part)
        return result


def signed(number: int, kind: str) -> int:
    """The signed reading of an integer's low bits, as MLIR prints constants."""
    width = int(kind[1:])
    number &= (1 << width) - 1
    return number - (1 << width) if number >> (width - 1) and width > 1 else number
