"""Arithmetic of the reference engine against independent definitions: exact fractions, torch, plain loops."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from monodraft.executor import lanes, matrix, numerics
from monodraft.executor.program import Scalar, Vector
from monodraft.executor.values import bitcast

pytestmark = [pytest.mark.numbers, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
RNG = np.random.default_rng(20)
EDGES = np.array(
    [0x0, 0x80000000, 1, 0x80000001, 0x7FFFFF, 0x800000, 0x807FFFFF, 0x3F800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000,
     0xFF800000, 0x7FC00000, 0x7F800001, 0xFFC12345, 0x3F808000, 0x3F818000, 0x00008000, 0x00018000, 0x0000C000],
    np.uint32,
)  # fmt: skip


def all_bf16() -> np.ndarray:
    return (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)


def f32_samples(count: int = 50_000) -> np.ndarray:
    bits = RNG.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32)
    return np.concatenate([bits, EDGES]).view(np.float32)


def test_bf16_rounds_to_nearest_even_and_keeps_nan() -> None:
    x = f32_samples()
    got = numerics.f32_to_bf16(x)
    want = torch.from_numpy(x.copy()).to(torch.bfloat16).view(torch.uint16).numpy()
    number = ~np.isnan(x)
    np.testing.assert_array_equal(got[number], want[number])
    assert np.isnan(numerics.bf16_to_f32(got[~number])).all()
    kept = numerics.bf16_to_f32(np.arange(1 << 16, dtype=np.uint16))
    np.testing.assert_array_equal(kept.view(np.uint32), all_bf16().view(np.uint32))


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_conversion_agrees_with_torch(kind: torch.dtype) -> None:
    grid = torch.arange(256, dtype=torch.uint8).view(kind).float().numpy()
    finite = np.unique(grid[np.isfinite(grid)])
    ties = (finite[1:].astype(np.float64) + finite[:-1]) / 2
    near = np.concatenate([np.nextafter(ties, d).astype(np.float32) for d in (-np.inf, np.inf)])
    x = np.concatenate([f32_samples(), finite, ties.astype(np.float32), near]).astype(np.float32)
    import ml_dtypes

    name = ml_dtypes.float8_e4m3fn if kind is torch.float8_e4m3fn else ml_dtypes.float8_e5m2
    got = numerics.f32_to_fp8(x, name).astype(np.uint8)
    want = torch.from_numpy(x).to(kind).view(torch.uint8).numpy()
    # torch saturates e4m3 beyond its range, the instruction does not (next test).
    number = ~np.isnan(x) & (np.abs(x) <= (464 if kind is torch.float8_e4m3fn else np.inf))
    np.testing.assert_array_equal(got[number], want[number])
    number = ~np.isnan(x)
    assert np.isnan(torch.from_numpy(got[~number]).view(kind).float().numpy()).all()


def test_e4m3_overflow_is_nan_not_saturation() -> None:
    x = np.array([448, 463.99, 464, 464.01, 1e30, np.inf, -1e30], np.float32)
    codes = numerics.f32_to_fp8(x) & 0x7F
    assert codes.tolist() == [0x7E, 0x7E, 0x7E, 0x7F, 0x7F, 0x7F, 0x7F]


def test_scaled_fp8_conversion_rounds_once() -> None:
    x = f32_samples(20_000)
    x = x[np.isfinite(x)]
    for exponent in (-126, -20, 0, 9, 100):
        scale = np.float32(2.0**exponent * 1.75)  # only the exponent field counts
        got = numerics.f32_to_fp8_exact(x, numerics.scale_of(scale))
        ratio = x.astype(np.float64) / 2.0**exponent
        want = np.array([nearest_e4m3(value) for value in ratio[:400]])
        np.testing.assert_array_equal(got[:400], want)


E4M3_VALUES = [(code, Fraction(float(value))) for code, value in enumerate(numerics.E4M3[:0x7F])]


def nearest_e4m3(value: float) -> int:
    """By definition: the closest of the 127 magnitudes, ties to the even code, beyond 464 NaN."""
    sign = 0x80 if math.copysign(1, value) < 0 else 0
    size = abs(Fraction(value))
    if size > 464:
        return sign | 0x7F
    code = min(E4M3_VALUES, key=lambda each: (abs(each[1] - size), each[0] & 1))[0]
    return sign | code


def test_fma_rounds_once() -> None:
    a, b, c = (f32_samples(3000)[:3000] for _ in range(3))
    a, b = a * np.float32(2.0**-40), b.copy()
    keep = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    a, b, c = a[keep], b[keep], c[keep]
    # Near cancellation is where two roundings show.
    c = np.where(np.arange(c.size) % 2, -(a * b), c).astype(np.float32)
    keep = np.isfinite(c)
    a, b, c = a[keep], b[keep], c[keep]
    with np.errstate(all="ignore"):
        got = numerics.fused_multiply_add(a, b, c)
    for x, y, z, result in zip(a, b, c, got, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        assert result == fraction_to_f32(exact), (x, y, z)


def fraction_to_f32(exact: Fraction) -> np.float32:
    """Nearest f32, ties to even, from first principles."""
    if exact == 0:
        return np.float32(0)
    sign, size = (-1, -exact) if exact < 0 else (1, exact)
    exponent = max(math.floor(math.log2(size)) if size < 2**1000 else 1000, -126)
    while Fraction(2) ** exponent > size and exponent > -126:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= size:
        exponent += 1
    unit = Fraction(2) ** (exponent - 23)
    units = size / unit
    low = math.floor(units)
    rest = units - low
    low += rest > Fraction(1, 2) or (rest == Fraction(1, 2) and low & 1)
    if low * unit >= Fraction(2) ** 128:
        return np.float32(sign * np.inf)
    return np.float32(sign * float(low * unit))


HARDWARE = [
    (numerics.hardware_exp2, np.exp2),
    (numerics.hardware_log2, np.log2),
    (numerics.hardware_sqrt, np.sqrt),
    (numerics.hardware_rcp, lambda x: 1 / x),
    (numerics.hardware_rsq, lambda x: 1 / np.sqrt(x)),
]


@pytest.mark.parametrize(("function", "reference"), HARDWARE, ids=["exp2", "log2", "sqrt", "rcp", "rsq"])
def test_hardware_functions_flush_subnormals(function, reference) -> None:
    x = f32_samples(20_000)
    with np.errstate(all="ignore"):
        got = function(x)
        tiny = np.abs(x) < np.float32(2.0**-126)
        inputs = np.where(tiny, np.copysign(0.0, x), x).astype(np.float64)
        want = reference(inputs).astype(np.float32)
    want = np.where(np.abs(want) < np.float32(2.0**-126), np.copysign(np.float32(0), want), want)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), ~number)
    np.testing.assert_array_equal(got[number].view(np.uint32), want[number].view(np.uint32))
    assert not ((got != 0) & (np.abs(got) < np.float32(2.0**-126))).any()


def test_minimum_and_maximum_signs_and_nan() -> None:
    a = np.array([0.0, -0.0, 0.0, -0.0, np.nan, 1.0, np.nan], np.float32)
    b = np.array([-0.0, 0.0, 0.0, -0.0, 1.0, np.nan, np.nan], np.float32)
    assert np.signbit(numerics.maximum(a, b)).tolist()[:4] == [False, False, False, True]
    assert np.signbit(numerics.minimum(a, b)).tolist()[:4] == [True, True, False, True]
    assert np.isnan(numerics.maximum(a, b)[4:]).all()
    assert numerics.maxnum(a, b)[4:6].tolist() == [1, 1]
    assert numerics.minnum(a, b)[4:6].tolist() == [1, 1]


def test_integer_helpers() -> None:
    a = np.array([7, -7, 7, -7, -(2**31)], np.int32)
    b = np.array([2, 2, -2, -2, -1], np.int32)
    with np.errstate(all="ignore"):
        assert numerics.divide_signed(a, b).tolist()[:4] == [3, -3, -3, 3]
        assert numerics.remainder_signed(a, b).tolist()[:4] == [1, -1, 1, -1]
    assert numerics.divide_unsigned(np.int32(-1), np.int32(16)) == 0x0FFFFFFF
    x = np.array([0, 1, -1, 0x00010000], np.int32)
    assert numerics.leading_zeros(x).tolist() == [32, 31, 0, 15]
    assert numerics.trailing_zeros(x).tolist() == [32, 0, 0, 16]
    big = np.array([np.nan, np.inf, -np.inf, 2.5e9, -3.7, 2147483520.0], np.float32)
    assert numerics.float_to_signed(big, np.int32).tolist() == [0, 2**31 - 1, -(2**31), 2**31 - 1, -3, 2147483520]
    assert numerics.float_to_unsigned(big, np.int32).view(np.uint32).tolist() == [
        0, 2**32 - 1, 0, 2500000000, 0, 2147483520,
    ]  # fmt: skip
    assert numerics.multiply_high(np.int32(-1), np.int32(-1)) == np.int32(-2)


def test_byte_permute_by_definition() -> None:
    high, low = np.int32(0x77665544), np.int32(0x33221100)
    assert numerics.permute_bytes(high, low, np.int32(0x07040301)) == np.int32(0x77443311)
    assert numerics.permute_bytes(high, low, np.int32(0x0C0D0004)) == np.int32(0x00FF0044)


def test_bitcast_cuts_and_joins_little_endian() -> None:
    words = (np.int32(0x04030201), np.int32(0x08070605))
    source, target = Vector(2, Scalar("i32")), Vector(8, Scalar("i8"))
    assert [int(x) for x in bitcast(words, source, target)] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert bitcast(words, source, Scalar("i64")) == 0x0807060504030201
    assert bitcast(bitcast(words, source, target), target, source) == words


# ---- cross-lane

L = np.arange(64, dtype=np.int32)


def test_dpp_controls_by_definition() -> None:
    old = L - 1000
    assert lanes.dpp(None, old, L, 0xB1, 15, 15, True).tolist() == [lane ^ 1 for lane in range(64)]
    assert lanes.dpp(None, old, L, 0x140, 15, 15, True).tolist() == [
        (lane & ~15) | (15 - lane % 16) for lane in range(64)
    ]
    shifted = lanes.dpp(None, old, L, 0x111, 15, 15, True)
    assert shifted.tolist() == [lane - 1 if lane % 16 else 0 for lane in range(64)]
    kept = lanes.dpp(None, old, L, 0x111, 15, 15, False)
    assert kept.tolist() == [lane - 1 if lane % 16 else lane - 1000 for lane in range(64)]
    rows = lanes.dpp(None, old, L, 0xB1, 0b0101, 15, True)
    assert rows.tolist() == [lane ^ 1 if (lane // 16) % 2 == 0 else lane - 1000 for lane in range(64)]
    mask = L != 3
    assert lanes.dpp(mask, old, L, 0xB1, 15, 15, True)[2] == 0  # its source is switched off


def test_swaps_permutes_and_swizzles_by_definition() -> None:
    a, b = lanes.swap_rows(None, L, L + 100, 16)
    assert a.tolist() == [lane if (lane // 16) % 2 == 0 else lane - 16 + 100 for lane in range(64)]
    assert b.tolist() == [lane + 100 if (lane // 16) % 2 else lane + 16 for lane in range(64)]
    a, b = lanes.swap_rows(L < 32, L, L, 32)
    assert (a[32:].view(np.uint32) == np.arange(32)).all()
    assert (b[:32].view(np.uint32) == lanes.JUNK).all()
    assert lanes.bpermute(None, (63 - L) * 4, L).tolist() == list(range(63, -1, -1))
    assert lanes.permute(None, (63 - L) * 4, L).tolist() == list(range(63, -1, -1))
    assert lanes.swizzle(None, L, 0x401F).tolist() == [lane ^ 16 for lane in range(64)]
    assert lanes.ballot(L >= 60, L % 2 == 0) == np.int64(5 << 60)
    assert lanes.read_first_lane(L > 9, L) == 10
    below = lanes.count_below(
        np.int32(-1), lanes.count_below(np.int32(-1), np.int32(0), lanes.BELOW_LOW), lanes.BELOW_HIGH
    )
    assert below.tolist() == list(range(64))


# ---- matrices


def decode(code: int) -> Fraction | None:
    value = float(numerics.E4M3[code])
    return None if math.isnan(value) else Fraction(value)


def scaled_by_definition(a, b, c, sa, sb) -> np.ndarray:
    """[16, 16] from e4m3 codes [16, 128], scale bytes [16, 4]; None-free inputs."""
    result = np.zeros((16, 16), np.float32)
    left = [
        [decode(int(code)) * Fraction(2) ** (int(sa[i, k // 32]) - 127) for k, code in enumerate(a[i])]
        for i in range(16)
    ]
    right = [
        [decode(int(code)) * Fraction(2) ** (int(sb[j, k // 32]) - 127) for k, code in enumerate(b[j])]
        for j in range(16)
    ]
    for i in range(16):
        for j in range(16):
            exact = sum((x * y for x, y in zip(left[i], right[j], strict=True)), Fraction(float(c[i, j])))
            result[i, j] = fraction_to_f32(exact)
    return result


def pack_fp8(x: np.ndarray) -> tuple[np.ndarray, ...]:
    """Codes [16, 128] to 8 words a lane: k = 16 g + j and 64 + 16 g + j."""
    words = x.reshape(16, 2, 4, 16).transpose(2, 0, 1, 3).reshape(64, 32).copy().view(np.int32)
    return tuple(np.ascontiguousarray(words[:, i]) for i in range(8))


@pytest.mark.parametrize("scales", [((120, 135),) * 2, ((0, 2), (240, 254)), ((250, 255), (1, 8)), ((0, 255),) * 2])
def test_scaled_mfma_is_exact_and_rounds_once(scales: tuple[tuple[int, int], tuple[int, int]]) -> None:
    a, b = (RNG.integers(0, 256, (16, 128)).astype(np.uint8) for _ in range(2))
    a[(a & 0x7F) == 0x7F] = 0x7E
    b[(b & 0x7F) == 0x7F] = 0x7E
    sa, sb = (RNG.integers(low, high, (16, 4)) for low, high in scales)
    spread = 2.0 ** (np.clip(float(sa.mean() + sb.mean()) - 254, -110, 110))
    c = (RNG.standard_normal((16, 16)) * spread * 1e4).astype(np.float32)
    rows, columns = matrix.places(16, 4)
    operands = (pack_fp8(a), pack_fp8(b), tuple(np.ascontiguousarray(c[rows, columns].T)))
    words = tuple(s.T.reshape(64).astype(np.int32) for s in (sa, sb))
    with np.errstate(all="ignore"):
        got = matrix.scaled(*operands, ("fp8_e4m3",) * 2, words, (0, 0), (16, 128))
    want = scaled_by_definition(a, b, c, sa, sb)
    np.testing.assert_array_equal(np.stack(got, 1), want[rows, columns])


def test_scaled_mfma_nan_scale_and_operand() -> None:
    ones = np.full((16, 128), 0x38, np.uint8)  # 1.0
    nan = ones.copy()
    nan[3, 70] = 0x7F
    scale = np.full((16, 4), 127)
    scale[5, 1] = 255
    words = (scale.T.reshape(64).astype(np.int32), np.full(64, 127, np.int32))
    zero = (np.zeros(64, np.float32),) * 4
    with np.errstate(all="ignore"):
        got = np.stack(
            matrix.scaled(pack_fp8(nan), pack_fp8(ones), zero, ("fp8_e4m3",) * 2, words, (0, 0), (16, 128)), 1
        )
    full = np.zeros((16, 16))
    full[matrix.places(16, 4)] = got
    assert np.isnan(full[[3, 5]]).all()
    assert (np.delete(full, [3, 5], axis=0) == 128).all()


@pytest.mark.parametrize(
    ("kind", "size"), [("bf16", (16, 32)), ("bf16", (32, 16)), ("f16", (16, 16)), ("f32", (16, 4))]
)
def test_plain_mfma_is_exact_and_rounds_once(kind: str, size: tuple[int, int]) -> None:
    m, k = size
    a, b = (RNG.standard_normal((m, k)).astype(np.float32) * 2.0 ** RNG.integers(-30, 30, (m, k)) for _ in range(2))
    if kind == "f16":
        a, b = (np.clip(x, -1000, 1000).astype(np.float16) for x in (a, b))
    c = RNG.standard_normal((m, m)).astype(np.float32)

    def pack(x: np.ndarray) -> tuple[np.ndarray, ...]:
        bits = (
            numerics.f32_to_bf16(x.astype(np.float32))
            if kind == "bf16"
            else x.astype({"f16": np.float16}.get(kind, np.float32))
        )
        parts = bits.reshape(m, 64 // m, -1).transpose(1, 0, 2).reshape(64, -1)
        return tuple(np.ascontiguousarray(parts[:, i]) for i in range(parts.shape[1]))

    rows, columns = matrix.places(m, m * m // 64)
    got = matrix.plain(pack(a), pack(b), tuple(np.ascontiguousarray(c[rows, columns].T)), kind, size)
    exact = (
        (lambda x: numerics.bf16_to_f32(numerics.f32_to_bf16(x.astype(np.float32))))
        if kind == "bf16"
        else (lambda x: x)
    )
    left, right = ([[Fraction(float(v)) for v in row] for row in exact(x)] for x in (a, b))
    for lane in range(0, 64, 7):
        for register in range(len(got)):
            i, j = rows[lane, register], columns[lane, register]
            total = sum((x * y for x, y in zip(left[i], right[j], strict=True)), Fraction(float(c[i, j])))
            assert got[register][lane] == fraction_to_f32(total)
