"""Operations that read other lanes of the wave. In generated code `m` is the active mask (None: all lanes)."""

from __future__ import annotations

from monodraft.executor.lanes import dpp_source
from monodraft.executor.operations.table import NotKnown, Use, key, known
from monodraft.executor.values import numpy_type


@known("llvm.amdgcn.update.dpp", "llvm.amdgcn.mov.dpp", kind="cross-lane")
def dpp(use: Use) -> str:
    if "dppCtrl" in use.attributes:
        control, rows, banks = (use.attributes[name] for name in ("dppCtrl", "rowMask", "bankMask"))
        bound = bool(use.attributes["boundCtrl"])
    else:
        control, rows, banks = (use.literal(index) for index in range(2, 5))
        bound = bool(use.literal(5))
    try:
        dpp_source(control)
    except ValueError as error:
        raise NotKnown(str(error)) from error
    return f"dpp(m, {use.operands[0]}, {use.operands[1]}, {control}, {rows}, {banks}, {bound})"


@known("llvm.amdgcn.ds.swizzle", kind="cross-lane")
def swizzle(use: Use) -> str:
    return f"swizzle(m, {use.operands[0]}, {use.literal(1)})"


@known("llvm.amdgcn.ds.bpermute", kind="cross-lane")
def bpermute(use: Use) -> str:
    return f"bpermute(m, {use.operands[0]}, {use.operands[1]})"


@known("llvm.amdgcn.ds.permute", kind="cross-lane")
def permute(use: Use) -> str:
    return f"permute(m, {use.operands[0]}, {use.operands[1]})"


@known("llvm.amdgcn.permlane16.swap", "llvm.amdgcn.permlane32.swap", kind="cross-lane")
def swap_rows(use: Use) -> str:
    width = 16 if "16" in key(use.op) else 32
    return f"swap_rows(m, {use.operands[0]}, {use.operands[1]}, {width})"


@known("llvm.amdgcn.readfirstlane", kind="cross-lane")
def read_first_lane(use: Use) -> str:
    return f"read_first_lane(m, {use.operands[0]})"


@known("llvm.amdgcn.readlane", kind="cross-lane")
def read_lane(use: Use) -> str:
    return f"read_lane({use.operands[0]}, {use.operands[1]})"


@known("llvm.amdgcn.writelane", kind="cross-lane")
def write_lane(use: Use) -> str:
    return f"write_lane({', '.join(use.operands)})"


@known("llvm.amdgcn.ballot", kind="cross-lane")
def ballot(use: Use) -> str:
    return f"ballot(m, {use.operands[0]}, np.{numpy_type(use.result).__name__})"


@known("llvm.amdgcn.mbcnt.lo", "llvm.amdgcn.mbcnt.hi", kind="cross-lane")
def count_below(use: Use) -> str:
    below = "BELOW_LOW" if key(use.op).endswith("lo") else "BELOW_HIGH"
    return f"count_below({use.operands[0]}, {use.operands[1]}, {below})"
