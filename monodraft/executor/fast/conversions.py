"""Casts between number formats, and repacking of components."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monodraft.executor.fast.arithmetic import is_bf16
from monodraft.executor.fast.emit import BYTES, F16, F32, F64, I1, I16, I32, I64
from monodraft.executor.fast.table import Operands, Unknown, known, table_name
from monodraft.executor.program import BUFFER_SPACE, NARROW_SPACES, Op, Pointer, Scalar, element

if TYPE_CHECKING:
    from monodraft.executor.fast.translate import Translation


@known("llvm.sext", "llvm.zext", "llvm.trunc")
def resize(t: Translation, op: Op, x: Operands) -> list[str]:
    source, target = t.element_of(op.operands[0]), t.element_of(op.results[0])
    return [t.e.convert(op.name[5:], a, source, target) for a in x[0]]


@known("llvm.fpext", "llvm.fptrunc")
def resize_float(t: Translation, op: Op, x: Operands) -> list[str]:
    """One rounding to nearest even. f64 to bf16 goes by way of f32 rounded to odd, so that it rounds once."""
    source, target = element(t.type(op.operands[0])), element(t.type(op.results[0]))
    assert isinstance(source, Scalar)
    assert isinstance(target, Scalar)
    return [convert_float(t, a, source.name, target.name) for a in x[0]]


def convert_float(t: Translation, a: str, source: str, target: str) -> str:
    if source == "bf16":
        wide = t.from_bf16(a)
        return wide if target == F32 else convert_float(t, wide, F32, target)
    if target == "bf16":
        if source == F64:
            a = to_f32_odd(t, a)
        elif source == F16:
            a = t.e.convert("fpext", a, F16, F32)
        return t.to_bf16(a)
    widths = {F16: 16, F32: 32, F64: 64}
    return t.e.convert("fpext" if widths[target] > widths[source] else "fptrunc", a, source, target)


def towards_zero(t: Translation, x: str, source: str, target: str) -> tuple[str, str]:
    """A float cut to a narrower one: its bits, and a mask of the lanes that lost something."""
    e, whole = t.e, {F16: I16, F32: I32}[target]
    near = e.convert("fptrunc", x, source, target)
    back, bits = e.convert("fpext", near, target, source), e.bits_as(near, target, whole)
    beyond = e.float_test("ogt", e.intrinsic("fabs", source, back), e.intrinsic("fabs", source, x), source)
    cut = e.select(beyond, e.lanes("sub", whole, bits, e.splat_bits(1, whole)), bits, whole)
    return cut, e.float_test("one", back, x, source)


def to_f32_odd(t: Translation, x: str) -> str:
    """f64 to f32 rounded to odd: a later rounding to 22 bits or fewer is then the only one."""
    e = t.e
    cut, inexact = towards_zero(t, x, F64, F32)
    odd = e.lanes("or", I32, cut, e.splat_bits(1, I32))
    return e.bits_as(e.select(inexact, odd, cut, I32), I32, F32)


@known("llvm.sitofp", "llvm.uitofp")
def to_float(t: Translation, op: Op, x: Operands) -> list[str]:
    source, target, out = t.element_of(op.operands[0]), t.element_of(op.results[0]), []
    for a in x[0]:
        if source == I64 and is_bf16(t.type(op.results[0])):
            raise Unknown(f"{op.name} from i64 to bf16")
        if is_bf16(t.type(op.results[0])):
            # 32-bit integers are exact in f64; the rounding to odd in between keeps it one rounding.
            exact = t.e.convert(op.name[5:], a, source, F64)
            out.append(convert_float(t, exact, F64, "bf16"))
        else:
            out.append(t.e.convert(op.name[5:], a, source, target))
    return out


@known("llvm.fptosi", "llvm.fptoui", "llvm.intr.fptosi.sat", "llvm.intr.fptoui.sat")
def to_integer(t: Translation, op: Op, x: Operands) -> list[str]:
    """Towards zero; out of range saturates and NaN gives 0, as v_cvt_i32_f32 does."""
    source, target = t.element_of(op.operands[0]), t.element_of(op.results[0])
    name = "fptosi.sat" if "fptosi" in op.name else "fptoui.sat"
    out = []
    for a in x[0]:
        if is_bf16(t.type(op.operands[0])):
            a, source = t.from_bf16(a), F32
        # As a call: the operation of that name has no translation for vectors.
        kinds = f"(vector<64x{source}>) -> vector<64x{target}>"
        out.append(t.e.value(f'llvm.call_intrinsic "llvm.{name}"({a}) : {kinds}'))
    return out


RESOURCE = Pointer(BUFFER_SPACE)


@known("llvm.inttoptr", "llvm.ptrtoint", "llvm.addrspacecast")
def pointer_cast(t: Translation, op: Op, x: Operands) -> list[str]:
    """Pointers are held as i64, narrow ones zero-extended."""
    source, target = t.type(op.operands[0]), t.type(op.results[0])
    if source == RESOURCE:
        return resource_words(t, op, x[0])
    if target == RESOURCE:
        return resource_of(t, x[0])
    if op.name == "llvm.addrspacecast":
        narrow = [isinstance(k, Pointer) and k.space in NARROW_SPACES for k in (source, target)]
        if any(narrow):
            raise Unknown(f"llvm.addrspacecast from {source} to {target}")
        return x[0]
    from_kind, to_kind = t.element_of(op.operands[0]), t.element_of(op.results[0])
    value = x[0][0]
    if from_kind != to_kind:
        value = t.e.convert("zext" if BYTES[to_kind] > BYTES[from_kind] else "trunc", value, from_kind, to_kind)
    if isinstance(target, Pointer) and target.space in NARROW_SPACES:
        value = t.e.lanes("and", I64, value, t.e.splat_bits(0xFFFFFFFF, I64))
    return [value]


def resource_words(t: Translation, op: Op, resource: list[str]) -> list[str]:
    """A buffer resource as its four words: a base of 48 bits, the size, and flags that read 0."""
    if op.name != "llvm.ptrtoint":
        raise Unknown(f"{op.name} of a buffer resource")
    e = t.e
    low, high = split(t, resource[0], 2, I64, I32)
    high = e.lanes("and", I32, high, e.splat_bits(0xFFFF, I32))
    return [low, high, e.convert("trunc", resource[1], I64, I32), e.splat_bits(0, I32)]


def resource_of(t: Translation, words: list[str]) -> list[str]:
    """Four words as a buffer resource."""
    high = t.e.lanes("and", I32, words[1], t.e.splat_bits(0xFFFF, I32))
    return [join(t, [words[0], high], I32, I64), t.e.convert("zext", words[2], I32, I64)]


@known("llvm.bitcast")
def bitcast(t: Translation, op: Op, x: Operands) -> list[str]:
    return repack(t, x[0], t.kinds(op.operands[0]), t.kinds(op.results[0]))


def repack(t: Translation, parts: list[str], source: list[str], target: list[str]) -> list[str]:
    """The same bits in components of another size, little-endian."""
    e = t.e
    if len(source) == len(target):
        return [e.bits_as(a, s, k) for a, s, k in zip(parts, source, target, strict=True)]
    if I1 in (source[0], target[0]):
        raise Unknown("bitcast of a vector of i1")
    narrow, wide = f"i{8 * BYTES[source[0]]}", f"i{8 * BYTES[target[0]]}"
    parts = [e.bits_as(a, source[0], narrow) for a in parts]
    if BYTES[narrow] < BYTES[wide]:
        ratio = BYTES[wide] // BYTES[narrow]
        joined = [join(t, parts[i : i + ratio], narrow, wide) for i in range(0, len(parts), ratio)]
    else:
        ratio = BYTES[narrow] // BYTES[wide]
        joined = [piece for a in parts for piece in split(t, a, ratio, narrow, wide)]
    return [e.bits_as(a, wide, k) for a, k in zip(joined, target, strict=True)]


def join(t: Translation, parts: list[str], narrow: str, wide: str) -> str:
    shifted = []
    for index, part in enumerate(parts):
        value = t.e.convert("zext", part, narrow, wide)
        amount = t.e.splat_bits(8 * BYTES[narrow] * index, wide)
        shifted.append(t.e.lanes("shl", wide, value, amount) if index else value)
    return t.e.chain("or", wide, shifted)


def split(t: Translation, part: str, ratio: int, wide: str, narrow: str) -> list[str]:
    pieces = []
    for index in range(ratio):
        amount = t.e.splat_bits(8 * BYTES[narrow] * index, wide)
        value = t.e.lanes("lshr", wide, part, amount) if index else part
        pieces.append(t.e.convert("trunc", value, wide, narrow))
    return pieces


# -- 8-bit floats


def selected(t: Translation, op: Op, attribute: str, operand: int) -> int:
    """A selector that is an attribute of the rocdl operation or an operand of the intrinsic."""
    if attribute in op.attributes:
        return int(op.attributes[attribute])
    return t.need_constant(op, operand)


@known("llvm.amdgcn.cvt.pk.fp8", "llvm.amdgcn.cvt.pk.bf8")
def pack_fp8(t: Translation, op: Op, x: Operands) -> list[str]:
    """Two f32 as e4m3 (bf8: e5m2) into the half of the old word that `wordSel` names."""
    convert = to_bf8 if table_name(op).endswith("bf8") else to_fp8
    half = pair(t, convert(t, x[0][0]), convert(t, x[1][0]))
    return [insert_half(t, x[2][0], half, bool(selected(t, op, "wordSel", 3)))]


def pair(t: Translation, low: str, high: str) -> str:
    """Two bytes (zero-extended) in the low half of an i32."""
    return t.e.lanes("or", I32, low, t.e.lanes("shl", I32, high, t.e.splat_bits(8, I32)))


def insert_half(t: Translation, old: str, half: str, high: bool) -> str:
    """A 16-bit half (zero-extended) put into a word."""
    e = t.e
    kept = e.lanes("and", I32, old, e.splat_bits(0xFFFF if high else 0xFFFF0000, I32))
    moved = e.lanes("shl", I32, half, e.splat_bits(16, I32)) if high else half
    return e.lanes("or", I32, kept, moved)


def to_fp8(t: Translation, x: str) -> str:
    """f32 to OCP e4m3, nearest even. Above 464 (the tie between 448 and the absent 480), Inf and NaN: NaN."""
    e = t.e
    bits = e.bits_as(x, F32, I32)
    size = e.lanes("and", I32, bits, e.splat_bits(0x7FFFFFFF, I32))
    sign = e.lanes("and", I32, e.lanes("lshr", I32, bits, e.splat_bits(24, I32)), e.splat_bits(0x80, I32))
    # Normal results: round the f32 mantissa to 3 bits, rebias the exponent from 127 to 7.
    odd = e.lanes("and", I32, e.lanes("lshr", I32, size, e.splat_bits(20, I32)), e.splat_bits(1, I32))
    rounded = e.lanes("add", I32, e.lanes("add", I32, size, e.splat_bits(0x7FFFF, I32)), odd)
    normal = e.lanes("sub", I32, e.lanes("lshr", I32, rounded, e.splat_bits(20, I32)), e.splat_bits(120 << 3, I32))
    # Subnormal results: adding 2^14 leaves multiples of 2^-9 in the mantissa, rounded to nearest even.
    shifted = e.lanes("fadd", F32, e.bits_as(size, I32, F32), e.splat_bits(0x46800000, F32))
    small = e.lanes("sub", I32, e.bits_as(shifted, F32, I32), e.splat_bits(0x46800000, I32))
    below = e.test("ult", size, e.splat_bits(121 << 23, I32), I32)
    code = e.select(below, small, normal, I32)
    top = e.splat_bits(127, I32)
    code = e.select(e.test("ugt", code, top, I32), top, code, I32)
    # The largest f32 rounds up past the sign bit; NaNs above it wrap. Both are beyond 464.
    code = e.select(e.test("ugt", size, e.splat_bits(0x43E80000, I32), I32), top, code, I32)
    return e.lanes("or", I32, code, sign)


def to_bf8(t: Translation, x: str) -> str:
    """f32 to e5m2, nearest even, by way of f16 (of which it is the upper byte) rounded to odd.
    Beyond the largest: Inf."""
    e = t.e
    cut, inexact = towards_zero(t, x, F32, F16)
    half = e.select(inexact, e.lanes("or", I16, cut, e.splat_bits(1, I16)), cut, I16)
    bits = e.convert("zext", half, I16, I32)
    odd = e.lanes("and", I32, e.lanes("lshr", I32, bits, e.splat_bits(8, I32)), e.splat_bits(1, I32))
    rounded = e.lanes("add", I32, e.lanes("add", I32, bits, e.splat_bits(0x7F, I32)), odd)
    code = e.lanes("lshr", I32, rounded, e.splat_bits(8, I32))
    sign = e.lanes(
        "and", I32, e.lanes("lshr", I32, e.bits_as(x, F32, I32), e.splat_bits(24, I32)), e.splat_bits(128, I32)
    )
    nan = e.lanes("or", I32, sign, e.splat_bits(0x7E, I32))
    return e.select(e.float_test("uno", x, x, F32), nan, code, I32)


@known("llvm.amdgcn.cvt.scalef32.pk.fp8")
def pack_scaled_fp8(t: Translation, op: Op, x: Operands) -> list[str]:
    """Two f32 over the power of two in the scale's exponent, as e4m3 into one half of a <2 x i16>."""
    e = t.e
    old, a, b, scale = x[0], x[1][0], x[2][0], x[3][0]
    if t.element_of(op.operands[1]) != F32:
        raise Unknown(f"cvt.scalef32.pk.fp8 of {t.type(op.operands[1])}")
    half = pair(t, *(to_fp8(t, scaled_down(t, v, scale)) for v in (a, b)))
    half = e.convert("trunc", half, I32, I16)
    return [old[0], half] if selected(t, op, "dstLoHiSel", 4) else [half, old[1]]


def scaled_down(t: Translation, x: str, scale: str) -> str:
    """x over 2^(exponent field of `scale` - 127), the field being 0 to 255. By two powers of two that f32 has: exact
    where e4m3 can tell the result from 0 and from Inf."""
    e = t.e
    field = e.lanes(
        "and", I32, e.lanes("lshr", I32, e.bits_as(scale, F32, I32), e.splat_bits(23, I32)), e.splat_bits(255, I32)
    )
    power = e.lanes("sub", I32, e.splat_bits(127, I32), field)
    half = e.lanes("ashr", I32, power, e.splat_bits(1, I32))
    for part in (half, e.lanes("sub", I32, power, half)):
        factor = e.lanes("shl", I32, e.lanes("add", I32, part, e.splat_bits(127, I32)), e.splat_bits(23, I32))
        x = e.lanes("fmul", F32, x, e.bits_as(factor, I32, F32))
    return x


@known("llvm.amdgcn.cvt.pk.f32.fp8", "llvm.amdgcn.cvt.pk.f32.bf8")
def unpack_fp8(t: Translation, op: Op, x: Operands) -> list[str]:
    """The two bytes of a half of a word as f32."""
    read = from_bf8 if table_name(op).endswith("bf8") else from_fp8
    first = 2 * selected(t, op, "wordSel", 1)
    return [read(t, x[0][0], first + i) for i in (0, 1)]


@known("llvm.amdgcn.cvt.f32.fp8", "llvm.amdgcn.cvt.f32.bf8")
def unpack_one_fp8(t: Translation, op: Op, x: Operands) -> list[str]:
    """One byte of a word as f32."""
    read = from_bf8 if table_name(op).endswith("bf8") else from_fp8
    return [read(t, x[0][0], selected(t, op, "byteSel", 1))]


def from_bf8(t: Translation, word: str, index: int) -> str:
    """Byte `index` of a word of e5m2 as f32, exact: the upper byte of an f16."""
    e = t.e
    byte = e.lanes("lshr", I32, word, e.splat_bits(8 * index, I32)) if index else word
    bits = e.lanes("shl", I16, e.convert("trunc", byte, I32, I16), e.splat_bits(8, I16))
    return e.convert("fpext", e.bits_as(bits, I16, F16), F16, F32)


def from_fp8(t: Translation, word: str, index: int) -> str:
    """Byte `index` of a word of e4m3 as f32, exact."""
    e = t.e
    byte = e.lanes("lshr", I32, word, e.splat_bits(8 * index, I32)) if index else word
    size = e.lanes("and", I32, byte, e.splat_bits(0x7F, I32))
    sign = e.lanes("shl", I32, e.lanes("and", I32, byte, e.splat_bits(0x80, I32)), e.splat_bits(24, I32))
    # Exponent and mantissa moved to where f32 has them and rebiased; subnormals are multiples of 2^-9.
    moved = e.lanes("shl", I32, size, e.splat_bits(20, I32))
    normal = e.bits_as(e.lanes("add", I32, moved, e.splat_bits(120 << 23, I32)), I32, F32)
    small = e.lanes("fmul", F32, e.convert("sitofp", size, I32, F32), e.splat_bits(0x3B000000, F32))
    number = e.select(e.test("ult", size, e.splat_bits(8, I32), I32), small, normal, F32)
    number = e.select(e.test("eq", size, e.splat_bits(0x7F, I32), I32), e.splat_bits(0x7FC00000, F32), number, F32)
    return e.bits_as(e.lanes("or", I32, e.bits_as(number, F32, I32), sign), I32, F32)


# -- aggregates: only renaming


@known("llvm.extractvalue")
def extract_value(t: Translation, op: Op, x: Operands) -> list[str]:
    start, count = t.part(t.type(op.operands[0]), op.attributes["position"])
    return x[0][start : start + count]


@known("llvm.insertvalue")
def insert_value(t: Translation, op: Op, x: Operands) -> list[str]:
    start, count = t.part(t.type(op.operands[0]), op.attributes["position"])
    return [*x[0][:start], *x[1], *x[0][start + count :]]


@known("llvm.shufflevector")
def shuffle_components(t: Translation, op: Op, x: Operands) -> list[str]:
    both = [*x[0], *x[1]]
    return [both[max(index, 0)] for index in op.attributes["mask"]]


@known("llvm.extractelement")
def extract_element(t: Translation, op: Op, x: Operands) -> list[str]:
    index = t.constant(op.operands[1])
    if index is not None:
        return [x[0][index[0]] if index[0] < len(x[0]) else x[0][0]]
    kind, index_kind, result = t.element_of(op.results[0]), t.element_of(op.operands[1]), x[0][0]
    for number, part in enumerate(x[0][1:], 1):
        here = t.e.test("eq", x[1][0], t.e.splat_bits(number, index_kind), index_kind)
        result = t.e.select(here, part, result, kind)
    return [result]


@known("llvm.insertelement")
def insert_element(t: Translation, op: Op, x: Operands) -> list[str]:
    index = t.constant(op.operands[2])
    if index is not None:
        return [x[1][0] if number == index[0] else part for number, part in enumerate(x[0])]
    kinds, index_kind, out = t.kinds(op.results[0]), t.element_of(op.operands[2]), []
    for number, (part, kind) in enumerate(zip(x[0], kinds, strict=True)):
        here = t.e.test("eq", x[2][0], t.e.splat_bits(number, index_kind), index_kind)
        out.append(t.e.select(here, x[1][0], part, kind))
    return out
