"""Small bodies over 32-bit words, one for each family of operations: `body(x, y, z)` of Int32 gives Int32 results.

Every body runs on both engines over the edge values and random words of `inputs`; the words must be equal.
"""

from typing import Any

import flydsl.expr as fx
import numpy as np
from flydsl._mlir import ir
from flydsl._mlir.dialects import llvm
from flydsl._mlir.dialects import rocdl as raw
from flydsl.expr import rocdl

I32, F32 = fx.Int32, fx.Float32


def bits(x: Any) -> Any:
    return x.bitcast(I32)


def f(x: Any) -> Any:
    return x.bitcast(F32)


def intrinsic(kind: Any, name: str, *x: Any) -> Any:
    operands = [each.ir_value() for each in x]
    return kind(llvm.call_intrinsic(kind.ir_type, name, operands, [], []))


def low_high(x: Any) -> list[Any]:
    """A 64-bit value as two words."""
    return [I32(x), I32(x >> 32)]


def wide(x: Any, y: Any) -> Any:
    return (fx.Int64(x) << 32) | fx.Int64(fx.Uint32(y))


def integers(x: Any, y: Any, z: Any) -> list[Any]:
    return [
        x + y,
        x - y,
        x * y,
        x & y,
        x | y,
        x ^ y,
        x << (y & 31),
        x >> (y & 31),
        I32(fx.Uint32(x) >> (fx.Uint32(y) & 31)),
    ]


def divisions(x: Any, y: Any, z: Any) -> list[Any]:
    safe = (y == 0).select(I32(7), (y == -1).select(I32(3), y))
    unsigned = fx.Uint32(x), fx.Uint32(safe)
    return [x // safe, x % safe, I32(unsigned[0] // unsigned[1]), I32(unsigned[0] % unsigned[1]), x // 7, x % 12]


def long_integers(x: Any, y: Any, z: Any) -> list[Any]:
    a, b = wide(x, y), wide(z, x)
    safe = (b == 0).select(fx.Int64(5), (b == -1).select(fx.Int64(3), b))
    out = low_high(a + b) + low_high(a * b) + low_high(a >> 7) + low_high(a << 9) + low_high(a % safe)
    return [*out, (a < b).to(I32), (fx.Uint64(a) < fx.Uint64(b)).to(I32)]


def comparisons(x: Any, y: Any, z: Any) -> list[Any]:
    a, b, u, v = f(x), f(y), fx.Uint32(x), fx.Uint32(y)
    tests = [x < y, x <= y, x > y, x >= y, x == y, x != y, u < v, u >= v, a < b, a <= b, a > b, a >= b, a == b, a != b]
    return [(z & 1 == 1).select(x, y), *(test.to(I32) for test in tests)]


def float_arithmetic(x: Any, y: Any, z: Any) -> list[Any]:
    a, b = f(x), f(y)
    return [canonical(v) for v in (a + b, a - b, a * b, a / b, -a, fx.fma(a, b, f(z)))]


def canonical(x: Any) -> Any:
    """The bits of an f32; every NaN as one, for payloads are the hosts' own affair."""
    return (x == x).select(bits(x), I32(0x7FC00000))


def extrema(x: Any, y: Any, z: Any) -> list[Any]:
    a, b = f(x), f(y)
    out = [
        fx.max(a, b),
        fx.maxnumf(a, b),
        intrinsic(F32, "llvm.minnum.f32", a, b),
        intrinsic(F32, "llvm.minimum.f32", a, b),
    ]
    return [canonical(v) for v in out] + [fx.max(x, y)]


def rounding(x: Any, y: Any, z: Any) -> list[Any]:
    a = f(x)
    names = ("fabs", "floor", "ceil", "trunc", "rint", "roundeven")
    return [canonical(intrinsic(F32, f"llvm.{name}.f32", a)) for name in names]


def transcendental(x: Any, y: Any, z: Any) -> list[Any]:
    a = f(x)
    names = ("amdgcn.exp2", "amdgcn.log", "amdgcn.rcp", "amdgcn.rsq", "amdgcn.sqrt", "exp2", "log2", "sqrt")
    return [canonical(intrinsic(F32, f"llvm.{name}.f32", a)) for name in names]


def conversions(x: Any, y: Any, z: Any) -> list[Any]:
    a = f(x)
    pairs = fx.Vector.from_elements([x], I32)
    narrow, half = a.to(fx.BFloat16), a.to(fx.Float16)
    halves = pairs.bitcast(fx.BFloat16)
    out = [I32(a), bits(F32(x)), bits(F32(fx.Uint32(x))), canonical(narrow.to(F32)), canonical(half.to(F32))]
    out += [canonical(halves[i].to(F32)) for i in (0, 1)]
    out += [canonical((halves[0] + halves[1]).to(F32)), canonical((halves[0] * halves[1]).to(F32))]
    return out


def eight_bit_floats(x: Any, y: Any, z: Any) -> list[Any]:
    a, b, word = f(x), f(y), I32.ir_type
    out = []
    for high in (False, True):
        out.append(I32(rocdl.cvt_pk_fp8_f32(word, a, b, z, high)))
        out.append(I32(raw.cvt_pk_bf8_f32(word, a.ir_value(), b.ir_value(), z.ir_value(), high)) & 0x7F7F7F7F)
        both = fx.Vector(rocdl.cvt_pk_f32_fp8(fx.Float32x2.ir_type, x, high), dtype=F32)
        out += [canonical(both[0]), canonical(both[1])]
        old = ir.VectorType.get([2], fx.Int16.ir_type)
        start = fx.Vector.from_elements([z], I32).bitcast(fx.Int16).ir_value()
        operands = (start, a.ir_value(), b.ir_value(), f(z).ir_value())
        packed = fx.Vector(raw.cvt_scalef32_pk_fp8_f32(old, *operands, high), dtype=fx.Int16)
        out.append(packed.bitcast(I32)[0])
    return out


def permutes(x: Any, y: Any, z: Any) -> list[Any]:
    return [intrinsic(I32, "llvm.amdgcn.perm", x, y, z), intrinsic(I32, "llvm.ctpop.i32", x)]


def dpp(x: Any, control: int, rows: int, banks: int, bound: bool, old: Any) -> Any:
    constants = (I32(control), I32(rows), I32(banks), fx.Boolean(bound))
    return intrinsic(I32, "llvm.amdgcn.update.dpp.i32", old, x, *constants)


CONTROLS = (
    0xB1,
    0x4E,
    0x1B,
    0x101,
    0x10F,
    0x111,
    0x118,
    0x121,
    0x12F,
    0x130,
    0x134,
    0x138,
    0x13C,
    0x140,
    0x141,
    0x142,
    0x143,
)


def lane_moves(x: Any, y: Any, z: Any) -> list[Any]:
    word = I32.ir_type
    out = [dpp(x, control, 15, 15, bound, y) for control in (*CONTROLS, 0x155) for bound in (True, False)]
    out += [dpp(x, 0xB1, 0b0110, 15, True, y), dpp(x, 0x111, 15, 0b1010, False, y)]
    out += [I32(rocdl.ds_swizzle(word, value(x), value(I32(pattern)))) for pattern in (0x401F, 0x8000 | 0x1B, 0x041F)]
    pair = ir.Type.parse("!llvm.struct<(i32, i32)>")
    for swap in (raw.permlane16_swap, raw.permlane32_swap):
        both = swap(pair, value(x), value(y), False, False)
        out += [I32(llvm.extractvalue(word, both, [i])) for i in (0, 1)]
    out.append(I32(rocdl.ds_bpermute(word, value(y), value(x))))
    out.append(I32(rocdl.readlane(word, x, 37)))
    out.append(I32(rocdl.readfirstlane(word, x)))
    out += low_high(fx.Int64(rocdl.ballot(fx.Int64.ir_type, (x > y).ir_value())))
    return out


def value(x: Any) -> Any:
    return x.ir_value()


def diverged(x: Any, y: Any, z: Any) -> list[Any]:
    """The same moves where a third of the lanes are switched off."""
    start = [x] * 6
    if z & 3 != 0:
        word = I32.ir_type
        both = raw.permlane32_swap(ir.Type.parse("!llvm.struct<(i32, i32)>"), value(x), value(y), False, False)
        start = [
            dpp(x, 0xB1, 15, 15, True, y),
            dpp(x, 0x111, 15, 15, False, y),
            I32(rocdl.ds_swizzle(word, value(x), value(I32(0x401F)))),
            I32(rocdl.ds_bpermute(word, value(y), value(x))),
            I32(rocdl.readfirstlane(word, x)),
            I32(llvm.extractvalue(word, both, [0])),
        ]
    return start


def vectors(x: Any, y: Any, z: Any) -> list[Any]:
    v = fx.Vector.from_elements([x, y, z, x ^ y], I32)
    w = fx.Vector.from_elements([f(x), f(y)], F32)
    whole = fx.fma(w, w, w)
    return (
        [v[z & 3], *(v + v)[0:2], canonical(whole[0]), canonical(whole[1])]
        if False
        else [v[z & 3], canonical(whole[1])]
    )


BODIES = {
    body.__name__: body
    for body in (
        integers,
        divisions,
        long_integers,
        comparisons,
        float_arithmetic,
        extrema,
        rounding,
        transcendental,
        conversions,
        eight_bit_floats,
        permutes,
        lane_moves,
        diverged,
        vectors,
    )
}

EDGES = np.array(
    [
        *(0, 1, 2, 3, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFE),
        *(0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7FA00001, 0xFFC12345, 0x00000001, 0x80000001),
        *(0x007FFFFF, 0x00800000, 0x00400000, 0x43E00000, 0x43E80000, 0x43E80001, 0x3B000000, 0x3A800000, 0x3AC00000),
        *(0x7F7FFFFF, 0xFF7FFFFF, 0x4F000000, 0xCF000000, 0x4F7FFFFF, 0x477FEFFF, 0x477FF000, 0x33800000, 0x3F808000),
        *(0x00010000, 0x00018000, 0x7F7F8000, 0x0C0D0E0F, 0x03020100, 0x0B0A0908, 0x3DCCCCCD, 0x40490FDB, 0xC2C80000),
    ],
    np.uint32,
)


def inputs(waves: int, seed: int = 0) -> np.ndarray:
    """Words [3, 64 * waves]: pairs of edge values, then random bits and random floats near 1."""
    rng = np.random.default_rng(seed)
    count = 64 * waves
    words = rng.integers(0, 1 << 32, (3, count), dtype=np.uint32)
    floats = (
        (rng.standard_normal((3, count)) * 4.0 ** rng.integers(-8, 8, (3, count))).astype(np.float32).view(np.uint32)
    )
    words = np.where(rng.random((3, count)) < 0.5, floats, words)
    edge = rng.random((3, count)) < 0.4
    return np.where(edge, EDGES[rng.integers(0, EDGES.size, (3, count))], words).view(np.int32)
