"""Integer and float arithmetic, comparisons, selection: elementwise on lane vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monodraft.executor.fast.emit import BYTES, F16, F32, F64, I1, I8, I16, I32, I64, lane_type, vec
from monodraft.executor.fast.table import Operands, Unknown, known, table_name
from monodraft.executor.program import Op, Pointer, Scalar, Type, element

if TYPE_CHECKING:
    from monodraft.executor.fast.translate import Translation

INTEGER_PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
FLOAT_PREDICATES = (
    *("_false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord"),
    *("ueq", "ugt", "uge", "ult", "ule", "une", "uno", "_true"),
)
UNSIGNED = {"llvm.udiv", "llvm.urem"}


def is_bf16(kind: Type) -> bool:
    """Whether a scalar or a vector's element is bf16, which lane vectors hold as i16."""
    inner = element(kind)
    return isinstance(inner, Scalar) and inner.name == "bf16"


@known("llvm.add", "llvm.sub", "llvm.mul", "llvm.and", "llvm.or", "llvm.xor")
def integer_binary(t: Translation, op: Op, x: Operands) -> list[str]:
    kind = t.element_of(op.results[0])
    return [t.e.lanes(op.name[5:], kind, a, b) for a, b in zip(x[0], x[1], strict=True)]


@known("llvm.shl", "llvm.lshr", "llvm.ashr")
def shift(t: Translation, op: Op, x: Operands) -> list[str]:
    """The amount counts modulo the width, as the shifter of the GPU takes it."""
    kind = t.element_of(op.results[0])
    bound = t.e.splat_bits(8 * BYTES[kind] - 1, kind)
    amounts = x[1] if t.constant(op.operands[1]) is not None else [t.e.lanes("and", kind, b, bound) for b in x[1]]
    return [t.e.lanes(op.name[5:], kind, a, b) for a, b in zip(x[0], amounts, strict=True)]


@known("llvm.sdiv", "llvm.udiv", "llvm.srem", "llvm.urem")
def divide(t: Translation, op: Op, x: Operands) -> list[str]:
    """Division by zero and of the least integer by -1 give what division by 1 gives, and never trap."""
    kind = t.element_of(op.results[0])
    constant = t.constant(op.operands[1])
    if constant is not None and all(0 < each < 1 << (8 * BYTES[kind] - 1) for each in constant):
        return [t.e.lanes(op.name[5:], kind, a, b) for a, b in zip(x[0], x[1], strict=True)]
    return [divide_lanes(t, op.name, kind, a, b) for a, b in zip(x[0], x[1], strict=True)]


def divide_lanes(t: Translation, name: str, kind: str, a: str, b: str) -> str:
    """Up to 32 bits by a double's division, which truncates to the exact quotient: its error is at most
    a / (b 2^53), the distance of a fraction from the next integer at least 1 / b. 64 bits lane by lane."""
    e = t.e
    if kind in (I8, I16):
        widen = "zext" if name in UNSIGNED else "sext"
        wide = divide_lanes(t, name, I32, e.convert(widen, a, kind, I32), e.convert(widen, b, kind, I32))
        return e.convert("trunc", wide, I32, kind)
    if kind == I64:
        return t.lanewise(f"divide_{name[5:]}", [(a, I64), (b, I64)], I64)
    if kind != I32:
        raise Unknown(f"{name} on {kind}")
    one, zero = e.splat_bits(1, kind), e.splat_bits(0, kind)
    bad = e.test("eq", b, zero, kind)
    if name not in UNSIGNED:
        minus, least = e.splat_bits(-1, kind), e.splat_bits(1 << 31, kind)
        overflow = e.lanes("and", I1, e.test("eq", b, minus, kind), e.test("eq", a, least, kind))
        bad = e.lanes("or", I1, bad, overflow)
    b = e.select(bad, one, b, kind)
    to_float, to_int = ("uitofp", "fptoui") if name in UNSIGNED else ("sitofp", "fptosi")
    quotient = e.lanes("fdiv", F64, e.convert(to_float, a, kind, F64), e.convert(to_float, b, kind, F64))
    whole = e.convert(to_int, quotient, F64, kind)
    if name.endswith("div"):
        return whole
    return e.lanes("sub", kind, a, e.lanes("mul", kind, whole, b))


@known("llvm.fadd", "llvm.fsub", "llvm.fmul", "llvm.fdiv")
def float_binary(t: Translation, op: Op, x: Operands) -> list[str]:
    """One rounding. bf16 is computed in f32 and rounded, which is the same: 24 bits are more than 2 * 8 + 2."""
    operation, kind = op.name[5:], t.element_of(op.results[0])
    if is_bf16(t.type(op.results[0])):
        return [
            t.to_bf16(t.e.lanes(operation, F32, t.from_bf16(a), t.from_bf16(b)))
            for a, b in zip(x[0], x[1], strict=True)
        ]
    return [t.e.lanes(operation, kind, a, b) for a, b in zip(x[0], x[1], strict=True)]


@known("llvm.frem")
def float_remainder(t: Translation, op: Op, x: Operands) -> list[str]:
    if t.element_of(op.results[0]) != F32 or is_bf16(t.type(op.results[0])):
        raise Unknown(f"llvm.frem on {t.type(op.results[0])}")
    return [t.lanewise("special_fmod", [(a, F32), (b, F32)], F32) for a, b in zip(x[0], x[1], strict=True)]


@known("llvm.fneg")
def negate(t: Translation, op: Op, x: Operands) -> list[str]:
    kind = t.element_of(op.results[0])
    if is_bf16(t.type(op.results[0])):
        return [t.e.lanes("xor", I16, a, t.e.splat_bits(0x8000, I16)) for a in x[0]]
    return [t.e.lanes("fneg", kind, a) for a in x[0]]


@known("llvm.icmp")
def compare_integers(t: Translation, op: Op, x: Operands) -> list[str]:
    kind = t.element_of(op.operands[0])
    predicate = INTEGER_PREDICATES[op.attributes["predicate"]]
    return [t.e.test(predicate, a, b, kind) for a, b in zip(x[0], x[1], strict=True)]


@known("llvm.fcmp")
def compare_floats(t: Translation, op: Op, x: Operands) -> list[str]:
    kind = t.element_of(op.operands[0])
    predicate = FLOAT_PREDICATES[op.attributes["predicate"]]
    if is_bf16(t.type(op.operands[0])):
        x, kind = [[t.from_bf16(a) for a in side] for side in x], F32
    return [t.e.float_test(predicate, a, b, kind) for a, b in zip(x[0], x[1], strict=True)]


@known("llvm.select")
def select(t: Translation, op: Op, x: Operands) -> list[str]:
    tests = x[0] if len(x[0]) == len(x[1]) else x[0] * len(x[1])
    kinds = t.kinds(op.results[0])
    return [t.e.select(c, a, b, k) for c, a, b, k in zip(tests, x[1], x[2], kinds, strict=True)]


@known("llvm.freeze")
def freeze(t: Translation, op: Op, x: Operands) -> list[str]:
    return x[0]


ONE_OPERAND = ("fabs", "floor", "ceil", "trunc", "rint", "roundeven", "nearbyint", "sqrt")


@known(*(f"llvm.intr.{name}" for name in ONE_OPERAND))
def float_unary(t: Translation, op: Op, x: Operands) -> list[str]:
    """Exact (or, for sqrt, correctly rounded) functions of one float."""
    return [in_f32(t, op, table_name(op)[10:], a) for a in x[0]]


def in_f32(t: Translation, op: Op, name: str, *x: str) -> str:
    """Emit an intrinsic, bf16 and f16 by way of f32."""
    kind = t.element_of(op.results[0])
    if is_bf16(t.type(op.results[0])):
        return t.to_bf16(t.e.intrinsic(name, F32, *(t.from_bf16(a) for a in x)))
    if kind == F16:
        wide = t.e.intrinsic(name, F32, *(t.e.convert("fpext", a, F16, F32) for a in x))
        return t.e.convert("fptrunc", wide, F32, F16)
    return t.e.intrinsic(name, kind, *x)


@known("llvm.intr.fma", "llvm.intr.fmuladd")
def fused(t: Translation, op: Op, x: Operands) -> list[str]:
    """One rounding; LLVM fuses fmuladd on gfx950. f16 and bf16 products are exact in f64, sums of them too
    (11 + 11 bits, exponents within 53 bits of each other, or the smaller one only decides a tie in f64's rounding,
    which 53 >= 2 * 11 + 2 makes harmless)."""
    kind = t.element_of(op.results[0])
    out = []
    for a, b, c in zip(*x, strict=True):
        if is_bf16(t.type(op.results[0])):
            raise Unknown("fma on bf16")
        if kind == F16:
            wide = t.e.intrinsic("fma", F64, *(t.e.convert("fpext", v, F16, F64) for v in (a, b, c)))
            out.append(t.e.convert("fptrunc", wide, F64, F16))
        else:
            out.append(t.e.intrinsic("fma", kind, a, b, c))
    return out


@known("llvm.intr.copysign")
def copy_sign(t: Translation, op: Op, x: Operands) -> list[str]:
    return [in_f32(t, op, "copysign", a, b) for a, b in zip(x[0], x[1], strict=True)]


MAXIMA = {
    **{f"llvm.intr.{name}": (name[:3], name in ("maximum", "minimum")) for name in ("maximum", "minimum")},
    **{f"llvm.intr.{name}": (name[:3], False) for name in ("maxnum", "minnum", "maximumnum", "minimumnum")},
}


@known(*MAXIMA)
def extremum(t: Translation, op: Op, x: Operands) -> list[str]:
    """maximum and minimum: a NaN wins; maxnum and minnum: a number wins. +0 is above -0 in all of them."""
    which, nan_wins = MAXIMA[table_name(op)]
    return [float_extremum(t, t.type(op.results[0]), which, nan_wins, a, b) for a, b in zip(x[0], x[1], strict=True)]


def float_extremum(t: Translation, kind: Type, which: str, nan_wins: bool, a: str, b: str) -> str:
    """Maximum or minimum of two floats of any format, the same on every host."""
    e = t.e
    if is_bf16(kind):
        return t.to_bf16(float_extremum(t, Scalar(F32), which, nan_wins, t.from_bf16(a), t.from_bf16(b)))
    name = lane_type(element(kind))
    whole = {F16: I16, F32: I32, F64: I64}[name]
    bits_a, bits_b = e.bits_as(a, name, whole), e.bits_as(b, name, whole)
    # Equal numbers have equal bits, except zeros: "and" of them is +0 if either is, "or" is -0 if either is.
    same = e.bits_as(e.lanes("and" if which == "max" else "or", whole, bits_a, bits_b), whole, name)
    better = e.float_test("ogt" if which == "max" else "olt", a, b, name)
    result = e.select(better, a, b, name)
    result = e.select(e.float_test("oeq", a, b, name), same, result, name)
    for candidate, other in ((a, b), (b, a)):
        is_nan = e.float_test("uno", candidate, candidate, name)
        result = e.select(is_nan, candidate if nan_wins else other, result, name)
    return quiet(t, result, name, whole)


def quiet(t: Translation, x: str, name: str, whole: str) -> str:
    """A signalling NaN made quiet, as the GPU's float operations return it."""
    e = t.e
    bit = {F16: 1 << 9, F32: 1 << 22, F64: 1 << 51}[name]
    quieted = e.bits_as(e.lanes("or", whole, e.bits_as(x, name, whole), e.splat_bits(bit, whole)), whole, name)
    return e.select(e.float_test("uno", x, x, name), quieted, x, name)


@known("llvm.amdgcn.fmed3")
def median(t: Translation, op: Op, x: Operands) -> list[str]:
    """The middle of three: maxnum(minnum(a, b), minnum(maxnum(a, b), c))."""
    kind, (a, b, c) = t.type(op.results[0]), (each[0] for each in x)
    low, high = (float_extremum(t, kind, which, False, a, b) for which in ("min", "max"))
    return [float_extremum(t, kind, "max", False, low, float_extremum(t, kind, "min", False, high, c))]


@known("llvm.amdgcn.mul.hi", "llvm.amdgcn.mulhi")
def high_product(t: Translation, op: Op, x: Operands) -> list[str]:
    """The high half of a 32 x 32 unsigned product."""
    e = t.e
    wide = e.lanes("mul", I64, *(e.convert("zext", each[0], I32, I64) for each in x))
    return [e.convert("trunc", e.lanes("lshr", I64, wide, e.splat_bits(32, I64)), I64, I32)]


@known(*(f"llvm.intr.{name}" for name in ("smax", "smin", "umax", "umin")))
def integer_extremum(t: Translation, op: Op, x: Operands) -> list[str]:
    kind = t.element_of(op.results[0])
    return [t.e.intrinsic(table_name(op)[10:], kind, a, b) for a, b in zip(x[0], x[1], strict=True)]


@known(*(f"llvm.intr.{name}" for name in ("ctpop", "bswap")))
def count_bits(t: Translation, op: Op, x: Operands) -> list[str]:
    return [t.e.intrinsic(table_name(op)[10:], t.element_of(op.results[0]), a) for a in x[0]]


@known("llvm.intr.ctlz", "llvm.intr.cttz")
def count_zeros(t: Translation, op: Op, x: Operands) -> list[str]:
    """The width for 0."""
    kind = vec(t.element_of(op.results[0]))
    return [t.e.value(f'"{table_name(op)}"({a}) <{{is_zero_poison = false}}> : ({kind}) -> {kind}') for a in x[0]]


@known("llvm.intr.abs")
def absolute(t: Translation, op: Op, x: Operands) -> list[str]:
    kind = vec(t.element_of(op.results[0]))
    return [t.e.value(f'"{table_name(op)}"({a}) <{{is_int_min_poison = false}}> : ({kind}) -> {kind}') for a in x[0]]


REDUCTIONS = ("add", "mul", "and", "or", "xor", "smax", "smin", "umax", "umin")


@known(*(f"llvm.intr.vector.reduce.{name}" for name in REDUCTIONS))
def reduce_integers(t: Translation, op: Op, x: Operands) -> list[str]:
    """Over the components of each lane's vector."""
    name, kind, result = table_name(op).rpartition(".")[2], t.element_of(op.results[0]), x[0][0]
    for part in x[0][1:]:
        result = t.e.intrinsic(name, kind, result, part) if "m" in name[1:2] else t.e.lanes(name, kind, result, part)
    return [result]


@known("llvm.intr.vector.reduce.fadd", "llvm.intr.vector.reduce.fmul")
def reduce_floats(t: Translation, op: Op, x: Operands) -> list[str]:
    """From the left, start value first, one rounding each."""
    if is_bf16(t.type(op.results[0])):
        raise Unknown(f"{op.name} on bf16")
    return [t.e.chain(table_name(op).rpartition(".")[2], t.element_of(op.results[0]), [x[0][0], *x[1]])]


FLOAT_REDUCTIONS = {
    "fmax": ("max", False),
    "fmin": ("min", False),
    "fmaximum": ("max", True),
    "fminimum": ("min", True),
}


@known(*(f"llvm.intr.vector.reduce.{name}" for name in FLOAT_REDUCTIONS))
def reduce_extremum(t: Translation, op: Op, x: Operands) -> list[str]:
    which, nan_wins = FLOAT_REDUCTIONS[table_name(op).rpartition(".")[2]]
    result = x[0][0]
    for part in x[0][1:]:
        result = float_extremum(t, t.type(op.results[0]), which, nan_wins, result, part)
    return [result]


@known("llvm.getelementptr")
def element_pointer(t: Translation, op: Op, x: Operands) -> list[str]:
    """Base plus indices times strides; constant indices are in the attribute, -2^31 marks one that is an operand."""
    from monodraft.executor.program import Array, Struct, Vector

    kind: Type = op.attributes["elem_type"]
    result, operand = x[0][0], 1
    for depth, index in enumerate(op.attributes["rawConstantIndices"]):
        if depth and isinstance(kind, Struct):
            result = plus_constant(t, result, kind.offset(index))
            kind = kind.fields[index]
            continue
        if depth:
            assert isinstance(kind, Array | Vector), kind
            kind = kind.element
        if index != -(2**31):
            result = plus_constant(t, result, index * kind.bytes)
            continue
        amount = t.e.convert("sext", x[operand][0], t.element_of(op.operands[operand]), I64)
        operand += 1
        scaled = t.e.lanes("mul", I64, amount, t.e.splat_bits(kind.bytes, I64))
        result = t.e.lanes("add", I64, result, scaled)
    pointer = t.type(op.results[0])
    if isinstance(pointer, Pointer) and pointer.bytes == 4:
        # Narrow pointers wrap at 32 bits.
        result = t.e.lanes("and", I64, result, t.e.splat_bits(0xFFFFFFFF, I64))
    return [result]


def plus_constant(t: Translation, x: str, number: int) -> str:
    return t.e.lanes("add", I64, x, t.e.splat_bits(number, I64)) if number else x
