"""Matrix operations of the fast engine against exact sums of fractions and against the reference engine's model."""

import ctypes
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from monodraft.executor import matrix, numerics
from monodraft.executor.fast.native_library import resolve

pytestmark = pytest.mark.executed
RNG = np.random.default_rng(20)
LANE = np.arange(64)


def room(nbytes: int) -> np.ndarray:
    """Bytes at an address that is a multiple of 64."""
    raw = np.zeros(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


def lanes_of(parts: tuple[np.ndarray, ...]) -> np.ndarray:
    """Lane vectors one after the other, as a kernel hands them over."""
    data = np.stack(parts)
    assert data.itemsize <= 4
    place = room(data.nbytes)
    place[:] = data.view(np.uint8).reshape(-1)
    return place


def call(name: str, a: Any, b: Any, c: Any, scales: tuple[Any, Any] | None, size: int) -> np.ndarray:
    """Run a library function; D as [registers, 64] f32."""
    registers = size * size // 64
    places = [lanes_of(a), lanes_of(b), lanes_of(c)]
    places += [lanes_of((s.astype(np.int32),)) for s in scales] if scales else [room(64), room(64)]
    out = room(256 * registers)
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 6)
    kind(resolve(name))(*(p.ctypes.data for p in (*places, out)))
    return out.view(np.float32).reshape(registers, 64)


def to_f32(exact: Fraction) -> np.float32:
    """Nearest even, with subnormals and overflow, from the definition."""
    if exact == 0:
        return np.float32(0)
    size = abs(exact)
    exponent = max(size.numerator.bit_length() - size.denominator.bit_length() - 1, -150)
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    steps, rest = divmod(size, unit)
    steps += rest * 2 > unit or (rest * 2 == unit and steps % 2)
    value = steps * unit
    number = np.inf if value >= Fraction(2) ** 128 else float(value)
    return np.float32(number if exact > 0 else -number)


def codes(size: int, depth: int, form: str) -> np.ndarray:
    """Random finite codes [size, depth]."""
    if form == "fp4_e2m1":
        return RNG.integers(0, 16, (size, depth)).astype(np.uint8)
    made = RNG.integers(0, 256, (size, depth)).astype(np.uint8)
    top = 0x7F if form == "fp8_e4m3" else 0x7C
    return np.where((made & 0x7F) >= top, made & 0x80 | 0x30, made).astype(np.uint8)


TABLES = {"fp8_e4m3": numerics.E4M3, "fp8_e5m2": numerics.E5M2, "fp4_e2m1": numerics.E2M1}


def pack(x: np.ndarray, form: str, size: int, depth: int) -> tuple[np.ndarray, ...]:
    """Codes to eight words a lane, in the layout that matrix.py states."""
    groups = 64 // size
    if form == "fp4_e2m1":
        both = x.reshape(size, groups, depth // groups).transpose(1, 0, 2).reshape(64, -1)
        data = (both[:, 0::2] | both[:, 1::2] << 4).astype(np.uint8)
    else:
        pieces = x.reshape(size, depth // (16 * groups), groups, 16).transpose(2, 0, 1, 3)
        data = np.ascontiguousarray(pieces).reshape(64, -1)
    words = np.ascontiguousarray(data).view(np.int32)
    full = np.zeros((64, 8), np.int32)
    full[:, : words.shape[1]] = words
    return tuple(np.ascontiguousarray(full[:, i]) for i in range(8))


SCALES = [(120, 136), (0, 3), (0, 255), (250, 255)]


@pytest.mark.parametrize("scales", SCALES, ids=str)
@pytest.mark.parametrize(
    ("size", "depth", "forms"),
    [
        (16, 128, ("fp8_e4m3", "fp8_e4m3")),
        (32, 64, ("fp8_e4m3", "fp8_e4m3")),
        (16, 128, ("fp4_e2m1", "fp8_e4m3")),
        (16, 128, ("fp4_e2m1", "fp4_e2m1")),
        (16, 128, ("fp8_e5m2", "fp8_e4m3")),
    ],
)
def test_scaled_is_exact_and_rounds_once(
    size: int, depth: int, forms: tuple[str, str], scales: tuple[int, int]
) -> None:
    a, b = codes(size, depth, forms[0]), codes(size, depth, forms[1])
    sa, sb = (RNG.integers(*scales, (size, depth // 32)) for _ in range(2))
    spread = 2.0 ** np.clip(float(sa.mean() + sb.mean()) - 254, -120, 100)
    c = (RNG.standard_normal((size, size)) * spread * 1e4).astype(np.float32)
    rows, columns = matrix.places(size, size * size // 64)
    c_lanes = tuple(np.ascontiguousarray(c[rows, columns].T))
    words = tuple(s.T.reshape(-1)[:64].astype(np.int32) for s in (sa, sb))
    name = f"matrix_scaled_{size}_{depth}_{forms[0]}_{forms[1]}"
    got = call(name, pack(a, forms[0], size, depth), pack(b, forms[1], size, depth), c_lanes, words, size)
    for lane in range(0, 64, 9):
        for register in range(0, len(got), 3):
            i, j = rows[lane, register], columns[lane, register]
            total = Fraction(float(c[i, j]))
            for k in range(depth):
                power = Fraction(2) ** (int(sa[i, k // 32]) + int(sb[j, k // 32]) - 254)
                total += Fraction(float(TABLES[forms[0]][a[i, k]])) * Fraction(float(TABLES[forms[1]][b[j, k]])) * power
            assert got[register, lane] == to_f32(total), (lane, register)


@pytest.mark.parametrize(
    ("kind", "name", "size", "depth"),
    [
        ("bf16", "matrix_plain_16_32_bf16_bf16", 16, 32),
        ("bf16", "matrix_plain_16_16_bf16_bf16", 16, 16),
        ("bf16", "matrix_plain_32_16_bf16_bf16", 32, 16),
        ("f16", "matrix_plain_16_32_f16_f16", 16, 32),
        ("f32", "matrix_plain_16_4_f32_f32", 16, 4),
    ],
)
@pytest.mark.parametrize("reach", [2, 40, 120])
def test_plain_is_exact_and_rounds_once(kind: str, name: str, size: int, depth: int, reach: int) -> None:
    """`reach`: exponents up to so far from 0. The narrow ones fit in a double's sum, the wide ones do not."""
    reach = min(reach, 12) if kind == "f16" else reach
    a, b = (
        RNG.standard_normal((size, depth)) * 2.0 ** RNG.integers(-reach, reach // 2, (size, depth)) for _ in range(2)
    )
    c = (RNG.standard_normal((size, size))).astype(np.float32)
    if kind == "bf16":
        a_bits, b_bits = (numerics.f32_to_bf16(x.astype(np.float32)) for x in (a, b))
        a_bits[0, :3] = [1, 0x8001, 0x7F]  # subnormals are kept
        a, b = numerics.bf16_to_f32(a_bits), numerics.bf16_to_f32(b_bits)
    else:
        a_bits, b_bits = (x.astype({"f16": np.float16, "f32": np.float32}[kind]) for x in (a, b))
        a, b = a_bits, b_bits

    def pack_plain(x: np.ndarray) -> tuple[np.ndarray, ...]:
        parts = x.reshape(size, 64 // size, -1).transpose(1, 0, 2).reshape(64, -1)
        return tuple(np.ascontiguousarray(parts[:, i]) for i in range(parts.shape[1]))

    rows, columns = matrix.places(size, size * size // 64)
    got = call(
        name, pack_plain(a_bits), pack_plain(b_bits), tuple(np.ascontiguousarray(c[rows, columns].T)), None, size
    )
    for lane in range(0, 64, 7):
        for register in range(0, len(got), 3):
            i, j = rows[lane, register], columns[lane, register]
            terms = (Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a[i], b[j], strict=True))
            assert got[register, lane] == to_f32(sum(terms, Fraction(float(c[i, j])))), (lane, register)


def test_nan_and_infinity_and_scale_255() -> None:
    ones = np.full((16, 128), 0x38, np.uint8)
    nan = ones.copy()
    nan[3, 70] = 0xFF
    scale = np.full((16, 4), 127)
    scale[5, 1] = 255
    words = (scale.T.reshape(64), np.full(64, 127))
    c = np.zeros((4, 64), np.float32)
    rows, _ = matrix.places(16, 4)
    c[:, rows[:, 0] // 4 == 2] = np.inf
    got = call(
        "matrix_scaled_16_128_fp8_e4m3_fp8_e4m3",
        *(pack(x, "fp8_e4m3", 16, 128) for x in (nan, ones)),
        tuple(c),
        words,
        16,
    )
    full = np.zeros((16, 16))
    full[matrix.places(16, 4)] = got.T
    assert np.isnan(full[[3, 5]]).all()
    assert np.isinf(full[8:12]).all()
    assert (full[[0, 1, 2, 4, 6, 7, 12, 13, 14, 15]] == 128).all()


@pytest.mark.parametrize("trial", range(6))
def test_whole_tiles_equal_the_reference_engines(trial: int) -> None:
    a, b = (RNG.integers(0, 256, (16, 128)).astype(np.uint8) for _ in range(2))
    words = tuple(RNG.integers(0, 256 if trial & 1 else 200, 64) for _ in range(2))
    c = tuple((RNG.standard_normal((4, 64)) * 10.0 ** RNG.integers(-30, 30)).astype(np.float32))
    operands = [pack(x, "fp8_e4m3", 16, 128) for x in (a, b)]
    got = call("matrix_scaled_16_128_fp8_e4m3_fp8_e4m3", *operands, c, words, 16)
    with np.errstate(all="ignore"):
        want = np.stack(matrix.scaled(*operands, c, ("fp8_e4m3",) * 2, words, (0, 0), (16, 128)))
    np.testing.assert_array_equal(got, want)
