"""Matrix operations in a kernel: their formats, modifiers and operands, and the call of a library function
(`matrix_code.py`) for each shape and format.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from monodraft.executor.fast.emit import BYTES, F32, I16, I32
from monodraft.executor.fast.matrix_code import SIGNIFICANT, Shape
from monodraft.executor.fast.table import Operands, Unknown, known, table_name
from monodraft.executor.program import Op

if TYPE_CHECKING:
    from monodraft.executor.fast.translate import Translation

SCALED = {
    "llvm.amdgcn.mfma.scale.f32.16x16x128.f8f6f4": (16, 128),
    "llvm.amdgcn.mfma.scale.f32.32x32x64.f8f6f4": (32, 64),
}
FORMAT_NUMBERS = ("fp8_e4m3", "fp8_e5m2", "fp6_e2m3", "fp6_e3m2", "fp4_e2m1")
PLAIN = {
    "bf16": ("16x16x16bf16.1k", "16x16x32.bf16", "32x32x8bf16.1k", "32x32x16.bf16"),
    "f16": ("16x16x16f16", "16x16x32.f16", "32x32x8f16", "32x32x16.f16"),
    "f32": ("16x16x4f32", "32x32x2f32"),
    "fp8_e4m3": ("16x16x32.fp8.fp8", "32x32x16.fp8.fp8"),
    "fp8_e5m2": ("16x16x32.bf8.bf8", "32x32x16.bf8.bf8"),
}
KINDS = {f"llvm.amdgcn.mfma.f32.{name}": kind for kind, names in PLAIN.items() for name in names}


def emit_call(
    t: Translation, shape: Shape, left: list[str], right: list[str], c: list[str], scales: list[str]
) -> list[str]:
    a, b = (t.to_scratch_all(x, [operand_kind(f)] * len(x)) for x, f in ((left, shape.left), (right, shape.right)))
    c_address = t.to_scratch_all(c, [F32] * len(c))
    scale = [t.to_scratch(s, I32) for s in scales] or [t.e.scalar(0)] * 2
    out = t.scratch_address(F32, shape.registers)
    t.call_plain(shape.name, a, b, c_address, *scale, out)
    return [t.from_address(out, F32, 256 * i) for i in range(shape.registers)]


def operand_kind(form: str) -> str:
    """The lane vectors that a library function takes."""
    return {"bf16": I16, "f16": "f16", "f32": F32}.get(form, I32)


@known(*SCALED)
def scaled(t: Translation, op: Op, x: Operands) -> list[str]:
    """v_mfma_scale_f32_*_f8f6f4."""
    if "cbsz" in op.attributes:
        formats = [str(op.attributes[name]) for name in ("cbsz", "blgp")]
        select = [int(op.attributes[name]) for name in ("opselA", "opselB")]
        scale_operands = (3, 4)
    else:
        formats = [FORMAT_NUMBERS[t.need_constant(op, index)] for index in (3, 4)]
        select = [t.need_constant(op, index) for index in (5, 7)]
        scale_operands = (6, 8)
    for name in formats:
        if name not in SIGNIFICANT:
            raise Unknown(f"matrix format {name}")
    size, depth = SCALED[table_name(op)]
    bytes_ = []
    # LLVM takes two constant zeros for "no scales" and emits the unscaled instruction.
    unscaled = select == [0, 0] and all(t.constant(op.operands[index]) == (0,) for index in scale_operands)
    for index, byte in zip(scale_operands, select, strict=True):
        scale = t.e.splat_bits(127, I32) if unscaled else x[index][0]
        shifted = t.e.lanes("lshr", I32, scale, t.e.splat_bits(8 * byte, I32)) if byte else scale
        bytes_.append(t.e.lanes("and", I32, shifted, t.e.splat_bits(255, I32)))
    shape = Shape(size, depth, formats[0], formats[1], True)
    left, right = (x[i][: shape.per_lane // (4 if f.startswith("fp8") else 8)] for i, f in enumerate(formats))
    return emit_call(t, shape, left, right, x[2], bytes_)


MODIFIERS = ("cbsz", "abid", "blgp")


@known(*KINDS)
def plain(t: Translation, op: Op, x: Operands) -> list[str]:
    """v_mfma_f32_* without scales."""
    from monodraft.executor.fast.conversions import repack

    name = table_name(op)
    match = re.search(r"\.(\d+)x\d+x(\d+)", name)
    assert match is not None
    # A modifier that is off is absent, 0, or an attribute that ends in "none".
    if any(str(op.attributes.get(each, 0)).rstrip(">").rsplit(" ")[-1] not in ("0", "none") for each in MODIFIERS):
        raise Unknown("broadcast or negation modifiers of mfma")
    kind = KINDS[name]
    shape = Shape(int(match[1]), int(match[2]), kind, kind, False)
    operands = []
    for index in (0, 1):
        kinds, wanted = t.kinds(op.operands[index]), operand_kind(kind)
        count = sum(BYTES[k] for k in kinds) // BYTES[wanted]
        operands.append(repack(t, x[index], kinds, [wanted] * count) if kinds[0] != wanted else x[index])
    return emit_call(t, shape, operands[0], operands[1], x[2], [])
