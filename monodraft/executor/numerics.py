"""Arithmetic of gfx950 on NumPy arrays of lanes (or NumPy scalars where all lanes agree), bit for bit where stated.

Stand-ins: v_exp_f32, v_log_f32, v_rcp_f32, v_rsq_f32 and v_sqrt_f32 are computed in double and rounded once to f32; the
hardware documents 1 ulp, so a test must not need their last bit. All five flush subnormal inputs and results to a zero
of the same sign, as the ISA manual says; everything else keeps subnormals (the default float mode of these kernels).
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

Lanes = Any  # an array of 64 lanes or a NumPy scalar

UNSIGNED = {np.int8: np.uint8, np.int16: np.uint16, np.int32: np.uint32, np.int64: np.uint64, np.bool_: np.bool_}
F32_MIN_NORMAL = np.float32(2.0**-126)


def unsigned(x: Lanes) -> Lanes:
    """The same bits as an unsigned integer."""
    return x.view(UNSIGNED.get(x.dtype.type, x.dtype.type))


# ---- integers


def shift_right_logical(a: Lanes, b: Lanes) -> Lanes:
    return (unsigned(a) >> unsigned(b)).view(a.dtype)


def divide_signed(a: Lanes, b: Lanes) -> Lanes:
    """Truncating division; by zero gives 0 (undefined in LLVM)."""
    return (a - np.fmod(a, b)) // b


def divide_unsigned(a: Lanes, b: Lanes) -> Lanes:
    return (unsigned(a) // unsigned(b)).view(a.dtype)


def remainder_signed(a: Lanes, b: Lanes) -> Lanes:
    """C's remainder: the sign of the dividend."""
    return np.fmod(a, b)


def remainder_unsigned(a: Lanes, b: Lanes) -> Lanes:
    return (unsigned(a) % unsigned(b)).view(a.dtype)


def max_unsigned(a: Lanes, b: Lanes) -> Lanes:
    return np.maximum(unsigned(a), unsigned(b)).view(a.dtype)


def min_unsigned(a: Lanes, b: Lanes) -> Lanes:
    return np.minimum(unsigned(a), unsigned(b)).view(a.dtype)


def multiply_high(a: Lanes, b: Lanes) -> Lanes:
    """The high 32 bits of a 32 x 32 unsigned product."""
    wide = unsigned(a).astype(np.uint64) * unsigned(b).astype(np.uint64)
    return (wide >> np.uint64(32)).astype(np.uint32).view(np.int32)


def leading_zeros(x: Lanes) -> Lanes:
    """Number of leading zero bits; the width for 0."""
    bits = x.dtype.itemsize * 8
    value = np.asarray(unsigned(x), np.uint64)
    count = np.full(value.shape, bits, np.int64)
    for bit in range(bits):
        count = np.where((value >> np.uint64(bit)) & np.uint64(1) == 1, bits - 1 - bit, count)
    return count.astype(x.dtype)[()]


def trailing_zeros(x: Lanes) -> Lanes:
    """Number of trailing zero bits; the width for 0."""
    value = unsigned(x)
    lowest = value & (~value + value.dtype.type(1))
    count = np.bitwise_count(lowest - lowest.dtype.type(1))
    # For 0 the subtraction wraps to all ones, which counts the width.
    return np.asarray(count).astype(x.dtype)[()]


# ---- floats


def flush(x: Lanes) -> Lanes:
    """Subnormals to a zero of the same sign."""
    flushed: Any = np.where(np.abs(x) < F32_MIN_NORMAL, np.copysign(np.float32(0), x), x)
    return flushed.astype(np.float32)[()]


def rounded(wide: Lanes) -> Lanes:
    """A double rounded to f32, subnormal results flushed."""
    return flush(np.asarray(wide).astype(np.float32)[()])


def hardware_exp2(x: Lanes) -> Lanes:
    return rounded(np.exp2(flush(x).astype(np.float64)))


def hardware_log2(x: Lanes) -> Lanes:
    return rounded(np.log2(flush(x).astype(np.float64)))


def hardware_sqrt(x: Lanes) -> Lanes:
    return rounded(np.sqrt(flush(x).astype(np.float64)))


def hardware_rcp(x: Lanes) -> Lanes:
    return rounded(np.float64(1) / flush(x).astype(np.float64))


def hardware_rsq(x: Lanes) -> Lanes:
    return rounded(np.float64(1) / np.sqrt(flush(x).astype(np.float64)))


def through_double(function: Any, x: Lanes) -> Lanes:
    """A correctly rounded f32 (or double) function, subnormals kept: the llvm.* intrinsics."""
    return np.asarray(function(x.astype(np.float64))).astype(x.dtype)[()]


def maximum(a: Lanes, b: Lanes) -> Lanes:
    """IEEE 754-2019 maximum: NaN wins, +0 above -0."""
    return np.where((a == 0) & (b == 0), a + b, np.maximum(a, b)).astype(a.dtype)[()]


def minimum(a: Lanes, b: Lanes) -> Lanes:
    """IEEE 754-2019 minimum: NaN wins, -0 below +0."""
    return np.where((a == 0) & (b == 0), -(-a - b), np.minimum(a, b)).astype(a.dtype)[()]


def maxnum(a: Lanes, b: Lanes) -> Lanes:
    """The number wins over NaN; +0 above -0."""
    return np.where((a == 0) & (b == 0), a + b, np.fmax(a, b)).astype(a.dtype)[()]


def minnum(a: Lanes, b: Lanes) -> Lanes:
    """The number wins over NaN; -0 below +0."""
    return np.where((a == 0) & (b == 0), -(-a - b), np.fmin(a, b)).astype(a.dtype)[()]


def fused_multiply_add(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """f32 a * b + c with one rounding: the product is exact in double, the sum is rounded to odd, then to f32."""
    product = a.astype(np.float64) * b.astype(np.float64)
    return round_to_odd_sum(product, np.float64(c)).astype(np.float32)[()]


def round_to_odd_sum(a: Lanes, b: Lanes) -> Lanes:
    """a + b in double, an inexact result moved to its odd neighbour: rounding that to f32 rounds once."""
    total, error = two_sum(np.asarray(a, np.float64), np.asarray(b, np.float64))
    return make_odd(total, error)


def two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rounded sum and its exact error (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def make_odd(total: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Where `error` is not 0 and `total` is even, the neighbour of `total` on the side of the exact value."""
    even = (total.view(np.uint64) & np.uint64(1)) == 0
    move = (error != 0) & even & np.isfinite(total) & np.isfinite(error)
    return np.where(move, np.nextafter(total, np.where(error > 0, np.inf, -np.inf)), total)


def float_to_signed(x: Lanes, kind: type) -> Lanes:
    """Truncation that saturates; NaN gives 0 (v_cvt_i32_f32)."""
    limits = np.iinfo(kind)
    wide = np.trunc(np.asarray(x, np.float64))
    safe = np.where(np.isnan(wide), 0.0, np.clip(wide, float(limits.min), float(limits.max)))
    top = wide >= float(limits.max)
    return np.where(top, limits.max, np.where(top, 0.0, safe).astype(np.int64)).astype(kind)[()]


def float_to_unsigned(x: Lanes, kind: type) -> Lanes:
    """Truncation that saturates at 0 and the largest; NaN gives 0. `kind` is the signed type that holds the bits."""
    holder = UNSIGNED[kind]
    top_value = float(np.iinfo(holder).max)
    wide = np.trunc(np.asarray(x, np.float64))
    top = wide >= top_value
    safe = np.where(np.isnan(wide) | (wide < 0) | top, 0.0, wide).astype(np.uint64)
    return np.where(top, np.iinfo(holder).max, safe).astype(holder).view(kind)[()]


# ---- bf16, carried as its 16 bits in np.uint16


def bf16_to_f32(bits: Lanes) -> Lanes:
    return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)[()]


def f32_to_bf16(x: Lanes) -> Lanes:
    """Round to nearest even; NaN stays NaN (its upper payload kept, quieted), subnormals kept."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(x), quiet, nearest).astype(np.uint16)[()]


# ---- fp8 (OCP e4m3fn, e5m2), e8m0, e2m1

E4M3 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
E5M2 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e5m2).astype(np.float32)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
# 2^(byte - 127); byte 0 is 2^-127 (a subnormal f32, exact), 255 is NaN.
E8M0 = np.concatenate([np.ldexp(np.float64(1), np.arange(255) - 127), [np.nan]])


def f32_to_fp8(x: Lanes, kind: Any = ml_dtypes.float8_e4m3fn) -> Lanes:
    """The byte (as uint32): nearest even, subnormals kept. e4m3: beyond 464 and Inf become NaN (no saturation: the
    mode bit FP16_OVFL is clear in FlyDSL's kernels); e5m2: beyond the largest becomes Inf."""
    return np.asarray(x, np.float32).astype(kind).view(np.uint8).astype(np.uint32)[()]


def pack_fp8(a: Lanes, b: Lanes, old: Lanes, high: bool, kind: Any = ml_dtypes.float8_e4m3fn) -> Lanes:
    """v_cvt_pk_fp8_f32 / bf8: two bytes into the low or high half of `old`."""
    pair = f32_to_fp8(a, kind) | (f32_to_fp8(b, kind) << np.uint32(8))
    kept = unsigned(np.asarray(old))
    if high:
        return ((kept & np.uint32(0xFFFF)) | (pair << np.uint32(16))).view(np.int32)[()]
    return ((kept & np.uint32(0xFFFF0000)) | pair).view(np.int32)[()]


def scale_of(scale: Lanes) -> Lanes:
    """v_cvt_scalef32_* use the exponent field of their f32 scale only: 2^(field - 127), as a double."""
    field = (np.asarray(scale, np.float32).view(np.uint32) >> np.uint32(23)) & np.uint32(255)
    return np.ldexp(np.float64(1), field.astype(np.int32) - 127)


def pack_fp8_scaled(old: Any, a: Lanes, b: Lanes, scale: Lanes, high: bool) -> Any:
    """v_cvt_scalef32_pk_fp8_f32: x / 2^exponent(scale), rounded once; `old` is a pair of i16."""
    divisor = scale_of(scale)
    low = f32_to_fp8_exact(a, divisor)
    word = (low | (f32_to_fp8_exact(b, divisor) << np.uint32(8))).astype(np.uint16).view(np.int16)[()]
    return (old[0], word) if high else (word, old[1])


def f32_to_fp8_exact(x: Lanes, divisor: Lanes) -> Lanes:
    """e4m3 of x / divisor, a power of two: the quotient is exact in double, the conversion rounds once."""
    quotient = np.asarray(x).astype(np.float64) / divisor
    # ml_dtypes would round doubles by way of f32; to odd keeps the sticky bit.
    narrow = quotient.astype(np.float32)
    error = quotient - narrow.astype(np.float64)
    even = (narrow.view(np.uint32) & np.uint32(1)) == 0
    move = (error != 0) & even & np.isfinite(narrow)
    odd = np.where(move, np.nextafter(narrow, np.where(error > 0, np.float32(np.inf), np.float32(-np.inf))), narrow)
    return f32_to_fp8(odd.astype(np.float32))


def unpack_fp8(word: Lanes, byte: int, table: np.ndarray = E4M3) -> Lanes:
    """Byte `byte` of a word as f32."""
    return table[(unsigned(np.asarray(word)) >> np.uint32(8 * byte)) & np.uint32(255)]


def permute_bytes(high: Lanes, low: Lanes, selector: Lanes) -> Lanes:
    """v_perm_b32: result byte i is byte selector[i] of low (0-3) or high (4-7); 12 is 0x00, above 12 is 0xFF; 8 to 11
    are the signs of bytes 1, 3 of low and 1, 3 of high."""
    high, low, selector = (unsigned(np.asarray(x)).astype(np.uint64) for x in (high, low, selector))
    both = (high << np.uint64(32)) | low
    result = np.zeros(np.broadcast_shapes(both.shape, selector.shape), np.uint64)
    for position in range(4):
        select = (selector >> np.uint64(8 * position)) & np.uint64(255)
        byte = (both >> ((select & np.uint64(7)) * np.uint64(8))) & np.uint64(255)
        sign_bit = ((select - np.uint64(8)) & np.uint64(3)) * np.uint64(16) + np.uint64(15)
        sign = ((both >> sign_bit) & np.uint64(1)) * np.uint64(255)
        byte = np.where(select < 8, byte, np.where(select < 12, sign, np.where(select == 12, 0, 255)))
        result |= byte.astype(np.uint64) << np.uint64(8 * position)
    return result.astype(np.uint32).view(np.int32)[()]
