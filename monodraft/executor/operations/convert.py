"""Conversions between integers, floats, bf16 and fp8, and casts of pointers."""

from __future__ import annotations

from monodraft.executor.operations.table import NotKnown, Use, known
from monodraft.executor.program import BUFFER_SPACE, Pointer, element
from monodraft.executor.values import numpy_type


@known("llvm.sext", "llvm.zext", "llvm.trunc", kind="valu")
def resize(use: Use) -> str:
    name = use.op.name
    source, kind = use.scalar(0), numpy_type(element(use.result)).__name__
    if kind in ("bool", "bool_"):
        wide = numpy_type(element(use.kind(0))).__name__
        return use.elementwise(lambda a: f"({a} & np.{wide}(1)).astype(np.bool_)")
    if name == "llvm.zext" and source != "i1":
        return use.elementwise(lambda a: f"unsigned({a}).astype(np.{kind})")
    if name == "llvm.sext" and source == "i1":
        return use.elementwise(lambda a: f"-({a}.astype(np.{kind}))")
    return use.elementwise(lambda a: f"{a}.astype(np.{kind})")


@known("llvm.fpext", "llvm.fptrunc", kind="convert")
def resize_float(use: Use) -> str:
    source, target = use.scalar(0), use.scalar()
    if source == "bf16":
        tail = "" if target == "f32" else f".astype(np.{numpy_type(element(use.result)).__name__})"
        return use.elementwise(lambda a: f"bf16_to_f32({a}){tail}")
    if target == "bf16":
        if source != "f32":
            raise NotKnown(f"fptrunc of {source} to bf16")
        return use.elementwise(lambda a: f"f32_to_bf16({a})")
    kind = numpy_type(element(use.result)).__name__
    return use.elementwise(lambda a: f"{a}.astype(np.{kind})")


@known("llvm.sitofp", "llvm.uitofp", kind="convert")
def from_integer(use: Use) -> str:
    bits = "unsigned({a})" if use.op.name == "llvm.uitofp" and use.scalar(0) != "i1" else "{a}"
    if use.op.name == "llvm.sitofp" and use.scalar(0) == "i1":
        bits = "(-({a}.astype(np.int8)))"
    if use.scalar() == "bf16":
        return use.elementwise(lambda a: f"f32_to_bf16({bits.format(a=a)}.astype(np.float32))")
    kind = numpy_type(element(use.result)).__name__
    return use.elementwise(lambda a: f"{bits.format(a=a)}.astype(np.{kind})")


@known("llvm.fptosi", "llvm.fptoui", "llvm.intr.fptosi.sat", "llvm.intr.fptoui.sat", kind="convert")
def to_integer(use: Use) -> str:
    function = "float_to_signed" if "fptosi" in use.op.name else "float_to_unsigned"
    kind = numpy_type(element(use.result)).__name__
    if kind in ("bool", "bool_"):
        raise NotKnown(f"{use.op.name} to i1")
    inner = "bf16_to_f32({a})" if use.scalar(0) == "bf16" else "{a}"
    return use.elementwise(lambda a: f"{function}({inner.format(a=a)}, np.{kind})")


RESOURCE = Pointer(BUFFER_SPACE)


@known("llvm.inttoptr", "llvm.ptrtoint", "llvm.addrspacecast", kind="address")
def pointer_cast(use: Use) -> str:
    if use.kind(0) == RESOURCE:
        if use.op.name != "llvm.ptrtoint":
            raise NotKnown(f"{use.op.name} of a buffer resource")
        return f"resource_words({use.operands[0]})"
    if use.result == RESOURCE:
        return f"resource_of({use.operands[0]})"
    kind = numpy_type(element(use.result)).__name__
    if use.op.name == "llvm.addrspacecast" and use.kind(0).bytes != use.result.bytes:
        raise NotKnown(f"addrspacecast from {use.kind(0)} to {use.result}")
    if use.op.name == "llvm.inttoptr":
        return use.elementwise(lambda a: f"unsigned({a}).astype(np.{kind})")
    return use.elementwise(lambda a: f"{a}.astype(np.{kind})")


@known("llvm.bitcast", kind="rename", renames=True)
def bitcast(use: Use) -> str:
    source, target = use.constant(use.kind(0)), use.constant(use.result)
    return f"bitcast({use.operands[0]}, {source}, {target})"


@known("llvm.intr.bswap", kind="valu")
def swap_bytes(use: Use) -> str:
    return use.elementwise(lambda a: f"{a}.byteswap()")


FP8 = {"fp8": "float8_e4m3fn", "bf8": "float8_e5m2"}


@known("llvm.amdgcn.cvt.pk.fp8.f32", "llvm.amdgcn.cvt.pk.bf8.f32", kind="convert")
def pack_fp8(use: Use) -> str:
    kind = FP8["fp8" if "fp8" in use.op.name + str(use.attributes.get("intrin")) else "bf8"]
    high = word_select(use, 3)
    return f"pack_fp8({use.operands[0]}, {use.operands[1]}, {use.operands[2]}, {high}, {kind})"


@known("llvm.amdgcn.cvt.scalef32.pk.fp8", "llvm.amdgcn.cvt.scalef32.pk.fp8.f32", kind="convert")
def pack_fp8_scaled(use: Use) -> str:
    if use.scalar(1) != "f32":
        raise NotKnown(f"cvt.scalef32.pk.fp8 of {use.scalar(1)}")
    high = bool(use.attributes["dstLoHiSel"]) if "dstLoHiSel" in use.attributes else bool(use.literal(4))
    return f"pack_fp8_scaled({', '.join(use.operands[:4])}, {high})"


@known("llvm.amdgcn.cvt.pk.f32.fp8", "llvm.amdgcn.cvt.pk.f32.bf8", kind="convert")
def unpack_fp8(use: Use) -> str:
    table = "E4M3" if "fp8" in use.op.name + str(use.attributes.get("intrin")) else "E5M2"
    first = 2 if word_select(use, 1) else 0
    word = use.operands[0]
    return f"(unpack_fp8({word}, {first}, {table}), unpack_fp8({word}, {first + 1}, {table}))"


@known("llvm.amdgcn.cvt.f32.fp8", "llvm.amdgcn.cvt.f32.bf8", kind="convert")
def unpack_one_fp8(use: Use) -> str:
    table = "E4M3" if "fp8" in use.op.name + str(use.attributes.get("intrin")) else "E5M2"
    byte = use.attributes["byteSel"] if "byteSel" in use.attributes else use.literal(1)
    return f"unpack_fp8({use.operands[0]}, {byte}, {table})"


def word_select(use: Use, operand: int) -> bool:
    """The half-word selector, an attribute of the rocdl operation or an operand of the intrinsic."""
    return bool(use.attributes["wordSel"]) if "wordSel" in use.attributes else bool(use.literal(operand))
