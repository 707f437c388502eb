"""Registration of operations and what their emitters may use."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from monodraft.executor.program import Function, Op, Scalar, Type, Vector, element


@dataclass(frozen=True)
class Known:
    """An operation: `emit` gives its expression (or statements), `kind` names its row in the instruction counts.

    `effect`: it does something besides giving a value, so it is emitted even if nobody uses the value.
    `renames`: it only renames registers and does not wait for loads in flight.
    """

    emit: Callable[[Use], str | list[str]]
    kind: str
    effect: bool = False
    renames: bool = False


KNOWN: dict[str, Known] = {}


def known(*names: str, kind: str, effect: bool = False, renames: bool = False) -> Callable[[Any], Any]:
    """Register an emitter under operation names (call_intrinsic ones as `llvm.amdgcn.NAME`, see `key`)."""

    def register(emit: Any) -> Any:
        for name in names:
            KNOWN[canonical(name)] = Known(emit, kind, effect, renames)
        return emit

    return register


def key(op: Op) -> str:
    """The name under which an operation is registered: intrinsics by their own name without type suffixes,
    rocdl operations under the intrinsic that they stand for."""
    name = op.name
    if name == "llvm.call_intrinsic":
        name = str(op.attributes["intrin"])
        if not name.startswith("llvm.amdgcn."):  # a generic intrinsic by its LLVM name: `llvm.exp2.f32`
            name = "llvm.intr." + re.sub(r"(\.(v\d+)?[ifp]\d+|\.bf16)+$", "", name.removeprefix("llvm."))
    elif name == "llvm.call":
        name = "call " + str(op.attributes["callee"]).lstrip("@")
    elif name.startswith("rocdl."):
        name = "llvm.amdgcn." + name.removeprefix("rocdl.").replace("_", ".")
    return canonical(name)


def canonical(name: str) -> str:
    """An intrinsic's name without type suffixes: `llvm.amdgcn.exp2.f32` is `llvm.amdgcn.exp2`."""
    if not name.startswith("llvm.amdgcn.") or "mfma" in name:
        return name.replace("_", ".") if name.startswith("llvm.amdgcn.") else name
    return re.sub(r"(\.(v\d+)?[ifp]\d+|\.bf16)+$", "", name).replace("_", ".")


def find(op: Op) -> Known | None:
    """The entry for an operation, or None."""
    return KNOWN.get(key(op))


class NotKnown(Exception):
    """Raised by an emitter for a variant that it does not know; the text says which."""


@dataclass
class Use:
    """One use of an operation, for its emitter: operand expressions, types, attributes, constants."""

    op: Op
    function: Function
    operands: list[str]
    constant: Callable[[Any], str]
    value_of: Callable[[int], Any]

    @property
    def attributes(self) -> dict[str, Any]:
        return self.op.attributes

    @property
    def result(self) -> Type:
        return self.function.types[self.op.results[0]]

    def kind(self, index: int) -> Type:
        """Type of operand `index`."""
        return self.function.types[self.op.operands[index]]

    def scalar(self, index: int | None = None) -> str:
        """Element type name of operand `index`, or of the result: "i32", "f32", "ptr"."""
        kind = element(self.result if index is None else self.kind(index))
        return kind.name if isinstance(kind, Scalar) else "ptr"

    def literal(self, index: int) -> int:
        """Operand `index` as a compile-time constant. Raises NotKnown where it is not one."""
        value = self.value_of(self.op.operands[index])
        if value is None:
            raise NotKnown(f"operand {index} is not a constant")
        return int(value)

    def elementwise(self, expression: Callable[..., str]) -> str:
        """`expression` of the operands, over the elements of a vector result."""
        if not isinstance(self.result, Vector):
            return expression(*self.operands)
        parts = []
        for index in range(self.result.count):
            inputs = [
                f"{name}[{index}]" if isinstance(self.kind(position), Vector) else name
                for position, name in enumerate(self.operands)
            ]
            parts.append(expression(*inputs))
        return f"({', '.join(parts)},)"
