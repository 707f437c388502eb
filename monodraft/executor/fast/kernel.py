"""A translated kernel: its layout, its machine code, and what a report needs to know about its steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from monodraft.executor.fast.compiler import compiled
from monodraft.executor.fast.layout import ATOMICS, CONSTANTS, DIRECT, LOADS, STORES, Layout, lay_out
from monodraft.executor.fast.native_library import resolve
from monodraft.executor.fast.objects import LoadedObject
from monodraft.executor.fast.table import table_name
from monodraft.executor.fast.translate import Translation, refuse_unknown
from monodraft.executor.operations import KNOWN
from monodraft.executor.program import Op, Program

_LOADED: dict[str, Kernel] = {}


@dataclass(frozen=True)
class Kernel:
    """Machine code of one Program. `places` maps the runtime's place numbers to those of `Program.kernel.places`,
    `verbs` says what each does, `stores` are those that store, `kinds` the operations of every step."""

    program: Program
    layout: Layout
    code: LoadedObject
    places: tuple[int, ...]
    verbs: tuple[str, ...]
    stores: tuple[int, ...]
    kinds: tuple[Counter[str], ...]

    @property
    def step(self) -> int:
        """Address of the step function."""
        return self.code.address("step")


def translate(program: Program, *, keep: bool = True) -> Kernel:
    """Translate a kernel, or take it from this process or the cache on disk (`keep`).

    Raises UnknownOperation, naming source lines, for what the engine does not know.
    """
    key = program.fingerprint
    if keep and key in _LOADED:
        return _LOADED[key]
    refuse_unknown(program)
    code = compiled(lambda: Translation(program).text(), f"kernel {key}", resolve=resolve, keep=keep)
    layout = lay_out(program.kernel)
    numbered = sorted((number, op) for number, op in place_ops(layout).items())
    kernel = Kernel(
        program,
        layout,
        code,
        tuple(op.place for _, op in numbered),
        tuple(verb(op) for _, op in numbered),
        tuple(number for number, op in numbered if "store" in op.name),
        tuple(step_kinds(layout)),
    )
    if keep:
        _LOADED[key] = kernel
    return kernel


def verb(op: Op) -> str:
    """What a memory operation does, for messages."""
    name = table_name(op)
    return (
        "load" if name in LOADS | DIRECT else "store" if name in STORES else "atomic" if name in ATOMICS else "access"
    )


def place_ops(layout: Layout) -> dict[int, Op]:
    """The operation of each place number."""
    return {layout.places[id(op)]: op for step in layout.steps for op in step.ops if id(op) in layout.places}


def step_kinds(layout: Layout) -> list[Counter[str]]:
    """Operations of each step by kind, as the reference engine counts them: branches are not among them."""
    result = []
    for step in layout.steps:
        count: Counter[str] = Counter()
        for op in step.ops:
            entry = KNOWN.get(table_name(op))
            if op.name not in CONSTANTS and entry is not None:
                count[entry.kind] += 1
        result.append(count)
    return result
