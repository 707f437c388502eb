"""Reads an MLIR module (FlyDSL's last stage before LLVM) into a `Program`. The only file that walks MLIR objects.

Traps of the bindings, learned the hard way: FlyDSL's value casters overload `==` so that comparing two values emits
operations; values are therefore keyed by `ir.Value.__hash__`. The context must stay alive while its operations are
walked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import flydsl
import numpy as np
from flydsl._mlir import ir

from monodraft.executor.errors import BadLaunch, UnknownOperation, Where
from monodraft.executor.program import (
    LDS_SPACE,
    Array,
    Block,
    Function,
    Op,
    Parameter,
    Place,
    Pointer,
    Program,
    Scalar,
    Struct,
    Target,
    TensorLayout,
    Type,
    Vector,
    Void,
    leaves,
)

FLYDSL = os.path.dirname(os.path.abspath(flydsl.__file__))
BELOW_KERNEL = "kernel_function.py"
TERMINATORS = ("llvm.br", "llvm.cond_br", "llvm.switch")
SCALARS = ("i1", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64")


@dataclass(frozen=True)
class Traced:
    """What the tracer knows of a launcher parameter: `values` is how many IR values it becomes."""

    name: str
    values: int = 1
    tensor: TensorLayout | None = None


def read_program(module: Any, traced: Sequence[Traced] | None = None) -> Program:
    """The one kernel of `module` and the host function that launches it.

    `traced` are the launcher's parameters; without them the host function's own arguments are named arg0, arg1, ...
    """
    kernels: list[Any] = []
    hosts: list[Any] = []
    symbols: list[Any] = []
    for top in module.body.operations:
        if top.operation.name == "gpu.module":
            for operation in top.regions[0].blocks[0].operations:
                if operation.operation.name == "llvm.mlir.global":
                    symbols.append(operation)
                elif operation.operation.name == "llvm.func" and "gpu.kernel" in operation.attributes:
                    kernels.append(operation)
        elif top.operation.name == "llvm.func" and len(top.regions[0].blocks):
            hosts.append(top)
    if len(kernels) != 1 or len(hosts) != 1:
        raise BadLaunch(
            f"a launcher must launch exactly one kernel: found {len(kernels)} kernels and {len(hosts)} launchers; "
            "write one @flyc.jit launcher for each kernel and pass them as separate launches"
        )
    lds, lds_bytes = lay_out_lds(symbols)
    kernel = read_function(kernels[0], lds)
    host = read_function(hosts[0], {})
    launches = [op for block in host.blocks for op in block.ops if op.name == "gpu.launch_func"]
    if len(launches) != 1:
        raise BadLaunch(f"a launcher must launch exactly one kernel, once: {host.name} launches {len(launches)} times")
    return Program(
        name=kernel.name,
        kernel=kernel,
        host=host,
        parameters=name_parameters(host, traced),
        lds=lds,
        lds_bytes=lds_bytes,
        known_block=known_block(kernels[0]),
        text=module.operation.get_asm(enable_debug_info=False),
    )


def name_parameters(host: Function, traced: Sequence[Traced] | None) -> tuple[Parameter, ...]:
    """Launcher parameters over the host function's arguments."""
    types = list(host.parameter_types)
    result, position = [], 0
    for each in traced or [Traced(f"arg{index}") for index in range(len(types) - count_streams(host))]:
        end = position + each.values
        result.append(Parameter(each.name, tuple(types[position:end]), each.tensor))
        position = end
    return tuple(result)


def count_streams(host: Function) -> int:
    """Trailing parameters that are a stream: host pointers that no kernel argument comes from."""
    used = {value for block in host.blocks for op in block.ops for value in op.operands}
    count = 0
    for value in reversed(host.parameters):
        if value in used or host.types[value] != Pointer(0):
            break
        count += 1
    return count


def lay_out_lds(symbols: Sequence[Any]) -> tuple[dict[str, int], int]:
    """Byte offsets of the static LDS arrays, in order of declaration at their alignment."""
    offsets: dict[str, int] = {}
    end = 0
    for symbol in symbols:
        name = plain(symbol.attributes["sym_name"])
        space = plain(symbol.attributes["addr_space"]) if "addr_space" in symbol.attributes else 0
        if space != LDS_SPACE:
            raise UnknownOperation(f"llvm.mlir.global @{name} in address space {space}: only LDS globals are known")
        step = plain(symbol.attributes["alignment"]) if "alignment" in symbol.attributes else 16
        end = -(-end // step) * step
        offsets[name] = end
        end += parse_type(str(symbol.attributes["global_type"].value)).bytes
    return offsets, end


def known_block(kernel: Any) -> tuple[int, int, int] | None:
    """The block size the kernel was compiled for, when it was fixed."""
    if "gpu.known_block_size" not in kernel.attributes:
        return None
    x, y, z = plain(kernel.attributes["gpu.known_block_size"])
    return x, y, z


def read_function(function: Any, lds: dict[str, int]) -> Function:
    """Number the values and blocks of one llvm.func and read its operations."""
    blocks = list(function.regions[0].blocks)
    numbers: dict[int, int] = {}
    types: list[Type] = []
    for value in all_values(blocks):
        numbers[ir.Value.__hash__(value)] = len(types)
        types.append(parse_type(str(value.type)))
    reader = _Reader(numbers, {block: index for index, block in enumerate(blocks)}, lds)
    read = [
        Block(tuple(reader.number(each) for each in block.arguments), [reader.op(op) for op in block.operations])
        for block in blocks
    ]
    return Function(plain(function.attributes["sym_name"]), read, types, list(reader.places))


def all_values(blocks: Sequence[Any]) -> Iterator[Any]:
    for block in blocks:
        yield from block.arguments
        for operation in block.operations:
            yield from operation.results


class _Reader:
    """Turns MLIR operations into `Op`s, sharing source places."""

    def __init__(self, numbers: dict[int, int], blocks: dict[Any, int], lds: dict[str, int]) -> None:
        self.numbers = numbers
        self.blocks = blocks
        self.lds = lds
        self.places: dict[Place, int] = {}

    def number(self, value: Any) -> int:
        return self.numbers[ir.Value.__hash__(value)]

    def op(self, operation: Any) -> Op:
        name = operation.operation.name
        attributes = {key: plain(operation.attributes[key]) for key in attribute_names(operation)}
        operands = tuple(self.number(value) for value in operation.operands)
        results = tuple(self.number(value) for value in operation.results)
        place = self.places.setdefault(place_of(operation.location), len(self.places))
        targets: tuple[Target, ...] = ()
        if name in TERMINATORS:
            operands, targets = self.split_targets(name, operation, operands, attributes)
        elif name == "llvm.mlir.constant":
            attributes["value"] = constant_bits(
                operation.attributes["value"], parse_type(str(operation.results[0].type))
            )
        elif name == "llvm.mlir.addressof":
            symbol = attributes["global_name"]
            if symbol not in self.lds:
                raise UnknownOperation(f"llvm.mlir.addressof @{symbol}: not an LDS array of the kernel")
            attributes["offset"] = self.lds[symbol]
        elif name == "gpu.launch_func":
            operands = launch_operands(operands, attributes["operandSegmentSizes"])
        return Op(name, operands, results, attributes, place, targets)

    def split_targets(
        self, name: str, operation: Any, operands: tuple[int, ...], attributes: dict[str, Any]
    ) -> tuple[tuple[int, ...], tuple[Target, ...]]:
        """Separate a branch's own operands from the arguments of its successors."""
        successors = [self.blocks[block] for block in operation.successors]
        if name == "llvm.br":
            return (), (Target(successors[0], operands),)
        if name == "llvm.cond_br":
            _, yes, _ = attributes["operandSegmentSizes"]
            taken, other = operands[1 : 1 + yes], operands[1 + yes :]
            return operands[:1], (Target(successors[0], taken), Target(successors[1], other))
        _, default, _ = attributes["operandSegmentSizes"]
        targets = [Target(successors[0], operands[1 : 1 + default])]
        position = 1 + default
        for block, count in zip(successors[1:], attributes["case_operand_segments"], strict=True):
            targets.append(Target(block, operands[position : position + count]))
            position += count
        return operands[:1], tuple(targets)


def launch_operands(operands: tuple[int, ...], sizes: Sequence[int]) -> tuple[int, ...]:
    """gpu.launch_func as grid x, y, z, block x, y, z, dynamic LDS (-1: none), kernel arguments."""
    groups, position = [], 0
    for size in sizes:
        groups.append(operands[position : position + size])
        position += size
    if groups[7] or groups[8] or groups[9]:
        raise UnknownOperation("gpu.launch_func with a cluster size")
    shared = groups[10] or (-1,)
    return (*(group[0] for group in groups[1:7]), *shared, *groups[11])


def attribute_names(operation: Any) -> list[str]:
    return [getattr(each, "name", each) for each in operation.attributes]


def place_of(location: Any) -> Place:
    """Source frames of an MLIR location, innermost first, up to the kernel's body; FlyDSL's own frames are dropped."""
    return parse_place(str(location))


@lru_cache(maxsize=65536)
def parse_place(text: str) -> Place:
    """A location's text as frames."""
    frames = []
    for file, line in re.findall(r'"([^"]*)":(\d+):\d+', text):
        if file.startswith(FLYDSL):
            if file.endswith(BELOW_KERNEL):
                break  # what called the kernel's body: the launcher, the tracer, the caller of `lower`
        elif file != "-":
            frames.append((file, int(line)))
    return Place(tuple(frames))


def plain(attribute: Any) -> Any:
    """An MLIR attribute as plain Python."""
    text = str(attribute)
    if isinstance(attribute, ir.BoolAttr):
        return bool(attribute.value)
    if isinstance(attribute, ir.IntegerAttr | ir.FloatAttr | ir.StringAttr | ir.FlatSymbolRefAttr):
        return attribute.value
    if isinstance(attribute, ir.TypeAttr):
        kind = str(attribute.value)
        return kind if kind.startswith("!llvm.func") else parse_type(kind)
    if text.startswith("array<"):
        return tuple(int(each) for each in re.findall(r"-?\d+", text.partition(":")[2]))
    if text == "unit":
        return True
    matrix = re.fullmatch(r"#rocdl<matrix_format (\w+)>", text)
    return matrix[1] if matrix else text


def constant_bits(attribute: Any, kind: Type) -> tuple[int, ...]:
    """The bit patterns of a constant, one per component."""
    parts = leaves(kind)
    if isinstance(attribute, ir.DenseElementsAttr):
        if attribute.is_splat:
            values = [attribute.get_splat_value().value] * len(parts)
        else:
            values = list(np.array(attribute).reshape(-1))
    elif isinstance(attribute, ir.BoolAttr):
        values = [int(bool(attribute.value))]
    else:
        values = [attribute.value]
    return tuple(bits_of(value, part) for value, part in zip(values, parts, strict=True))


def bits_of(value: Any, kind: Scalar | Pointer) -> int:
    """One component's bit pattern. f32 and narrower round once from the attribute's double."""
    if isinstance(kind, Pointer) or not kind.is_float:
        width = 64 if isinstance(kind, Pointer) else kind.bits
        return int(value) & ((1 << width) - 1)
    if kind.name == "bf16":
        import ml_dtypes

        return int(np.array(value, ml_dtypes.bfloat16).view(np.uint16))
    if kind.name == "f16":
        return int(np.array(value, np.float16).view(np.uint16))
    if kind.name == "f32":
        return int(np.array(value, np.float32).view(np.uint32))
    return int(np.array(value, np.float64).view(np.uint64))


def parse_type(text: str) -> Type:
    """A type of the llvm dialect. Raises UnknownOperation for one that no engine knows."""
    text = text.strip().removeprefix("!llvm.")
    if text in SCALARS:
        return Scalar(text)
    if text in ("i96", "i128", "i256"):
        return Vector(int(text[1:]) // 32, Scalar("i32"))
    if text == "void":
        return Void()
    if match := re.fullmatch(r"vector<(\d+)x(.+)>", text):
        inner = parse_type(match[2])
        if isinstance(inner, Scalar | Pointer):
            return Vector(int(match[1]), inner)
    if match := re.fullmatch(r"(?:ptr)?<(\d+)>|ptr", text):
        return Pointer(int(match[1] or 0))
    if match := re.fullmatch(r"array<(\d+) x (.+)>", text):
        return Array(int(match[1]), parse_type(match[2]))
    if match := re.fullmatch(r"struct<(packed )?\((.*)\)>", text):
        return Struct(tuple(parse_type(each) for each in split_top(match[2])), bool(match[1]))
    raise UnknownOperation(f"type {text}", [Where()])


def split_top(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth, current = [], 0, ""
    for char in text:
        depth += (char in "<(") - (char in ">)")
        if char == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += char
    return [*parts, current] if current.strip() else parts
