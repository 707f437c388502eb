"""A lowered kernel as plain data: what every engine reads.

A `Program` is one GPU function after FlyDSL's own pipeline, just before LLVM: only `llvm.*` and `rocdl.*` operations,
a control-flow graph of blocks with arguments, values numbered densely. Blocks are in program order, so running the
lowest pending block first reconverges lanes where structured code does. Nothing here depends on MLIR; a Program can
be pickled and is the unit of caching (`fingerprint`).
"""

from __future__ import annotations

import hashlib
import linecache
import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

LDS_SPACE = 3
BUFFER_SPACE = 8
# Address spaces of 32-bit pointers: LDS, constant 32-bit, private.
NARROW_SPACES = frozenset({2, 3, 5, 6})


@dataclass(frozen=True)
class Scalar:
    """`name` is i1, i8, i16, i32, i64, f16, bf16, f32 or f64."""

    name: str

    @property
    def bits(self) -> int:
        return 16 if self.name == "bf16" else int(self.name[1:])

    @property
    def bytes(self) -> int:
        return max(self.bits // 8, 1)

    @property
    def is_float(self) -> bool:
        return self.name[0] != "i"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Pointer:
    """An address: `space` 0 generic, 1 global, 3 LDS, 4 constant, 8 buffer resource (base, size)."""

    space: int

    @property
    def bytes(self) -> int:
        return 16 if self.space == BUFFER_SPACE else 4 if self.space in NARROW_SPACES else 8

    def __str__(self) -> str:
        return f"ptr<{self.space}>"


@dataclass(frozen=True)
class Vector:
    """`count` elements. i96, i128 and i256, which are only loaded, stored and cast, appear as vectors of i32."""

    count: int
    element: Scalar | Pointer

    @property
    def bytes(self) -> int:
        return self.count * self.element.bytes

    def __str__(self) -> str:
        return f"vector<{self.count}x{self.element}>"


@dataclass(frozen=True)
class Array:
    """`count` elements, in memory or as an aggregate value."""

    count: int
    element: Type

    @property
    def bytes(self) -> int:
        return self.count * self.element.bytes

    def __str__(self) -> str:
        return f"array<{self.count} x {self.element}>"


@dataclass(frozen=True)
class Struct:
    """An aggregate with C layout (`packed` without padding)."""

    fields: tuple[Type, ...]
    packed: bool = False

    @property
    def bytes(self) -> int:
        end = self.offset(len(self.fields))
        return end if self.packed else -(-end // alignment(self)) * alignment(self)

    def offset(self, index: int) -> int:
        """Byte offset of field `index` (or the end, unpadded)."""
        position = 0
        for number, each in enumerate(self.fields[: index + 1]):
            if not self.packed:
                position = -(-position // alignment(each)) * alignment(each)
            if number == index:
                return position
            position += each.bytes
        return position

    def __str__(self) -> str:
        return f"struct<({', '.join(map(str, self.fields))})>"


@dataclass(frozen=True)
class Void:
    """No value."""

    bytes: int = 0

    def __str__(self) -> str:
        return "void"


Type = Scalar | Pointer | Vector | Array | Struct | Void


def alignment(kind: Type) -> int:
    """Natural alignment in bytes."""
    if isinstance(kind, Struct):
        return 1 if kind.packed else max((alignment(each) for each in kind.fields), default=1)
    if isinstance(kind, Array):
        return alignment(kind.element)
    return max(kind.bytes, 1)


def leaves(kind: Type) -> list[Scalar | Pointer]:
    """The scalar components of a type, in order."""
    if isinstance(kind, Vector | Array):
        return leaves(kind.element) * kind.count
    if isinstance(kind, Struct):
        return [leaf for each in kind.fields for leaf in leaves(each)]
    return [] if isinstance(kind, Void) else [kind]


def element(kind: Type) -> Type:
    """The element of a vector, the type itself otherwise."""
    return kind.element if isinstance(kind, Vector) else kind


@dataclass(frozen=True)
class Place:
    """A source position with its callers: `frames` are (file, line), the innermost first."""

    frames: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        if not self.frames:
            return "unknown line"
        names = [f"{os.path.basename(file)}:{line}" for file, line in self.frames]
        return names[0] + "".join(f" called from {name}" for name in names[1:])

    @property
    def text(self) -> str:
        """The source text of the innermost line, empty where the file is not at hand."""
        return linecache.getline(*self.frames[0]).strip() if self.frames else ""


@dataclass(frozen=True)
class Target:
    """A successor: the block and the values for its arguments."""

    block: int
    arguments: tuple[int, ...] = ()


@dataclass
class Op:
    """One operation. `operands` and `results` are value numbers; `place` indexes `Program.places`.

    `attributes` holds plain Python: ints, bools, strings, tuples of ints, types. Normalised ones:
    llvm.mlir.constant `value`: bit pattern(s) as unsigned ints, one per component, in a tuple;
    llvm.mlir.addressof `offset`: byte offset in the CTA's LDS; loads, stores, atomics `ordering` and `syncscope`
    ("" is system scope); branches keep their block arguments in `targets`, not in `operands`.
    """

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    attributes: dict[str, Any]
    place: int
    targets: tuple[Target, ...] = ()


@dataclass
class Block:
    """Operations; the last one ends it (llvm.br, llvm.cond_br, llvm.switch, llvm.return, llvm.unreachable)."""

    arguments: tuple[int, ...]
    ops: list[Op]


@dataclass
class Function:
    """Blocks over numbered values: `types[v]` is the type of value v; block 0's arguments are the parameters."""

    name: str
    blocks: list[Block]
    types: list[Type]
    places: list[Place]

    @property
    def parameters(self) -> tuple[int, ...]:
        return self.blocks[0].arguments

    @property
    def parameter_types(self) -> tuple[Type, ...]:
        return tuple(self.types[value] for value in self.parameters)

    def line(self, op: Op) -> str:
        """The source line of an operation, for messages."""
        return str(self.places[op.place])


@dataclass(frozen=True)
class TensorLayout:
    """What a launcher was traced for: element type, and per dimension a size and stride (None where it is dynamic)."""

    dtype: str
    shape: tuple[int | None, ...]
    strides: tuple[int | None, ...]


@dataclass(frozen=True)
class Parameter:
    """A parameter of the launcher: `types` are the IR values that it becomes; `tensor` is set for an fx.Tensor.

    A tensor becomes its address and, where the layout is dynamic, a packed struct of the dynamic sizes and strides.
    """

    name: str
    types: tuple[Type, ...]
    tensor: TensorLayout | None = None


@dataclass
class Program:
    """A kernel, its static LDS, and the host function that computes grid, block and arguments.

    `host` takes the launcher's parameters and ends in one `gpu.launch_func` whose operands are grid x, y, z,
    block x, y, z, the dynamic LDS bytes (a constant 0 where there is none) and the kernel's arguments.
    `lds` maps the names of static LDS arrays to byte offsets; `lds_bytes` is their total.
    `known_block` is the block size the kernel was compiled for, if fixed. `constants` are the positions of the
    launcher's compile-time parameters, which are baked in and have no `Parameter`.
    """

    name: str
    kernel: Function
    host: Function
    parameters: tuple[Parameter, ...]
    lds: dict[str, int] = field(default_factory=dict)
    lds_bytes: int = 0
    known_block: tuple[int, int, int] | None = None
    constants: tuple[int, ...] = ()
    text: str = ""

    @cached_property
    def fingerprint(self) -> str:
        """A key for caches of translated code: the module's text and the source lines it came from."""
        places = repr([place.frames for place in self.kernel.places])
        return hashlib.sha256((self.text + places).encode()).hexdigest()

    def count(self) -> int:
        """Operations in the kernel."""
        return sum(len(block.ops) for block in self.kernel.blocks)
