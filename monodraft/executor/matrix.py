"""Matrix operations (MFMA) with a stated order: all products of one instruction are summed exactly, the accumulator is
added exactly, and the result is rounded once to f32 (nearest even).

The hardware's own order of additions inside an instruction is not documented; the exact sum is the value that any order
approximates, and it does not depend on a host library. Operands keep subnormals. A NaN operand, a scale byte of 255, or
Inf - Inf makes the result NaN.

Layouts, lanes l = 0..63 (M = N = 16 or 32, G = 64 / M groups, g = l // M):
  A: row l % M; B: column l % M; k values per lane as below. D and C, 16x16: row 4 g + r, column l % 16 (r = 0..3);
  32x32: row 8 (r // 4) + 4 g + r % 4, column l % 32 (r = 0..15).
  unscaled: lane holds k = g * n + j, j < n (n values a lane).
  scaled fp8, 16x16x128: two 16-byte pieces, k = 16 g + j and 64 + 16 g + j; 32x32x64: k = 16 g + j and 32 + 16 g + j.
  scaled fp4: k = 32 g + j. Scale byte of lane M b + r: row r, block b (k = 32 b .. 32 b + 31).
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from monodraft.executor.gpu import WAVE
from monodraft.executor.lanes import full
from monodraft.executor.numerics import E2M1, E4M3, E5M2, E8M0, bf16_to_f32, make_odd, two_sum

LANE = np.arange(WAVE)
FORMATS = {"fp8_e4m3": E4M3, "fp8_e5m2": E5M2}
FP4_PAIRS = np.stack([E2M1[np.arange(256) & 15], E2M1[np.arange(256) >> 4]], 1)
# Bits between the largest term and the smallest unit that a double sum surely holds exactly.
EXACT_BITS = 52


def stacked(vector: tuple[Any, ...], kind: Any) -> np.ndarray:
    """A vector value as [64, components]."""
    result = np.empty((WAVE, len(vector)), kind)
    for index, component in enumerate(vector):
        result[:, index] = component
    return result


def scaled(
    a: tuple[Any, ...],
    b: tuple[Any, ...],
    c: tuple[Any, ...],
    formats: tuple[str, str],
    scales: tuple[Any, Any],
    select: tuple[int, int],
    size: tuple[int, int],
) -> tuple[np.ndarray, ...]:
    """v_mfma_scale_f32_{16x16x128,32x32x64}_f8f6f4. `size` is (M, K); `select` the scale byte of each operand."""
    m, k = size
    left, left_scale = scaled_operand(a, formats[0], scales[0], select[0], m, k)
    right, right_scale = scaled_operand(b, formats[1], scales[1], select[1], m, k)
    factor = left_scale[:, :, None] * right_scale[:, None, :]
    a_blocks, b_blocks = left.transpose(1, 0, 2), right.transpose(1, 0, 2)
    if "fp8_e5m2" in formats:
        products = a_blocks[:, :, None, :] * b_blocks[:, None, :, :] * factor[..., None]
        terms = np.moveaxis(products, 3, 1).reshape(k, m, m)
    else:
        # Each block's sum of 32 products is exact in double: e4m3 needs at most 41 bits, e2m1 fewer.
        terms = (a_blocks @ b_blocks.transpose(0, 2, 1)) * factor
    return to_lanes(rounded_sum([*terms, from_lanes(c, m)]), m)


def scaled_operand(
    words: tuple[Any, ...], name: str, scale: Any, select: int, m: int, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Elements [M, K / 32, 32] as doubles, and scales [K / 32, M]."""
    groups, per_lane = WAVE // m, k * m // WAVE
    data = stacked(words, np.int32).view(np.uint8)
    if name in FORMATS:
        pieces = FORMATS[name][data[:, :per_lane]].reshape(groups, m, per_lane // 16, 16)
        values = pieces.transpose(1, 2, 0, 3)
    elif name == "fp4_e2m1":
        values = FP4_PAIRS[data[:, : per_lane // 2]].reshape(groups, m, per_lane).transpose(1, 0, 2)
    else:
        raise ValueError(f"matrix format {name}")
    factor = E8M0[(full(scale, np.int32) >> (8 * select)) & 255].reshape(-1, m)[: k // 32]
    return values.reshape(m, k // 32, 32).astype(np.float64), factor


def plain(
    a: tuple[Any, ...], b: tuple[Any, ...], c: tuple[Any, ...], kind: str, size: tuple[int, int]
) -> tuple[np.ndarray, ...]:
    """v_mfma_f32_{M}x{M}x{K} on bf16, f16, f32 or fp8 operands, one element per listed component."""
    m, k = size
    left, right = (plain_operand(x, kind, m, k) for x in (a, b))
    if fits_exactly(left, right):
        return to_lanes(rounded_sum([left @ right.T, from_lanes(c, m)]), m)
    terms = left[:, None, :] * right[None, :, :]
    return to_lanes(rounded_sum([*np.moveaxis(terms, 2, 0), from_lanes(c, m)]), m)


def plain_operand(vector: tuple[Any, ...], kind: str, m: int, k: int) -> np.ndarray:
    """[M, K] as doubles: lane l holds row l % M, k = n (l // M) + j."""
    if kind == "bf16":
        values = bf16_to_f32(stacked(vector, np.uint16))
    elif kind in FORMATS:
        values = FORMATS[kind][stacked(vector, np.int32).view(np.uint8)]
    else:
        values = stacked(vector, {"f16": np.float16, "f32": np.float32}[kind])
    return values.reshape(WAVE // m, m, -1).transpose(1, 0, 2).reshape(m, k).astype(np.float64)


def fits_exactly(left: np.ndarray, right: np.ndarray) -> bool:
    """Whether any order of double additions of the products is exact: all lie in a window of 52 bits."""
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        return False
    span = [exponents(x) for x in (left, right)]
    if None in span:
        return True
    (low_a, high_a), (low_b, high_b) = span  # type: ignore[misc]
    return high_a + high_b + math.ceil(math.log2(left.shape[1])) - (low_a + low_b) <= EXACT_BITS


def exponents(x: np.ndarray) -> tuple[int, int] | None:
    """Exponent of the lowest set bit and one above the highest, over the nonzero elements; None if all are zero."""
    nonzero = np.abs(x[x != 0])
    if not nonzero.size:
        return None
    high = int(np.frexp(nonzero.max())[1])
    # Operands have at most 24 significant bits.
    low = int(np.frexp(nonzero.min())[1]) - (24 if (nonzero.astype(np.float32).view(np.uint32) & 0xFFFF).any() else 8)
    return low, high


def rounded_sum(terms: list[np.ndarray]) -> np.ndarray:
    """The exact sum of doubles, rounded once to f32."""
    total = np.zeros_like(terms[0])
    inexact = np.zeros(total.shape, np.bool_)
    errors = []
    for term in terms:
        total, error = two_sum(total, term)
        inexact |= error != 0
        errors.append(error)
    if not inexact.any():
        return total.astype(np.float32)
    finite = inexact & np.isfinite(total)
    result = total.astype(np.float32)
    for index in zip(*np.nonzero(finite), strict=True):
        result[index] = exact_to_f32([term[index] for term in terms])
    return result


def exact_to_f32(terms: list[Any]) -> Any:
    """One exact sum, rounded to odd in double and then to f32."""
    exact = sum((Fraction(float(term)) for term in terms), Fraction(0))
    nearest = np.array(float(exact))
    rest = exact - Fraction(float(nearest))
    return make_odd(nearest, np.array(float((rest > 0) - (rest < 0)))).astype(np.float32)[()]


def from_lanes(c: tuple[Any, ...], m: int) -> np.ndarray:
    """C registers as [M, M] doubles."""
    rows, columns = places(m, len(c))
    result = np.empty((m, m))
    result[rows, columns] = stacked(c, np.float32)
    return result


def to_lanes(matrix: np.ndarray, m: int) -> tuple[np.ndarray, ...]:
    """[M, M] as D registers."""
    rows, columns = places(m, m * m // WAVE)
    return tuple(np.ascontiguousarray(each) for each in matrix[rows, columns].T)


@lru_cache(maxsize=16)
def places(m: int, registers: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of [lane, register]."""
    r, group = np.arange(registers)[None, :], (LANE // m)[:, None]
    rows = 4 * group + r if m == 16 else 8 * (r // 4) + 4 * group + r % 4
    return rows, np.broadcast_to((LANE % m)[:, None], rows.shape)
