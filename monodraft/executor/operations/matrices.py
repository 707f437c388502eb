"""Matrix instructions; shapes, layouts and rounding are in `matrix.py`."""

from __future__ import annotations

import re

import numpy as np

from monodraft.executor.operations.table import NotKnown, Use, key, known
from monodraft.executor.program import Scalar, Vector

SCALED = {
    "llvm.amdgcn.mfma.scale.f32.16x16x128.f8f6f4": (16, 128),
    "llvm.amdgcn.mfma.scale.f32.32x32x64.f8f6f4": (32, 64),
}
FORMAT_NUMBERS = ("fp8_e4m3", "fp8_e5m2", "fp6_e2m3", "fp6_e3m2", "fp4_e2m1")
UNIT_SCALES = np.int32(0x7F7F7F7F)
WORDS = Vector(2, Scalar("i32"))
SUPPORTED = ("fp8_e4m3", "fp8_e5m2", "fp4_e2m1")


@known(*SCALED, kind="mfma")
def scaled(use: Use) -> str:
    a, b, c = use.operands[:3]
    if "cbsz" in use.attributes:
        formats = (use.attributes["cbsz"], use.attributes["blgp"])
        select = (use.attributes["opselA"], use.attributes["opselB"])
        scales = use.operands[3:5]
    else:
        formats = (FORMAT_NUMBERS[use.literal(3)], FORMAT_NUMBERS[use.literal(4)])
        select = (use.literal(5), use.literal(7))
        scales = [use.operands[6], use.operands[8]]
    if select == (0, 0) and all(use.value_of(each) == 0 for each in scale_values(use)):
        # LLVM takes two constant zeros for "no scales" and emits the unscaled instruction.
        scales = [use.constant(UNIT_SCALES)] * 2
    for name in formats:
        if name not in SUPPORTED:
            raise NotKnown(f"matrix format {name}")
    size = SCALED[key(use.op)]
    return f"mfma_scaled({a}, {b}, {c}, {formats!r}, ({scales[0]}, {scales[1]}), {select!r}, {size!r})"


def scale_values(use: Use) -> tuple[int, int]:
    """The value numbers of the two scale operands."""
    first, second = (3, 4) if "cbsz" in use.attributes else (6, 8)
    return use.op.operands[first], use.op.operands[second]


PLAIN = {
    "bf16": ("16x16x16bf16.1k", "16x16x32.bf16", "32x32x8bf16.1k", "32x32x16.bf16"),
    "f16": ("16x16x16f16", "16x16x32.f16", "32x32x8f16", "32x32x16.f16"),
    "f32": ("16x16x4f32", "32x32x2f32"),
    "fp8_e4m3": ("16x16x32.fp8.fp8", "32x32x16.fp8.fp8"),
    "fp8_e5m2": ("16x16x32.bf8.bf8", "32x32x16.bf8.bf8"),
}
KINDS = {f"llvm.amdgcn.mfma.f32.{name}": kind for kind, names in PLAIN.items() for name in names}
MODIFIERS = ("cbsz", "abid", "blgp")


@known(*KINDS, kind="mfma")
def plain(use: Use) -> str:
    name = key(use.op)
    kind = KINDS[name]
    match = re.search(r"\.(\d+)x\d+x(\d+)", name)
    assert match is not None
    if any(str(use.attributes.get(each, 0)).rstrip(">").rsplit(" ")[-1] not in ("0", "none") for each in MODIFIERS):
        raise NotKnown("broadcast or negation modifiers of mfma")
    a, b = (operand(use, index, kind) for index in (0, 1))
    return f"mfma_plain({a}, {b}, {use.operands[2]}, {kind!r}, ({match[1]}, {match[2]}))"


def operand(use: Use, index: int, kind: str) -> str:
    """An operand as a tuple of its elements: fp8 comes as one i64, f32 as a scalar, bf16 sometimes as i16."""
    name, given = use.operands[index], use.kind(index)
    if kind.startswith("fp8"):
        return f"bitcast({name}, {use.constant(given)}, {use.constant(WORDS)})"
    if kind == "bf16" and use.scalar(index) == "i16":
        return f"tuple(x.view(np.uint16) for x in {name})"
    return name if isinstance(given, Vector) else f"({name},)"
