"""Operations between the lanes of a wave: DPP, permlane swaps, permutes, swizzle, broadcasts, ballot, lane numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monodraft.executor.fast.emit import I1, I32, I64, vec
from monodraft.executor.fast.table import Operands, Unknown, known, table_name
from monodraft.executor.program import Op

if TYPE_CHECKING:
    from monodraft.executor.fast.translate import Translation

LANES = range(64)
JUNK = 0x7FC0DEAD


def dpp_source(control: int) -> list[int]:
    """The lane that each lane reads under a DPP control, -1 where it reads past its row."""
    if control < 0x100:  # quad_perm
        return [lane & ~3 | control >> 2 * (lane & 3) & 3 for lane in LANES]
    count = control & 15
    match control & 0x1F0:
        case 0x100 if count:  # row_shl
            return [lane + count if lane % 16 + count < 16 else -1 for lane in LANES]
        case 0x110 if count:  # row_shr
            return [lane - count if lane % 16 >= count else -1 for lane in LANES]
        case 0x120 if count:  # row_ror
            return [lane & ~15 | (lane - count) % 16 for lane in LANES]
        case 0x150:  # row_newbcast: lane `count` of each row
            return [lane & ~15 | count for lane in LANES]
    match control:
        case 0x130:  # wave_shl:1
            return [lane + 1 if lane < 63 else -1 for lane in LANES]
        case 0x134:  # wave_rol:1
            return [(lane + 1) % 64 for lane in LANES]
        case 0x138:  # wave_shr:1
            return [lane - 1 for lane in LANES]
        case 0x13C:  # wave_ror:1
            return [(lane - 1) % 64 for lane in LANES]
        case 0x140:  # row_mirror
            return [lane ^ 15 for lane in LANES]
        case 0x141:  # row_half_mirror
            return [lane ^ 7 for lane in LANES]
        case 0x142:  # row_bcast15: the last lane of the row before
            return [lane // 16 * 16 - 1 for lane in LANES]
        case 0x143:  # row_bcast31: lane 31 to the upper half
            return [31 if lane >= 32 else -1 for lane in LANES]
    raise Unknown(f"DPP control {control:#x}")


@known("llvm.amdgcn.update.dpp", "llvm.amdgcn.mov.dpp")
def update_dpp(t: Translation, op: Op, x: Operands) -> list[str]:
    """A lane outside `row_mask` or `bank_mask` keeps `old`. A source that is out of its row or inactive gives 0 with
    `bound_ctrl`, else the lane keeps `old`."""
    if "dppCtrl" in op.attributes:
        control, rows, banks = (int(op.attributes[name]) for name in ("dppCtrl", "rowMask", "bankMask"))
        bound = bool(op.attributes["boundCtrl"])
    else:
        control, rows, banks, bound_bits = (t.need_constant(op, index) for index in (2, 3, 4, 5))
        bound = bool(bound_bits)
    e, kind = t.e, t.element_of(op.results[0])
    if kind not in (I32, "f32"):
        raise Unknown(f"update.dpp on {t.type(op.results[0])}")
    old, value = e.bits_as(x[0][0], kind, I32), e.bits_as(x[1][0], kind, I32)
    source = dpp_source(control)
    fallback = e.splat_bits(0, I32) if bound else old
    picked = e.shuffle(value, fallback, [s if s >= 0 else 64 + lane for lane, s in enumerate(source)], I32)
    active = e.convert("sext", t.mask, I1, I32)
    there = e.shuffle(active, e.splat_bits(0, I32), [s if s >= 0 else 64 for s in source], I32)
    picked = e.select(e.convert("trunc", there, I32, I1), picked, fallback, I32)
    written = [rows >> lane // 16 & 1 and banks >> lane // 4 % 4 & 1 for lane in LANES]
    return [e.bits_as(e.shuffle(picked, old, [n if w else 64 + n for n, w in enumerate(written)], I32), I32, kind)]


@known("llvm.amdgcn.permlane16.swap", "llvm.amdgcn.permlane32.swap")
def permlane_swap(t: Translation, op: Op, x: Operands) -> list[str]:
    """Odd rows (of 16 or 32 lanes) of the first operand change places with even rows of the second. Inactive lanes
    deliver junk, as in the reference engine: what their registers hold is undefined on the hardware."""
    flags = [op.attributes.get(name) for name in ("fi", "boundControl")]
    flags += [t.need_constant(op, index) for index in range(2, len(op.operands))]
    if any(flags):
        raise Unknown(f"{table_name(op)} with fetch-inactive or bound control")
    width = 16 if "16" in table_name(op) else 32
    odd = [lane // width % 2 == 1 for lane in LANES]
    junk = t.e.splat_bits(JUNK, I32)
    a, b = (t.e.select(t.mask, v[0], junk, I32) for v in x)
    first = t.e.shuffle(a, b, [64 + lane - width if o else lane for lane, o in enumerate(odd)], I32)
    second = t.e.shuffle(a, b, [64 + lane if o else lane + width for lane, o in enumerate(odd)], I32)
    return [first, second]


@known("llvm.amdgcn.ds.swizzle")
def swizzle(t: Translation, op: Op, x: Operands) -> list[str]:
    """Bit 15 set: the four lanes of a quad by two bits each; clear: and, or, xor masks on 5 bits. Inactive: 0."""
    pattern = t.need_constant(op, 1)
    if pattern & 0x8000:
        if pattern & 0x7F00:
            raise Unknown(f"ds_swizzle pattern {pattern:#x}")
        source = [lane & ~3 | pattern >> 2 * (lane & 3) & 3 for lane in LANES]
    else:
        keep, force, flip = pattern & 31, pattern >> 5 & 31, pattern >> 10 & 31
        source = [lane & ~31 | (lane & keep | force) ^ flip for lane in LANES]
    return [t.e.shuffle(active_only(t, x[0][0]), x[0][0], source, I32)]


def active_only(t: Translation, x: str) -> str:
    """An i32 lane vector with 0 in the inactive lanes."""
    return t.e.select(t.mask, x, t.e.splat_bits(0, I32), I32)


@known("llvm.amdgcn.ds.bpermute")
def pull(t: Translation, op: Op, x: Operands) -> list[str]:
    """Each lane reads the lane that its byte address names (modulo 64 lanes); an inactive source gives 0."""
    return [t.lanewise("pull_lanes", [(x[0][0], I32), (active_only(t, x[1][0]), I32)], I32)]


@known("llvm.amdgcn.ds.permute")
def push(t: Translation, op: Op, x: Operands) -> list[str]:
    """Each active lane writes to the lane that its byte address names; the highest wins, unwritten lanes are 0."""
    return [t.lanewise("push_lanes", [(x[0][0], I32), (x[1][0], I32)], I32)]


@known("llvm.amdgcn.readfirstlane")
def read_first_lane(t: Translation, op: Op, x: Operands) -> list[str]:
    """The value of the lowest active lane, in all lanes."""
    first = t.e.value(f'"llvm.intr.cttz"({t.mask_bits}) <{{is_zero_poison = true}}> : (i64) -> i64')
    return [t.e.splat(t.e.lane(a, first, k), k) for a, k in zip(x[0], t.kinds(op.results[0]), strict=True)]


@known("llvm.amdgcn.readlane")
def read_lane(t: Translation, op: Op, x: Operands) -> list[str]:
    """The value of one lane, active or not, in all lanes; the index is the lowest active lane's, modulo 64."""
    first = t.e.value(f'"llvm.intr.cttz"({t.mask_bits}) <{{is_zero_poison = true}}> : (i64) -> i64')
    index = t.e.cast("zext", t.e.lane(x[1][0], first, I32), I32, I64)
    index = t.e.binary("and", index, t.e.scalar(63))
    return [t.e.splat(t.e.lane(a, index, k), k) for a, k in zip(x[0], t.kinds(op.results[0]), strict=True)]


@known("llvm.amdgcn.writelane")
def write_lane(t: Translation, op: Op, x: Operands) -> list[str]:
    """One lane, by number modulo 64, takes a value; the others keep the old one."""
    first = t.e.value(f'"llvm.intr.cttz"({t.mask_bits}) <{{is_zero_poison = true}}> : (i64) -> i64')
    index = t.e.cast("zext", t.e.lane(x[1][0], first, I32), I32, I64)
    index = t.e.binary("and", index, t.e.scalar(63))
    kind = t.element_of(op.results[0])
    item = t.e.lane(x[0][0], first, kind)
    return [t.e.value(f"llvm.insertelement {item}, {x[2][0]}[{index} : i64] : {vec(kind)}")]


@known("llvm.amdgcn.ballot")
def ballot(t: Translation, op: Op, x: Operands) -> list[str]:
    """The active lanes whose bit is set, as an integer in all lanes."""
    kind = t.element_of(op.results[0])
    bits = t.e.binary("and", t.e.mask_bits(x[0][0]), t.mask_bits)
    if kind != I64:
        bits = t.e.cast("trunc", bits, I64, kind)
    return [t.e.splat(bits, kind)]


@known("llvm.amdgcn.mbcnt.lo", "llvm.amdgcn.mbcnt.hi")
def count_below(t: Translation, op: Op, x: Operands) -> list[str]:
    """Set bits of the mask below this lane, within the low (lanes 0-31) or high half, plus the second operand."""
    e = t.e
    if table_name(op).endswith("lo"):
        below = [(1 << min(lane, 32)) - 1 for lane in LANES]
    else:
        below = [(1 << max(lane - 32, 0)) - 1 for lane in LANES]
    masks = ", ".join(str(m - (1 << 32) if m >> 31 else m) for m in below)
    table = e.value(f"llvm.mlir.constant(dense<[{masks}]> : {vec(I32)}) : {vec(I32)}")
    counted = e.intrinsic("ctpop", I32, e.lanes("and", I32, x[0][0], table))
    return [e.lanes("add", I32, counted, x[1][0])]


@known("llvm.amdgcn.perm")
def permute_bytes(t: Translation, op: Op, x: Operands) -> list[str]:
    """v_perm_b32: each result byte is picked by a selector byte: 0-3 of the second operand, 4-7 of the first, 8-11 the
    sign of a 16-bit half (second low, second high, first low, first high), 12 zero, above 0xff."""
    return [t.lanewise("permute_bytes", [(x[0][0], I32), (x[1][0], I32), (x[2][0], I32)], I32)]


@known("llvm.amdgcn.workitem.id.x", "llvm.amdgcn.workitem.id.y", "llvm.amdgcn.workitem.id.z")
def thread_index(t: Translation, op: Op, x: Operands) -> list[str]:
    return [t.thread_index("xyz".index(table_name(op)[-1]))]


@known("llvm.amdgcn.workgroup.id.x", "llvm.amdgcn.workgroup.id.y", "llvm.amdgcn.workgroup.id.z")
def cta_index(t: Translation, op: Op, x: Operands) -> list[str]:
    return [t.cta_index("xyz".index(table_name(op)[-1]))]
