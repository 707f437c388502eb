"""Roundings, transcendentals and the MXFP8 block scale, on values in registers.

All of them work lane by lane on FlyDSL values and raise nothing at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flydsl.expr as fx

from monodraft.device import flydsl_names as fly
from monodraft.device.checks import require_type
from monodraft.formats.e8m0 import NAN as NAN_CODE
from monodraft.formats.mxfp8 import GREATEST_CODE, LEAST_CODE, RECIPROCAL_448_BITS

LOG2_E = 1.4426950408889634
MAGNITUDE = 0x7FFFFFFF
INFINITY_BITS = 0x7F800000


def bf16_bits(x: Any) -> Any:
    """bf16 bits of Float32 `x`, nearest even, in the low half of an Int32 (high half 0): `v_cvt_pk_bf16_f32`.

    Infinity stays infinity, subnormals are kept, a NaN becomes a quiet NaN; values past the largest bf16 round to
    infinity.
    """
    require_type("bf16_bits", "x", x, fx.Float32)
    return fx.Int32(x.to(fx.BFloat16).bitcast(fx.Uint16))


def bf16r(x: Any) -> Any:
    """Float32 `x` rounded to bf16 (as `bf16_bits`), as Float32."""
    return (bf16_bits(x) << 16).bitcast(fx.Float32)


def bfpair(a: Any, b: Any) -> Any:
    """bf16(a) | bf16(b) << 16 as an Int32, by one packed conversion (`v_cvt_pk_bf16_f32`)."""
    require_type("bfpair", "a", a, fx.Float32)
    require_type("bfpair", "b", b, fx.Float32)
    return fx.Vector.from_elements([a, b], fx.Float32).to(fx.BFloat16).bitcast(fx.Int32)[0]


def bf_low(word: Any) -> Any:
    """Float32 value of the bf16 in the low half of Int32 `word` (exact)."""
    return (word << 16).bitcast(fx.Float32)


def bf_high(word: Any) -> Any:
    """Float32 value of the bf16 in the high half of Int32 `word` (exact)."""
    return (word & -0x10000).bitcast(fx.Float32)


def unpack_pairs(words: Sequence[Any]) -> list[Any]:
    """Float32 values of bf16-pair words, low half first."""
    return [value for word in words for value in (bf_low(word), bf_high(word))]


def pack_pairs(values: Sequence[Any]) -> list[Any]:
    """bf16-pair words of an even number of Float32 values, low half first."""
    return [bfpair(values[i], values[i + 1]) for i in range(0, len(values), 2)]


def exp(x: Any) -> Any:
    """e^x of Float32 `x` as 2^(x log2 e), the product rounded once to f32; `llvm.exp2` does not flush small results.

    Error: that of `v_exp_f32` (1 ulp) plus the rounding of the product (|x| * 2^-24 relative). e^-inf = 0,
    e^inf = inf, NaN stays NaN.
    """
    require_type("exp", "x", x, fx.Float32)
    return fly.exp2(x * fx.Float32(LOG2_E))


def hw_sqrt(x: Any) -> Any:
    """`v_sqrt_f32` itself (1 ulp), not the correctly rounded expansion."""
    require_type("hw_sqrt", "x", x, fx.Float32)
    return fly.intrinsic(fx.Float32, "llvm.amdgcn.sqrt.f32", x)


def hw_rsqrt(x: Any) -> Any:
    """`v_rsq_f32` itself (1 ulp)."""
    require_type("hw_rsqrt", "x", x, fx.Float32)
    return fly.intrinsic(fx.Float32, "llvm.amdgcn.rsq.f32", x)


def opaque(v: Any, loop_var: Any) -> Any:
    """`v`, passed through an empty assembly statement with side effects that also reads Int32 `loop_var`.

    The compiler can neither hoist what is computed from the result out of the loop nor fold it between rounds, and it
    keeps the loop. Costs no instruction. `v` is a 32- or 64-bit value; `loop_var` must be the same in all lanes.
    """
    return fly.asm_value(v, "", "=v,0,s", v, loop_var)


def mx_scale(am: Any) -> tuple[Any, Any]:
    """MXFP8 scale of a block whose largest magnitude is Float32 `am` >= 0: (e8m0 code as Float32, 1 / scale).

    v = am * fl(1/448); code = v's exponent field, plus 1 if a mantissa bit is set, clamped to [1, 254]; the scale is
    2^(code - 127). Zero and subnormal `am`: code 1, 1 / scale = 2^126. Infinity or NaN: code 255, 1 / scale = NaN.
    The same bytes as `monodraft.formats.mxfp8.block_exponent`.
    """
    require_type("mx_scale", "am", am, fx.Float32)
    code = scale_code(am.bitcast(fx.Int32))
    inverse = (fx.Int32(254) - code) << 23
    # Code 254 means 2^127, whose reciprocal is the subnormal 2^-127 (no finite `am` reaches it).
    inverse = (code == GREATEST_CODE).select(fx.Int32(0x00400000), inverse)
    inverse = (code == NAN_CODE).select(fx.Int32(0x7FC00000), inverse)
    return code.to(fx.Float32), inverse.bitcast(fx.Float32)


def scale_code(amax_bits: Any) -> Any:
    """e8m0 code (Int32) of a block from the f32 bits of its largest magnitude (Int32, sign bit clear)."""
    reciprocal = fx.Int32(RECIPROCAL_448_BITS).bitcast(fx.Float32)
    v = (amax_bits.bitcast(fx.Float32) * reciprocal).bitcast(fx.Int32)
    # Adding all mantissa bits carries into the exponent exactly when one of them is set.
    code = fx.max(fx.min((v + 0x7FFFFF) >> 23, fx.Int32(GREATEST_CODE)), fx.Int32(LEAST_CODE))
    return (amax_bits >= INFINITY_BITS).select(fx.Int32(NAN_CODE), code)


def magnitude_bits(values: Sequence[Any]) -> Any:
    """Int32 bits of the largest magnitude among Float32 `values`.

    As integers, magnitudes order like the floats and every NaN lies above infinity: this maximum cannot lose a NaN.
    """
    most = values[0].bitcast(fx.Int32) & MAGNITUDE
    for value in values[1:]:
        most = fx.max(most, value.bitcast(fx.Int32) & MAGNITUDE)
    return most


def quantize_words(values: Sequence[Any], amax_bits: Any, code: Any) -> list[Any]:
    """e4m3 bytes, four an Int32, of Float32 `values` of a block with `amax_bits` and scale `code`.

    `v_cvt_scalef32_pk_fp8_f32`: value / 2^(code - 127), nearest even. The code makes every quotient at most 448, so
    nothing is left to saturate. A zero block gives bytes 0x00, a block with an infinity or a NaN bytes 0x7F.
    """
    scale = (code << 23).bitcast(fx.Float32)
    special = (amax_bits >= INFINITY_BITS).select(fx.Int32(0x7F7F7F7F), fx.Int32(0))
    ordinary = (amax_bits != 0) & (amax_bits < INFINITY_BITS)
    keep = ordinary.select(fx.Int32(-1), fx.Int32(0))
    words = [fly.scaled_fp8_word(values[i : i + 4], scale) for i in range(0, len(values), 4)]
    return [(word & keep) | special for word in words]
