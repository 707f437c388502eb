"""Loads, stores and atomics of global memory and LDS: addresses and bounds here, the rest in the native runtime.

A load's value is read by the runtime straight into its slot in the wave's state, at once or later (late loads), so
every load ends its step; `Translation.value` waits for it before the first use in each later step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monodraft.executor.fast.control import scope_of
from monodraft.executor.fast.conversions import resource_of
from monodraft.executor.fast.emit import BYTES, F32, F64, I1, I8, I32, I64
from monodraft.executor.fast.records import AGENT_SCOPE, SYSTEM_SCOPE, WAVE_SCOPE
from monodraft.executor.fast.runtime_pending import ORDERING_SHIFT, SCOPE_SHIFT
from monodraft.executor.fast.table import Operands, Unknown, known
from monodraft.executor.program import LDS_SPACE, Op, Pointer, Vector, element

if TYPE_CHECKING:
    from monodraft.executor.fast.translate import Translation

SC0, SC1 = 1, 16
GLOBAL_SPACES = (0, 1, 4)


def element_kinds(t: Translation, value: int) -> list[str]:
    """Lane types of a value in memory: components of one size; i1 takes a byte."""
    kinds = [I8 if kind == I1 else kind for kind in t.kinds(value)]
    if len({BYTES[kind] for kind in kinds}) != 1:
        raise Unknown(f"a load or store of {t.type(value)}")
    return kinds


def shape_of(kinds: list[str], scope: int, ordering: int) -> int:
    """The packed description of an access that the runtime takes (runtime_pending)."""
    return BYTES[kinds[0]] | len(kinds) << 8 | scope << SCOPE_SHIFT | ordering << ORDERING_SHIFT


def llvm_scope(op: Op) -> tuple[int, int]:
    """Scope and ordering of llvm.load, store and atomics; a volatile access is system-coherent."""
    ordering = int(op.attributes.get("ordering", 0))
    if ordering == 0:
        return (SYSTEM_SCOPE if op.attributes.get("volatile_") else WAVE_SCOPE), 0
    return scope_of(op.attributes.get("syncscope", "")), ordering


def buffer_scope(op: Op) -> int:
    """The scope of the cache policy bits: SC1 device, SC0 and SC1 system."""
    aux = int(op.attributes.get("aux", 0))
    if aux & SC1:
        return SYSTEM_SCOPE if aux & SC0 else AGENT_SCOPE
    return WAVE_SCOPE


def space_of(t: Translation, value: int) -> int:
    """The address space of a pointer that may be accessed."""
    kind = element(t.type(value))
    if isinstance(kind, Pointer) and (kind.space == LDS_SPACE or kind.space in GLOBAL_SPACES):
        return kind.space
    raise Unknown(f"a memory access through {kind}")


def emit_load(
    t: Translation, op: Op, addresses: str, allowed: str, space: int, scope: int, ordering: int, room: str = ""
) -> list[str]:
    """A load of `op`'s result, to its slot, from the lanes in `allowed`. `room`: bytes from each lane's address to the
    end of its buffer, where lanes may be partly beyond it."""
    result = op.results[0]
    kinds = element_kinds(t, result)
    where = t.to_scratch(addresses, I64)
    target, place = t.slot_address(result), t.e.scalar(t.memory_place(op))
    shape = t.e.scalar(shape_of(kinds, scope, ordering))
    if space == LDS_SPACE:
        t.call("load_lds", t.mask_bits, where, target, shape, place)
        return []
    t.call("load_lanes", t.mask_bits, t.e.mask_bits(allowed), where, target, shape, place)
    if room and len(kinds) > 1:
        partly = partly_inside(t, allowed, room, BYTES[kinds[0]])
        t.call("load_edge", partly, where, t.to_scratch(room, I64), target, shape, place)
    return []


def partly_inside(t: Translation, allowed: str, room: str, nbytes: int) -> str:
    """The active lanes that have room for an element but not for all."""
    some = t.e.lanes("and", I1, t.e.test("sge", room, t.e.splat_bits(nbytes, I64), I64), t.mask)
    return t.e.mask_bits(t.e.lanes("xor", I1, t.e.lanes("or", I1, some, allowed), allowed))


def emit_store(
    t: Translation,
    op: Op,
    value: int,
    parts: list[str],
    addresses: str,
    allowed: str,
    space: int,
    scope: int,
    order: int,
    room: str = "",
) -> None:
    """A store of `value` from the lanes in `allowed`, at most 16 bytes at a time."""
    e, kinds = t.e, element_kinds(t, value)
    parts = [e.convert("zext", a, I1, I8) if k == I1 else a for a, k in zip(parts, t.kinds(value), strict=True)]
    most = max(16 // BYTES[kinds[0]], 1)
    for first in range(0, len(parts), most):
        some, some_kinds = parts[first : first + most], kinds[first : first + most]
        offset = e.splat_bits(first * BYTES[kinds[0]], I64)
        at = e.lanes("add", I64, addresses, offset) if first else addresses
        where = t.to_scratch(at, I64)
        if value in t.layout.slots and t.kinds(value) == kinds:
            data = t.slot_address(value, first * 64 * BYTES[kinds[0]])
        else:
            data = t.to_scratch_all(some, some_kinds)
        shape = e.scalar(shape_of(some_kinds, scope, order if first == 0 else 0))
        place = e.scalar(t.memory_place(op))
        function = "store_lds" if space == LDS_SPACE else "store_lanes"
        t.call(function, e.mask_bits(allowed), where, data, shape, place)
        if room and len(kinds) > 1:
            left = e.lanes("sub", I64, room, offset) if first else room
            partly = partly_inside(t, allowed, left, BYTES[kinds[0]])
            t.call("store_edge", partly, where, t.to_scratch(left, I64), data, shape, place)


@known("llvm.load")
def load(t: Translation, op: Op, x: Operands) -> list[str]:
    scope, ordering = llvm_scope(op)
    return emit_load(t, op, x[0][0], t.mask, space_of(t, op.operands[0]), scope, ordering)


@known("llvm.store")
def store(t: Translation, op: Op, x: Operands) -> list[str]:
    scope, ordering = llvm_scope(op)
    emit_store(t, op, op.operands[0], x[0], x[1][0], t.mask, space_of(t, op.operands[1]), scope, ordering)
    return []


@known("llvm.amdgcn.make.buffer.rsrc")
def make_resource(t: Translation, op: Op, x: Operands) -> list[str]:
    """Base and size; the size counts as unsigned."""
    stride = t.constant(op.operands[1])
    if stride is None or stride[0] != 0:
        raise Unknown("a buffer resource with a stride")
    kind = t.element_of(op.operands[2])
    return [x[0][0], t.e.convert("zext", x[2][0], kind, I64)]


def buffer_addresses(
    t: Translation, resource: list[str], offset: str, base: str, size: int, nbytes: int
) -> tuple[str, str, str]:
    """Lane addresses, the lanes whose bytes all lie within the resource, and the room that each lane has (the scalar
    offset does not count). A resource of 2^32 - 1 bytes has no bounds, so no room is given."""
    e = t.e
    wide = e.convert("zext", offset, I32, I64)
    address = e.lanes("add", I64, resource[0], wide)
    if base:
        address = e.lanes("add", I64, address, e.convert("zext", base, I32, I64))
    if t.known_size(size) == 0xFFFFFFFF:
        return address, t.mask, ""
    room = e.lanes("sub", I64, resource[1], wide)
    inside = e.test("sge", room, e.splat_bits(nbytes, I64), I64)
    whole = e.test("eq", resource[1], e.splat_bits(0xFFFFFFFF, I64), I64)
    inside = e.lanes("and", I1, e.lanes("or", I1, inside, whole), t.mask)
    return address, inside, e.select(whole, e.splat_bits(1 << 62, I64), room, I64)


@known("llvm.amdgcn.raw.ptr.buffer.load")
def buffer_load(t: Translation, op: Op, x: Operands) -> list[str]:
    nbytes, base = t.type(op.results[0]).bytes, t.unless_zero(op.operands[2], x[2][0])
    address, inside, room = buffer_addresses(t, x[0], x[1][0], base, op.operands[0], nbytes)
    return emit_load(t, op, address, inside, 1, buffer_scope(op), 0, room)


@known("llvm.amdgcn.s.buffer.load")
def scalar_load(t: Translation, op: Op, x: Operands) -> list[str]:
    """Through the scalar cache, which is never coherent. The resource may come as its four words."""
    resource = x[0] if isinstance(t.type(op.operands[0]), Pointer) else resource_of(t, x[0])
    address, inside, room = buffer_addresses(t, resource, x[1][0], "", op.operands[0], t.type(op.results[0]).bytes)
    return emit_load(t, op, address, inside, 1, WAVE_SCOPE, 0, room)


@known("llvm.amdgcn.raw.ptr.buffer.load.lds")
def load_to_lds(t: Translation, op: Op, x: Operands) -> list[str]:
    """Each lane's bytes go straight to LDS: at a uniform address plus the lane times the size."""
    size, immediate = t.need_constant(op, 2), t.need_constant(op, 5)
    if size not in (4, 12, 16):
        raise Unknown(f"a load to LDS of {size} bytes a lane")
    e = t.e
    offset = e.lanes("add", I32, x[3][0], e.splat_bits(immediate, I32))
    base = t.unless_zero(op.operands[4], x[4][0])
    address, inside, _ = buffer_addresses(t, x[0], offset, base, op.operands[0], size)
    first = e.value(f'"llvm.intr.cttz"({t.mask_bits}) <{{is_zero_poison = true}}> : (i64) -> i64')
    target = e.binary("add", e.lane(x[1][0], first, I64), e.scalar(immediate))
    shape = e.scalar(shape_of([I32] * (size // 4), buffer_scope(op), 0))
    where, place = t.to_scratch(address, I64), e.scalar(t.memory_place(op))
    t.call("load_to_lds", t.mask_bits, e.mask_bits(inside), where, target, shape, place)
    return []


@known("llvm.amdgcn.raw.ptr.buffer.store")
def buffer_store(t: Translation, op: Op, x: Operands) -> list[str]:
    nbytes, base = t.type(op.operands[0]).bytes, t.unless_zero(op.operands[3], x[3][0])
    address, inside, room = buffer_addresses(t, x[1], x[2][0], base, op.operands[1], nbytes)
    emit_store(t, op, op.operands[0], x[0], address, inside, 1, buffer_scope(op), 0, room)
    return []


# Numbers of LLVM's atomicrmw operations; the runtime takes the same, and COMPARE for cmpxchg.
XCHG, ADD, SUB, AND, NAND, OR, XOR, MAX, MIN, UMAX, UMIN, FADD, FSUB, FMAX, FMIN = range(15)
COMPARE = 31


def emit_atomic(
    t: Translation, op: Op, value: int, operands: list[tuple[str, str]], number: int, scope: int, order: int
) -> str:
    """An atomic of one component: its lanes one after the other, lowest first. The old values' scratch address."""
    kind = t.element_of(value)
    if isinstance(t.type(value), Vector) or kind not in (I32, I64, F32, F64):
        raise Unknown(f"{op.name} on {t.type(value)}")
    space = space_of(t, op.operands[0])
    where = t.to_scratch(t.operand(op.operands[0])[0], I64)
    data = [t.to_scratch(a, k) for a, k in operands]
    target = t.scratch_address(kind)
    shape = t.e.scalar(shape_of([kind], scope, order) | number << 32 | (space == LDS_SPACE) << 24)
    place = t.e.scalar(t.memory_place(op))
    t.call("atomic_lanes", t.mask_bits, where, data[0], data[-1], target, shape, place)
    return target


@known("llvm.atomicrmw")
def atomic(t: Translation, op: Op, x: Operands) -> list[str]:
    number = int(op.attributes["bin_op"])
    if number > FMIN:
        raise Unknown(f"atomicrmw operation {number}")
    kind = t.element_of(op.results[0])
    if (number >= FADD) != (kind in (F32, F64)) and number != XCHG:
        raise Unknown(f"atomicrmw operation {number} on {kind}")
    scope, ordering = llvm_scope(op)
    target = emit_atomic(t, op, op.operands[1], [(x[1][0], kind)], number, scope, ordering)
    return [t.from_address(target, kind)]


@known("llvm.cmpxchg")
def compare_exchange(t: Translation, op: Op, x: Operands) -> list[str]:
    """The old value, and whether it was the expected one."""
    kind = t.element_of(op.operands[1])
    order = max(int(op.attributes.get("success_ordering", 7)), int(op.attributes.get("failure_ordering", 2)))
    scope = scope_of(op.attributes.get("syncscope", ""))
    target = emit_atomic(t, op, op.operands[1], [(x[1][0], kind), (x[2][0], kind)], COMPARE, scope, order)
    old = t.from_address(target, kind)
    return [old, t.e.test("eq", old, x[1][0], kind)]
