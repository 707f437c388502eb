"""The library functions of matrix operations: exact products, exact sums, one rounding to f32, as `executor/matrix.py`
states it.

Each shape and format is a function over the lane vectors in memory. Operands become doubles in [k][row] order; sums of
products that fit in a double's 53 bits are taken by fused multiply-adds in any order: the 32 products of a block of
e4m3 or e2m1 always fit (at most 41 bits), others are looked at first. The blocks' sums and C are then added with their
errors; where an error is not zero, and where the products do not fit, `runtime_exact` sums exactly.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from monodraft.executor.fast.emit import I32, I64

SIGNIFICANT = {"bf16": 8, "f16": 11, "f32": 24, "fp8_e4m3": 4, "fp8_e5m2": 3, "fp4_e2m1": 2}
"""Significant bits of a format."""

EXACT_IN_BLOCK = {"fp8_e4m3", "fp4_e2m1"}
EXACT_BITS = 52


@dataclass(frozen=True)
class Shape:
    """One matrix operation: `size` rows and columns, `depth` products, the operands' formats, scaled or not."""

    size: int
    depth: int
    left: str
    right: str
    scaled: bool

    @property
    def name(self) -> str:
        kind = "scaled" if self.scaled else "plain"
        return f"matrix_{kind}_{self.size}_{self.depth}_{self.left}_{self.right}"

    @property
    def registers(self) -> int:
        """f32 registers of C and D."""
        return self.size * self.size // 64

    @property
    def per_lane(self) -> int:
        """Elements of an operand that a lane holds."""
        return self.depth * self.size // 64

    @property
    def blocks(self) -> int:
        """Sums that are kept apart until the rounding."""
        return self.depth // 32 if self.scaled else 1

    @property
    def always_fits(self) -> bool:
        return {self.left, self.right} <= EXACT_IN_BLOCK


def shape_of(name: str) -> Shape:
    """A shape from its library function's name."""
    match = re.fullmatch(
        r"matrix_(scaled|plain)_(\d+)_(\d+)_(bf16|f16|f32|fp\d_e\dm\d)_(bf16|f16|f32|fp\d_e\dm\d)", name
    )
    assert match is not None, name
    return Shape(int(match[2]), int(match[3]), match[4], match[5], match[1] == "scaled")


# -- the functions


class Text:
    """Lines of one function over raw pointers."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.count = 0

    def emit(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def value(self, expression: str) -> str:
        self.count += 1
        self.emit(f"%v{self.count} = {expression}")
        return f"%v{self.count}"

    def op(self, name: str, kind: str, *x: str) -> str:
        return self.value(f"llvm.{name} {', '.join(x)} : {kind}")

    def fma(self, kind: str, a: str, b: str, c: str) -> str:
        return self.value(f"llvm.intr.fma({a}, {b}, {c}) : ({kind}, {kind}, {kind}) -> {kind}")

    def number(self, value: int | str, kind: str = I64) -> str:
        if kind.startswith("vector"):
            return self.value(f"llvm.mlir.constant(dense<{value}> : {kind}) : {kind}")
        return self.value(f"llvm.mlir.constant({value} : {kind}) : {kind}")

    def at(self, base: str, offset: int | str) -> str:
        if isinstance(offset, int):
            return self.value(f"llvm.getelementptr {base}[{offset}] : (!llvm.ptr) -> !llvm.ptr, i8") if offset else base
        return self.value(f"llvm.getelementptr {base}[{offset}] : (!llvm.ptr, i64) -> !llvm.ptr, i8")

    def load(self, kind: str, pointer: str, align: int = 8) -> str:
        return self.value(f"llvm.load {pointer} {{alignment = {align} : i64}} : !llvm.ptr -> {kind}")

    def store(self, x: str, kind: str, pointer: str, align: int = 8) -> None:
        self.emit(f"llvm.store {x}, {pointer} {{alignment = {align} : i64}} : {kind}, !llvm.ptr")

    def splat(self, x: str, count: int, kind: str) -> str:
        vector = f"vector<{count}x{kind}>"
        undefined, zero = self.value(f"llvm.mlir.undef : {vector}"), self.number(0, I32)
        first = self.value(f"llvm.insertelement {x}, {undefined}[{zero} : i32] : {vector}")
        return self.value(f"llvm.shufflevector {first}, {first} [{', '.join(['0'] * count)}] : {vector}")

    def loop(self, stem: str, limit: int, carried: list[tuple[str, str]]) -> tuple[str, list[str], str]:
        """Open a loop from 0 below `limit`: the counter, the carried values' names, and the stem for `close`."""
        self.count += 1
        stem = f"{stem}{self.count}"
        zero = self.number(0)
        names = [f"%{stem}_{i}" for i in range(len(carried))]
        values = ", ".join([zero, *(v for v, _ in carried)])
        kinds = ", ".join([I64, *(k for _, k in carried)])
        self.emit(f"llvm.br ^{stem}({values} : {kinds})")
        arguments = ", ".join([f"%{stem}: i64", *(f"{n}: {k}" for n, (_, k) in zip(names, carried, strict=True))])
        self.lines.append(f"^{stem}({arguments}):")
        return f"%{stem}", names, stem

    def close(self, stem: str, limit: int, carried: list[tuple[str, str]]) -> None:
        """Go round until the limit; after it the carried values are the ones given here."""
        next_ = self.op("add", I64, f"%{stem}", self.number(1))
        more = self.value(f'llvm.icmp "slt" {next_}, {self.number(limit)} : i64')
        values = ", ".join([next_, *(v for v, _ in carried)])
        kinds = ", ".join([I64, *(k for _, k in carried)])
        self.emit(f"llvm.cond_br {more}, ^{stem}({values} : {kinds}), ^{stem}_end")
        self.lines.append(f"^{stem}_end:")


def matrix_library(name: str) -> str:
    """The module with one matrix function `name(a, b, c, scale_a, scale_b, out)`, all addresses."""
    shape = shape_of(name)
    t = Text()
    work = workspace(shape)
    t.emit(f"%bytes = llvm.mlir.constant({work['end']} : i64) : i64")
    t.emit("%work = llvm.alloca %bytes x i8 {alignment = 64 : i64} : (i64) -> !llvm.ptr")
    for each in ("a", "b", "c", "sa", "sb", "out"):
        t.emit(f"%p{each} = llvm.inttoptr %{each} : i64 to !llvm.ptr")
    left = decode(t, shape, "%pa", t.at("%work", work["left"]), shape.left)
    right = decode(t, shape, "%pb", t.at("%work", work["right"]), shape.right)
    if shape.scaled:
        scale_factors(t, "%psa", t.at("%work", work["scale_left"]))
        scale_factors(t, "%psb", t.at("%work", work["scale_right"]))
    if shape.always_fits:
        sums(t, shape, work)
        rounding(t, shape, work)
    elif shape.scaled:
        scale_elements(t, shape, work)
        exactly(t, shape, work)
    else:
        fits = window(t, shape, left, right)
        t.emit(f"llvm.cond_br {fits}, ^fits, ^exact")
        t.lines.append("^exact:")
        exactly(t, shape, work)
        t.emit(f"llvm.return {t.number(0)} : i64")
        t.lines.append("^fits:")
        sums(t, shape, work)
        rounding(t, shape, work)
    t.emit(f"llvm.return {t.number(0)} : i64")
    return "\n".join(
        [
            "module {",
            "llvm.func @round_terms(i64, i64, i64, i64, i64, i64, i64) -> i64",
            "llvm.func @exact_matrix(i64, i64, i64, i64, i64, i64, i64) -> i64",
            f"llvm.func @{name}(%a: i64, %b: i64, %c: i64, %sa: i64, %sb: i64, %out: i64) -> i64 "
            'attributes {passthrough = ["noinline"]} {',
            *t.lines,
            "}",
            "}",
            "",
        ]
    )


def workspace(shape: Shape) -> dict[str, int]:
    """Byte offsets in the working space."""
    operand, terms = 8 * shape.depth * shape.size, 8 * shape.size * shape.size
    places, top = {}, 0
    sizes = {"left": operand, "right": operand, "scale_left": 512, "scale_right": 512, "terms": shape.blocks * terms}
    for key, nbytes in {**sizes, "partials": 4096}.items():
        places[key] = top
        top += nbytes
    return {**places, "end": top}


def position(shape: Shape, form: str, group: int, j: int) -> int:
    """The k of element j of a lane in a group."""
    groups = 64 // shape.size
    if shape.scaled and form.startswith("fp8"):
        return j // 16 * 16 * groups + 16 * group + j % 16
    return shape.per_lane * group + j


def decode(t: Text, shape: Shape, source: str, target: str, form: str) -> list[str]:
    """Elements as doubles [k][row]; their f32 (or raw) lane vectors are handed back for `window`."""
    wide, result = "vector<64xf64>", []
    for j in range(shape.per_lane):
        number = element(t, source, form, j)
        result.append(number)
        double = t.value(f"llvm.fpext {number} : vector<64xf32> to {wide}")
        for group in range(64 // shape.size):
            lanes = ", ".join(str(group * shape.size + i) for i in range(shape.size))
            row = t.value(f"llvm.shufflevector {double}, {double} [{lanes}] : {wide}")
            place = t.at(target, 8 * shape.size * position(shape, form, group, j))
            t.store(row, f"vector<{shape.size}xf64>", place, 64)
    return result


def element(t: Text, source: str, form: str, j: int) -> str:
    """Element j of every lane as f32, exact."""
    words, floats = "vector<64xi32>", "vector<64xf32>"
    if form == "f32":
        return t.load(floats, t.at(source, 256 * j), 64)
    if form == "f16":
        half = t.load("vector<64xf16>", t.at(source, 128 * j), 64)
        return t.value(f"llvm.fpext {half} : vector<64xf16> to {floats}")
    if form == "bf16":
        bits = t.load("vector<64xi16>", t.at(source, 128 * j), 64)
        wide = t.value(f"llvm.zext {bits} : vector<64xi16> to {words}")
        return t.value(f"llvm.bitcast {t.op('shl', words, wide, t.number(16, words))} : {words} to {floats}")
    # Small formats: exponent and mantissa moved to where f32 has them and rebiased; subnormals as integers. (A product
    # with a power of two would do both, but subnormal operands cost the host 150 cycles each.)
    per, bits_, mantissa, unit, rebias, special = {
        "fp8_e4m3": (4, 8, 3, "0x3B000000", 120 << 23, 0x7F),
        "fp8_e5m2": (4, 8, 2, "0x37800000", 112 << 23, 0x7D),
        "fp4_e2m1": (8, 4, 1, "0x3F000000", 126 << 23, 0),
    }[form]
    word = t.load(words, t.at(source, 256 * (j // per)), 64)
    code = t.op("lshr", words, word, t.number(bits_ * (j % per), words)) if j % per else word
    top = 1 << (bits_ - 1)
    size = t.op("and", words, code, t.number(top - 1, words))
    sign = t.op("shl", words, t.op("and", words, code, t.number(top, words)), t.number(32 - bits_, words))
    moved = t.op("shl", words, size, t.number(23 - mantissa, words))
    normal = t.value(f"llvm.bitcast {t.op('add', words, moved, t.number(rebias, words))} : {words} to {floats}")
    whole = t.value(f"llvm.sitofp {size} : {words} to {floats}")
    small = t.op("fmul", floats, whole, t.number(unit, floats))
    below = t.value(f'llvm.icmp "ult" {size}, {t.number(1 << mantissa, words)} : {words}')
    value = t.value(f"llvm.select {below}, {small}, {normal} : vector<64xi1>, {floats}")
    if form == "fp8_e5m2":
        infinite = t.value(f'llvm.icmp "eq" {size}, {t.number(0x7C, words)} : {words}')
        value = t.value(f"llvm.select {infinite}, {t.number('0x7F800000', floats)}, {value} : vector<64xi1>, {floats}")
    if special:
        above = t.value(f'llvm.icmp "uge" {size}, {t.number(special, words)} : {words}')
        value = t.value(f"llvm.select {above}, {t.number('0x7FC00000', floats)}, {value} : vector<64xi1>, {floats}")
    signed = t.op("or", words, t.value(f"llvm.bitcast {value} : {floats} to {words}"), sign)
    return t.value(f"llvm.bitcast {signed} : {words} to {floats}")


def scale_factors(t: Text, source: str, target: str) -> None:
    """e8m0 bytes of all lanes as doubles: 2^(byte - 127), 255 is NaN. Lane size * b + r is row r of block b."""
    longs, doubles = "vector<64xi64>", "vector<64xf64>"
    byte = t.value(f"llvm.zext {t.load('vector<64xi32>', source, 64)} : vector<64xi32> to {longs}")
    power = t.op("shl", longs, t.op("add", longs, byte, t.number(1023 - 127, longs)), t.number(52, longs))
    nan = t.value(f'llvm.icmp "eq" {byte}, {t.number(255, longs)} : {longs}')
    bits = t.value(f"llvm.select {nan}, {t.number(0x7FF8 << 48, longs)}, {power} : vector<64xi1>, {longs}")
    t.store(t.value(f"llvm.bitcast {bits} : {longs} to {doubles}"), doubles, target, 64)


def sums(t: Text, shape: Shape, work: dict[str, int]) -> None:
    """The sums of products of every block, times the block's scales, in the order of C's registers."""
    m, row = shape.size, f"vector<{shape.size}xf64>"
    chunk = 128 // m
    depth = shape.depth // shape.blocks
    block, _, outer = t.loop("block", shape.blocks, [])
    left, right = (block_pointer(t, work[side], block, 8 * depth * m) for side in ("left", "right"))
    terms = block_pointer(t, work["terms"], block, 8 * m * m)
    scales = [block_pointer(t, work[f"scale_{side}"], block, 8 * m) for side in ("left", "right")]
    for first in range(0, m, chunk):
        zero = t.number("0.0", row)
        k, totals, inner = t.loop("k", depth, [(zero, row)] * chunk)
        offset = t.op("mul", I64, k, t.number(8 * m))
        columns, rows = t.load(row, t.at(right, offset), 64), t.at(left, offset)
        totals = [
            t.fma(row, t.splat(t.load("f64", t.at(rows, 8 * (first + i))), m, "f64"), columns, totals[i])
            for i in range(chunk)
        ]
        t.close(inner, depth, [(each, row) for each in totals])
        for i, total in enumerate(totals):
            if shape.scaled:
                total = t.op("fmul", row, total, t.splat(t.load("f64", t.at(scales[0], 8 * (first + i))), m, "f64"))
                total = t.op("fmul", row, total, t.load(row, scales[1], 64))
            t.store(total, row, t.at(terms, 8 * m * register_place(m, first + i)), 64)
    t.close(outer, shape.blocks, [])


def block_pointer(t: Text, start: int, block: str, step: int) -> str:
    return t.at(t.at("%work", start), t.op("mul", I64, block, t.number(step)))


def register_place(m: int, row: int) -> int:
    """Where a row of D lies in the registers, in units of m lanes: register * groups + group."""
    if m == 16:
        return row % 4 * 4 + row // 4
    return (row // 8 * 4 + row % 4) * 2 + row // 4 % 2


def rounding(t: Text, shape: Shape, work: dict[str, int]) -> None:
    """D = terms + C, added with their errors; rows with an inexact step are summed again exactly."""
    m, row = shape.size, f"vector<{shape.size}xf64>"
    place, _, stem = t.loop("place", m, [])
    terms = block_pointer(t, work["terms"], place, 8 * m)
    narrow = t.op("mul", I64, place, t.number(4 * m))
    c, out = t.at("%pc", narrow), t.at("%pout", narrow)
    values = [t.load(row, t.at(terms, 8 * m * m * b), 64) for b in range(shape.blocks)]
    values.append(t.value(f"llvm.fpext {t.load(f'vector<{m}xf32>', c, 4)} : vector<{m}xf32> to {row}"))
    zero = t.number("0.0", row)
    total, wrong = zero, t.number("false", f"vector<{m}xi1>")
    for value in values:
        total, error = two_sum(t, row, total, value)
        lost = t.value(f'llvm.fcmp "une" {error}, {zero} : {row}')
        wrong = t.op("or", f"vector<{m}xi1>", wrong, lost)
    t.store(t.value(f"llvm.fptrunc {total} : {row} to vector<{m}xf32>"), f"vector<{m}xf32>", out, 4)
    finite = t.value(f'llvm.fcmp "oeq" {t.op("fsub", row, total, total)}, {zero} : {row}')
    bits = t.value(f"llvm.bitcast {t.op('and', f'vector<{m}xi1>', wrong, finite)} : vector<{m}xi1> to i{m}")
    lanes = t.value(f"llvm.zext {bits} : i{m} to i64")
    some = t.value(f'llvm.icmp "ne" {lanes}, {t.number(0)} : i64')
    arguments = [address(t, terms), t.number(8 * m * m), t.number(shape.blocks), address(t, c), address(t, out)]
    arguments += [lanes, address(t, t.at("%work", work["partials"]))]
    t.emit(f"llvm.cond_br {some}, ^{stem}_exact, ^{stem}_on")
    t.lines.append(f"^{stem}_exact:")
    t.value(f"llvm.call @round_terms({', '.join(arguments)}) : ({', '.join([I64] * 7)}) -> i64")
    t.emit(f"llvm.br ^{stem}_on")
    t.lines.append(f"^{stem}_on:")
    t.close(stem, m, [])


def two_sum(t: Text, kind: str, a: str, b: str) -> tuple[str, str]:
    """The rounded sum and its exact error (Knuth)."""
    total = t.op("fadd", kind, a, b)
    part = t.op("fsub", kind, total, a)
    first = t.op("fsub", kind, a, t.op("fsub", kind, total, part))
    return total, t.op("fadd", kind, first, t.op("fsub", kind, b, part))


def address(t: Text, pointer: str) -> str:
    return t.value(f"llvm.ptrtoint {pointer} : !llvm.ptr to i64")


def window(t: Text, shape: Shape, left: list[str], right: list[str]) -> str:
    """Whether every sum of products fits in 52 bits: from the largest and least exponents of the operands."""
    ends = [exponent_range(t, side) for side in (left, right)]
    span = t.op("sub", I32, t.op("add", I32, ends[0][1], ends[1][1]), t.op("add", I32, ends[0][0], ends[1][0]))
    more = 2 + shape.depth.bit_length() + SIGNIFICANT[shape.left] + SIGNIFICANT[shape.right]
    small = t.value(f'llvm.icmp "sle" {span}, {t.number(EXACT_BITS - more, I32)} : i32')
    # Inf and NaN have the largest exponent.
    finite = [t.value(f'llvm.icmp "ne" {high}, {t.number(255, I32)} : i32') for _, high in ends]
    return t.op("and", "i1", small, t.op("and", "i1", *finite))


def exponent_range(t: Text, parts: list[str]) -> tuple[str, str]:
    """The least and the largest exponent field among the nonzero elements."""
    words = "vector<64xi32>"
    low, high, zero = t.number(255, words), t.number(0, words), t.number(0, words)
    for part in parts:
        bits = t.value(f"llvm.bitcast {part} : vector<64xf32> to {words}")
        size = t.op("and", words, bits, t.number(0x7FFFFFFF, words))
        field = t.op("lshr", words, size, t.number(23, words))
        nothing = t.value(f'llvm.icmp "eq" {size}, {zero} : {words}')
        least = t.value(f"llvm.select {nothing}, {t.number(255, words)}, {field} : vector<64xi1>, {words}")
        low = t.value(f'"llvm.intr.smin"({low}, {least}) : ({words}, {words}) -> {words}')
        high = t.value(f'"llvm.intr.smax"({high}, {field}) : ({words}, {words}) -> {words}')
    return (
        t.value(f'"llvm.intr.vector.reduce.smin"({low}) : ({words}) -> i32'),
        t.value(f'"llvm.intr.vector.reduce.smax"({high}) : ({words}) -> i32'),
    )


def scale_elements(t: Text, shape: Shape, work: dict[str, int]) -> None:
    """Every element times its block's scale, exact in a double."""
    m, row = shape.size, f"vector<{shape.size}xf64>"
    k, _, stem = t.loop("scale", shape.depth, [])
    block = t.op("mul", I64, t.op("lshr", I64, k, t.number(5)), t.number(8 * m))
    offset = t.op("mul", I64, k, t.number(8 * m))
    for side in ("left", "right"):
        place = t.at(t.at("%work", work[side]), offset)
        factor = t.load(row, t.at(t.at("%work", work[f"scale_{side}"]), block), 64)
        t.store(t.op("fmul", row, t.load(row, place, 64), factor), row, place, 64)
    t.close(stem, shape.depth, [])


def exactly(t: Text, shape: Shape, work: dict[str, int]) -> None:
    """All outputs by exact sums."""
    left, right, partials = (address(t, t.at("%work", work[key])) for key in ("left", "right", "partials"))
    arguments = [left, right, "%c", "%out", t.number(shape.size), t.number(shape.depth), partials]
    t.value(f"llvm.call @exact_matrix({', '.join(arguments)}) : ({', '.join([I64] * 7)}) -> i64")
