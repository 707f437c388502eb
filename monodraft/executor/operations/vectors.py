"""Vectors, structs and addresses: operations that rename registers or compute addresses."""

from __future__ import annotations

import numpy as np

from monodraft.executor.operations.table import NotKnown, Use, known
from monodraft.executor.program import Array, Struct, Vector

DYNAMIC = -2147483648


@known("llvm.extractelement", kind="rename", renames=True)
def extract(use: Use) -> str:
    index = use.value_of(use.op.operands[1])
    if index is None:
        return f"extract({use.operands[0]}, {use.operands[1]})"
    return f"{use.operands[0]}[{int(index)}]"


@known("llvm.insertelement", kind="rename", renames=True)
def insert(use: Use) -> str:
    vector, value, place = use.operands
    index = use.value_of(use.op.operands[2])
    if index is None:
        return f"insert({vector}, {value}, {place})"
    return f"(*{vector}[:{int(index)}], {value}, *{vector}[{int(index) + 1}:])"


@known("llvm.shufflevector", kind="rename", renames=True)
def shuffle(use: Use) -> str:
    kind = use.kind(0)
    assert isinstance(kind, Vector)
    parts = []
    for index in use.attributes["mask"]:
        position = max(index, 0)
        vector = use.operands[0] if position < kind.count else use.operands[1]
        parts.append(f"{vector}[{position % kind.count}]")
    return f"({', '.join(parts)},)"


@known("llvm.extractvalue", kind="rename", renames=True)
def extract_value(use: Use) -> str:
    return use.operands[0] + "".join(f"[{index}]" for index in use.attributes["position"])


@known("llvm.insertvalue", kind="rename", renames=True)
def insert_value(use: Use) -> str:
    path = tuple(use.attributes["position"])
    return f"insert_at({use.operands[0]}, {use.operands[1]}, {path!r})"


@known("llvm.freeze", kind="rename", renames=True)
def freeze(use: Use) -> str:
    return use.operands[0]


@known("llvm.getelementptr", kind="address")
def element_address(use: Use) -> str:
    """Byte address: base plus index times size, indices sign-extended to 64 bits."""
    kind = use.attributes["elem_type"]
    expression, dynamic = use.operands[0], list(use.operands[1:])
    for depth, index in enumerate(use.attributes["rawConstantIndices"]):
        step = kind.bytes
        if depth:
            if isinstance(kind, Struct):
                if index == DYNAMIC:
                    raise NotKnown("getelementptr with a variable field of a struct")
                expression += f" + {use.constant(np.int64(kind.offset(index)))}"
                kind = kind.fields[index]
                continue
            if not isinstance(kind, Array | Vector):
                raise NotKnown(f"getelementptr into {kind}")
            kind = kind.element
            step = kind.bytes
        if index == DYNAMIC:
            expression += f" + {dynamic.pop(0)}.astype(np.int64) * {use.constant(np.int64(step))}"
        elif index:
            expression += f" + {use.constant(np.int64(index * step))}"
    return expression
