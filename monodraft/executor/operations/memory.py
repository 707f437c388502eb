"""Loads, stores, atomics, fences and waits. In generated code `w` is the wave (see `wave.py`)."""

from __future__ import annotations

import numpy as np

from monodraft.executor.access import Access, Scope
from monodraft.executor.operations.table import NotKnown, Use, known
from monodraft.executor.program import LDS_SPACE, Pointer, Scalar, Type, Vector
from monodraft.executor.values import numpy_type

# Cache policy bits of raw buffer accesses on gfx940 and gfx950.
SC0, SC1 = 1, 16


def access(kind: Type, atomic: bool = False) -> Access:
    """How a type lies in memory."""
    if isinstance(kind, Vector):
        return Access(np.dtype(numpy_type(kind.element)), kind.count, atomic)
    if not isinstance(kind, Scalar | Pointer):
        raise NotKnown(f"a load or store of {kind}")
    return Access(np.dtype(numpy_type(kind)), 0, atomic)


def pointer_space(use: Use, index: int) -> int:
    kind = use.kind(index)
    assert isinstance(kind, Pointer)
    if kind.space not in (0, 1, LDS_SPACE, 4):
        raise NotKnown(f"a memory access in address space {kind.space}")
    return kind.space


def llvm_scope(use: Use) -> Scope:
    """Scope and ordering of an llvm.load, store or atomic: a volatile access is system-coherent."""
    order = int(use.attributes.get("ordering", 0))
    if use.attributes.get("volatile_") and not order:
        return Scope(3, sync=True)
    if not order:
        return Scope(0)
    level = scope_level(str(use.attributes.get("syncscope", "")))
    return Scope(level, sync=True, acquire=order in (4, 6, 7), release=order in (5, 6, 7))


def scope_level(name: str) -> int:
    """0: within the CTA, 2: within the device, 3: system (also the default)."""
    return 0 if name.startswith(("workgroup", "wavefront", "singlethread")) else 2 if name.startswith("agent") else 3


def buffer_scope(aux: int) -> Scope:
    """SC1: device; SC0 SC1: system; SC0 alone and nothing: plain. nt is a hint."""
    if aux & SC1:
        return Scope(3 if aux & SC0 else 2, sync=True)
    return Scope(0)


@known("llvm.load", kind="load", effect=True)
def load(use: Use) -> str:
    method = "load_lds" if pointer_space(use, 0) == LDS_SPACE else "load"
    shape = use.constant(access(use.result, bool(use.attributes.get("ordering", 0))))
    return f"w.{method}({use.operands[0]}, {shape}, {use.constant(llvm_scope(use))}, m, {use.op.place})"


@known("llvm.store", kind="store", effect=True)
def store(use: Use) -> list[str]:
    method = "store_lds" if pointer_space(use, 1) == LDS_SPACE else "store"
    shape = use.constant(access(use.kind(0), bool(use.attributes.get("ordering", 0))))
    scope = use.constant(llvm_scope(use))
    return [f"w.{method}({use.operands[1]}, {use.operands[0]}, {shape}, {scope}, m, {use.op.place})"]


def aux_bits(use: Use) -> int:
    aux = use.attributes.get("aux", 0)
    return int(aux)


@known("llvm.amdgcn.make.buffer.rsrc", kind="address")
def make_resource(use: Use) -> str:
    stride = use.value_of(use.op.operands[1])
    if stride is None or int(stride) != 0:
        raise NotKnown("a buffer resource with a stride")
    # The base carries 48 bits; a size of -1 in 32 bits means 4 GiB - 1.
    return f"({use.operands[0]}, unsigned({use.operands[2]}).astype(np.int64))"


@known("llvm.amdgcn.raw.ptr.buffer.load", kind="load", effect=True)
def buffer_load(use: Use) -> str:
    resource, offset, base = use.operands[:3]
    shape, scope = use.constant(access(use.result)), use.constant(buffer_scope(aux_bits(use)))
    return f"w.load_buffer({resource}, {offset}, {base}, {shape}, {scope}, m, {use.op.place})"


@known("llvm.amdgcn.raw.ptr.buffer.store", kind="store", effect=True)
def buffer_store(use: Use) -> list[str]:
    value, resource, offset, base = use.operands[:4]
    shape, scope = use.constant(access(use.kind(0))), use.constant(buffer_scope(aux_bits(use)))
    return [f"w.store_buffer({resource}, {offset}, {base}, {value}, {shape}, {scope}, m, {use.op.place})"]


@known("llvm.amdgcn.s.buffer.load", kind="load", effect=True)
def scalar_load(use: Use) -> str:
    shape = use.constant(access(use.result))
    zero = use.constant(np.int32(0))
    scope = use.constant(Scope(0))
    resource = use.operands[0] if isinstance(use.kind(0), Pointer) else f"resource_of({use.operands[0]})"
    return f"w.load_buffer({resource}, {use.operands[1]}, {zero}, {shape}, {scope}, m, {use.op.place})"


@known("llvm.amdgcn.raw.ptr.buffer.load.lds", kind="load", effect=True)
def buffer_load_to_lds(use: Use) -> list[str]:
    """Operands: resource, LDS address, bytes a lane, offset, scalar offset, immediate offset."""
    resource, target, _, offset, base, _ = use.operands[:6]
    size, immediate = use.literal(2), use.literal(5)
    if size not in (4, 12, 16):
        raise NotKnown(f"a load to LDS of {size} bytes a lane")
    scope = use.constant(buffer_scope(aux_bits(use)))
    return [f"w.load_to_lds({resource}, {target}, {size}, {offset}, {base}, {immediate}, {scope}, m, {use.op.place})"]


ATOMICS = (
    "xchg",
    "add",
    "sub",
    "and",
    "nand",
    "or",
    "xor",
    "max",
    "min",
    "umax",
    "umin",
    "fadd",
    "fsub",
    "fmax",
    "fmin",
)


@known("llvm.atomicrmw", kind="atomic", effect=True)
def atomic(use: Use) -> str:
    operation = use.attributes["bin_op"]
    if operation >= len(ATOMICS):
        raise NotKnown(f"atomicrmw operation {operation}")
    if isinstance(use.kind(1), Vector) or use.scalar(1) in ("bf16", "i1"):
        raise NotKnown(f"atomicrmw on {use.kind(1)}")
    method = "atomic_lds" if pointer_space(use, 0) == LDS_SPACE else "atomic"
    shape, scope = use.constant(access(use.kind(1), True)), use.constant(llvm_scope(use))
    pointer, value = use.operands
    return f"w.{method}({pointer}, {ATOMICS[operation]!r}, ({value},), {shape}, {scope}, m, {use.op.place})"


@known("llvm.cmpxchg", kind="atomic", effect=True)
def compare_exchange(use: Use) -> str:
    method = "atomic_lds" if pointer_space(use, 0) == LDS_SPACE else "atomic"
    order = max(int(use.attributes.get("success_ordering", 7)), int(use.attributes.get("failure_ordering", 2)))
    level = scope_level(str(use.attributes.get("syncscope", "")))
    scope = use.constant(Scope(level, True, order in (4, 6, 7), order in (5, 6, 7)))
    pointer, expected, new = use.operands
    shape = use.constant(access(use.kind(1), True))
    return f"w.{method}({pointer}, 'cmpxchg', ({expected}, {new}), {shape}, {scope}, m, {use.op.place})"


@known("llvm.fence", kind="wait", effect=True)
def fence(use: Use) -> list[str]:
    order = int(use.attributes["ordering"])
    level = scope_level(str(use.attributes.get("syncscope", "")))
    return [f"w.fence({level}, {order in (4, 6, 7)}, {order in (5, 6, 7)})"]


@known("llvm.amdgcn.s.waitcnt", kind="wait", effect=True)
def wait(use: Use) -> list[str]:
    """Counters of gfx9: vmcnt in bits 0-3 and 14-15, lgkmcnt in bits 8-11."""
    bits = use.attributes["bitfield"] if "bitfield" in use.attributes else use.literal(0)
    vmcnt, lgkmcnt = (bits & 15) | ((bits >> 14) & 3) << 4, (bits >> 8) & 15
    return [f"w.wait({vmcnt if vmcnt < 63 else None}, {lgkmcnt if lgkmcnt < 15 else None})"]
