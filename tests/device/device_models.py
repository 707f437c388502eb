"""Independent NumPy models of the device words, and the edge values that they are compared on.

Conversions come from ml_dtypes, exact sums from Python integers; nothing here is shared with monodraft.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]

E4M3 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)


def f32(bits: Any) -> F32:
    """float32 of bit patterns."""
    return np.asarray(bits, np.uint32).view(np.float32)


def bits(values: F32) -> NDArray[np.uint32]:
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


def to_bf16(values: F32) -> NDArray[np.uint16]:
    """bf16 patterns, nearest even."""
    with np.errstate(invalid="ignore"):
        return np.asarray(values, np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)


def from_bf16(patterns: NDArray[np.uint16]) -> F32:
    return (np.asarray(patterns, np.uint16).astype(np.uint32) << 16).view(np.float32)


def round_bf16(values: F32) -> F32:
    return from_bf16(to_bf16(values))


# -- edge values ------------------------------------------------------------------------------------------------------


def all_bf16() -> F32:
    """Every bf16 pattern: zeros, subnormals, infinities and every NaN payload of 7 bits."""
    return from_bf16(np.arange(65536, dtype=np.uint32).astype(np.uint16))


def bf16_neighbours() -> F32:
    """Round every bf16 pattern: itself, the tie above it, and one f32 ulp to both sides of each."""
    base = np.arange(65536, dtype=np.uint32) << 16
    return f32(np.concatenate([base + low for low in (0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]))


def near_powers(centre: float) -> F32:
    """`centre` * 2^k and up to 4 ulp to both sides, for every k that is a positive finite f32."""
    powers = [np.float32(np.ldexp(centre, k)) for k in range(-160, 130) if 0 < np.ldexp(centre, k) < 2.0**128]
    steps = np.arange(-4, 5, dtype=np.int64)
    around = bits(np.array(powers, np.float32)).astype(np.int64)[:, None] + steps
    return f32(np.clip(around, 0, 0x7F7FFFFF).astype(np.uint32).ravel())


def amax_edges() -> F32:
    """Magnitudes on which a block scale can go wrong."""
    special = f32([0, 1, 2, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x7F800001, 0x7FFFFFFF])
    bf16 = np.abs(all_bf16())
    return np.concatenate([special, bf16, near_powers(448.0), near_powers(1.75), near_powers(1.0)])


def random_f32(rng: np.random.Generator, count: int, low: int = -149, high: int = 128) -> F32:
    """Random mantissas over a range of exponents."""
    return np.ldexp(rng.uniform(-2, 2, count), rng.integers(low, high, count)).astype(np.float32)


def bf16_rows(rng: np.random.Generator, rows: int, width: int) -> NDArray[np.uint16]:
    """bf16 rows whose 32-blocks hold the cases of MXFP8: zeros, subnormals, ties, one NaN, one infinity, wide ranges.

    Block b of a row is case b % 12 of row-dependent random content.
    """
    values = rng.standard_normal((rows, width // 32, 32)).astype(np.float32)
    values *= np.ldexp(np.float32(1), rng.integers(-20, 20, (rows, width // 32, 1))).astype(np.float32)
    patterns = to_bf16(values)
    e4m3_ties = round_bf16(((E4M3[:120] + E4M3[1:121]) / 2).astype(np.float32))
    for row in range(rows):
        for block in range(width // 32):
            patterns[row, block] = _case((block + row) % 12, patterns[row, block], e4m3_ties, rng)
    return patterns.reshape(rows, width)


def _case(case: int, block: NDArray[np.uint16], ties: F32, rng: np.random.Generator) -> NDArray[np.uint16]:
    place = rng.integers(32)
    if case == 1:
        block = np.zeros(32, np.uint16)
    elif case == 2:
        block = np.where(np.arange(32) % 2, np.uint16(0x8000), np.uint16(0)).astype(np.uint16)
    elif case == 3:
        block[place] = rng.choice([0x7FC1, 0xFFFF, 0x7F81])
    elif case == 4:
        block[place] = rng.choice([0x7F80, 0xFF80])
    elif case == 5:
        block = rng.integers(0, 0x80, 32).astype(np.uint16) | rng.choice([0, 0x8000], 32).astype(np.uint16)
    elif case == 6:
        block = to_bf16(rng.choice(ties, 32) * rng.choice([-1, 1], 32).astype(np.float32))
        block[place] = to_bf16(np.float32([448]))[0]
    elif case == 7:
        block[place] = rng.choice([0x7F7F, 0xFF7F])
    elif case == 8:
        block = np.zeros(32, np.uint16)
        block[place] = rng.integers(1, 0x7F80)
    return block


# -- MXFP8 ------------------------------------------------------------------------------------------------------------


def scale_codes(amax: F32) -> NDArray[np.int64]:
    """e8m0 code: ceil(log2 v) + 127 for v = amax * fl(1/448), clamped to 1 .. 254; 255 for infinity and NaN."""
    special = ~np.isfinite(amax)
    v = np.where(special, np.float32(1), amax) * np.float32(1 / 448)
    mantissa, exponent = np.frexp(v)
    code = np.where(mantissa == 0.5, exponent - 1, exponent) + 127
    code = np.where(v == 0, 1, np.clip(code, 1, 254))
    return np.where(special, 255, code).astype(np.int64)


def quantize(x: F32) -> tuple[U8, U8]:
    """e4m3 bytes and e8m0 codes of x [..., K], blocks of 32 along K."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    magnitudes = np.abs(blocks).max(axis=-1)  # NaN wins in NumPy's max
    codes = scale_codes(magnitudes)
    with np.errstate(all="ignore"):
        scaled = np.ldexp(blocks.astype(np.float64), (127 - codes)[..., None])
        elements = scaled.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    elements = np.where((magnitudes == 0)[..., None], np.uint8(0), elements)
    elements = np.where((codes == 255)[..., None], np.uint8(0x7F), elements)
    return elements.reshape(x.shape), codes.astype(np.uint8)


def operands(elements: U8, codes: U8, waves: int, c: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """What every lane of a CTA holds of chunk `c`: words [threads, 8] and scale bytes [threads].

    `elements` [rows <= 16, K], `codes` [rows, K / 32]; zeros where there is no row or no chunk.
    """
    rows, k = elements.shape
    words = np.zeros((waves, 4, 16, 2, 16), np.uint8)
    scales = np.zeros((waves, 4, 16), np.int32)
    for wave in range(waves):
        chunk = waves * c + wave
        if chunk < k // 128:
            part = elements[:, 128 * chunk : 128 * chunk + 128].reshape(rows, 2, 4, 16)
            words[wave, :, :rows] = part.transpose(2, 0, 1, 3)
            scales[wave, :, :rows] = codes[:, 4 * chunk : 4 * chunk + 4].T
    return words.reshape(waves * 64, 32).view(np.int32), scales.ravel()


# -- sums -------------------------------------------------------------------------------------------------------------


def round_f32(value: Fraction) -> np.float32:
    """The f32 nearest to an exact number, ties to even; subnormals kept, overflow to infinity."""
    if value == 0:
        return np.float32(0)
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    step = Fraction(2) ** max(exponent - 23, -149)
    whole = round(magnitude / step)  # Python rounds Fractions half to even
    rounded = float(whole * step)  # at most 24 bits: exact
    return np.float32(np.inf if rounded >= 2.0**128 else rounded) * np.float32(1 if value > 0 else -1)


def tile(acc: F32, a: U8, sa: U8, b: U8, sb: U8) -> F32:
    """acc [16, 16] + one 16x16x128 product of a [16, 128] and b [16, 128] (row by row), exact but for one rounding.

    `sa`, `sb` [16, 4]: a scale for every 32 along K. NaN where a NaN takes part.
    """
    whole = np.round(np.nan_to_num(E4M3).astype(np.float64) * 512).astype(np.int64)
    left, right = (whole[x].reshape(16, 4, 32) for x in (a, b))
    sums = np.einsum("rbk,cbk->rcb", left, right)
    shift = sa.astype(int)[:, None, :] + sb.astype(int)[None, :, :] - 254 - 18
    # Scale 255 makes its block NaN; so does a NaN byte.
    nan_a = np.isnan(E4M3[a]).reshape(16, 4, 32).any(-1) | (sa == 255)
    nan_b = np.isnan(E4M3[b]).reshape(16, 4, 32).any(-1) | (sb == 255)
    nan = (nan_a[:, None, :] | nan_b[None, :, :]).any(-1) | np.isnan(acc)
    out = np.full((16, 16), np.nan, np.float32)
    for r, c in zip(*np.nonzero(~nan), strict=True):
        if np.isinf(acc[r, c]):
            out[r, c] = acc[r, c]
            continue
        terms = (Fraction(int(sums[r, c, k])) * Fraction(2) ** int(shift[r, c, k]) for k in range(4))
        out[r, c] = round_f32(sum(terms, Fraction(float(acc[r, c]))))
    return out


def partials(a: tuple[U8, U8], b: tuple[U8, U8], waves: int) -> F32:
    """Partials [waves, 16, 16] (row, token) of weights a [16, K] and tokens b [<= 16, K] with their scales."""
    k = a[0].shape[1]
    tokens, codes = np.zeros((16, k), np.uint8), np.ones((16, k // 32), np.uint8)
    tokens[: len(b[0])], codes[: len(b[1])] = b
    out = np.zeros((waves, 16, 16), np.float32)
    for chunk in range(k // 128):
        at, of = slice(128 * chunk, 128 * chunk + 128), slice(4 * chunk, 4 * chunk + 4)
        wave = chunk % waves
        out[wave] = tile(out[wave], a[0][:, at], a[1][:, of], tokens[:, at], codes[:, of])
    return out


def lanes_of(partial: F32) -> F32:
    """[waves, 16, 16] (row, token) as the 4 accumulators of every lane: [waves * 64, 4]."""
    waves = len(partial)
    return partial.reshape(waves, 4, 4, 16).transpose(0, 1, 3, 2).reshape(waves * 64, 4)


def square_sum(rows: F32, threads: int) -> np.float32:
    """f32 sum of squares of a row held 16 values a thread, in the order that `rows.square_sum` states."""
    held = np.zeros((threads, 16), np.float32)
    held[: rows.size // 16] = rows.reshape(-1, 16)
    total = np.zeros(threads, np.float32)
    for value in held.T:
        total = fma(value, value, total)
    lane = np.arange(64)
    waves = total.reshape(-1, 64)
    for partner in (lane ^ 1, lane ^ 2, lane ^ 7, lane ^ 15, lane ^ 16, lane ^ 32):
        waves = waves + waves[:, partner]
    whole = waves[0, 0]
    for wave in waves[1:, 0]:
        whole = np.float32(whole + wave)
    return whole


def fma(a: F32, b: F32, c: F32) -> F32:
    """a * b + c rounded once: exact product in f64, sum rounded to odd there, which survives the rounding to f32."""
    product = a.astype(np.float64) * b
    total = product + c
    back = total - product
    error = (product - (total - back)) + (c - back)
    even = (total.view(np.int64) & 1) == 0
    odd = np.where((error != 0) & even, np.nextafter(total, np.copysign(np.inf, error)), total)
    return odd.astype(np.float32)


def norm(s: F32, w: F32, rstd: np.float32, unit_offset: bool = True) -> F32:
    """A normed row, rounded once; Gemma's weights are 1 + w in f32."""
    return round_bf16((s * rstd).astype(np.float32) * (w + np.float32(unit_offset)))
