"""The table of known operations: a name of Program to the function that writes its code.

A handler takes the translation, the operation and its operands' lane vectors (one list an operand) and returns the
lane vectors of all results, in order. It raises `Unknown` for a form of the operation that the engine does not know.
Names are those of the reference engine's table (`operations.table.key`): `llvm.add`, `llvm.amdgcn.exp2` (also for
rocdl operations), `call __ocml_exp2_f32`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from monodraft.executor.operations.table import key
from monodraft.executor.program import Op

if TYPE_CHECKING:
    from monodraft.executor.fast.translate import Translation

Operands = list[list[str]]
Handler = Callable[["Translation", Op, Operands], list[str]]

HANDLERS: dict[str, Handler] = {}


class Unknown(Exception):
    """A form of an operation that this engine does not know."""


def known(*names: str) -> Callable[[Handler], Handler]:
    """Register a handler."""

    def register(handler: Handler) -> Handler:
        for name in names:
            entry = key(Op(name, (), (), {}, 0))
            assert HANDLERS.get(entry, handler) is handler, name
            HANDLERS[entry] = handler
        return handler

    return register


def table_name(op: Op) -> str:
    """The name under which an operation stands in the table: the reference engine's."""
    return key(op)
