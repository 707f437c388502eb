"""The MXFP8 linear against a slow loop over waves, chunks and outputs in rational arithmetic."""

from __future__ import annotations

from dataclasses import astuple
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch

from monodraft.checkpoint.weights import Mxfp8Matrix
from monodraft.formats import mxfp8_torch
from monodraft.reference.numerics import Bf16, Mxfp8
from monodraft.reference.waves import Chunked, wave_sum
from reference.test_rounded import nearest, spread

pytestmark = pytest.mark.numbers


def decoded(elements: torch.Tensor, scales: torch.Tensor) -> list[list[Fraction]]:
    """Exact values of MXFP8 rows, element by element."""
    values = elements.numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    return [
        [Fraction(float(v)) * Fraction(2) ** (int(codes[k // 32]) - 127) for k, v in enumerate(row)]
        for row, codes in zip(values, scales.numpy(), strict=True)
    ]


def f32(x: Fraction) -> Fraction:
    return Fraction(nearest(x, torch.float32))


def slow_output(a: list[Fraction], b: list[Fraction]) -> float:
    """One output as the kernel sums it, in float32: 8 waves, chunk c in wave c % 8, waves added in order."""
    partials = []
    for wave in range(8):
        accumulator = Fraction(0)
        for chunk in range(wave, -(-len(a) // 128), 8):
            part = slice(128 * chunk, 128 * chunk + 128)
            products = sum((p * q for p, q in zip(a[part], b[part], strict=True)), Fraction(0))
            accumulator = f32(accumulator + products)
        partials.append(accumulator)
    total = partials[0]
    for partial in partials[1:]:
        total = f32(total + partial)
    return float(total)


def slow_linear(x: torch.Tensor, weight: Mxfp8Matrix) -> torch.Tensor:
    """float32 [M, N], before the rounding to bf16."""
    rows, columns = decoded(*mxfp8_torch.encode(x)), decoded(weight.elements, weight.scales)
    return torch.tensor([[slow_output(a, b) for b in columns] for a in rows], dtype=torch.float32)


def linear(x: torch.Tensor, weight: Mxfp8Matrix, keep: bool = True) -> torch.Tensor:
    return Mxfp8().layer_linear([weight], keep)(x)


# K: less than a chunk, one chunk, a ragged end, one turn of the waves, more than one turn.
@pytest.mark.parametrize("k", [64, 128, 416, 1024, 1408])
@pytest.mark.parametrize("powers", [0, 3, 14])
def test_linear_has_the_bits_of_the_slow_loop(k: int, powers: int) -> None:
    """`powers` 14 spreads the blocks' scales so far that float64 cannot hold the sums and the second path decides."""
    x = spread((2, k), k, powers)
    weight = Mxfp8Matrix(*mxfp8_torch.encode(spread((6, k), k + 1, powers)))
    wanted = slow_linear(x, weight)
    chunked = (Chunked.of(mxfp8_torch.decode(*pair).double()) for pair in (mxfp8_torch.encode(x), astuple(weight)))
    assert torch.equal(wave_sum(*chunked), wanted)
    assert torch.equal(linear(x, weight), wanted.bfloat16())


def test_order_of_the_waves_shows() -> None:
    """The stated order is not the correctly rounded sum: chunks 0 and 8 meet before chunk 1 does."""
    k = 9 * 128
    x = torch.zeros(1, k)
    x[0, 0], x[0, 128], x[0, 8 * 128] = 2.0**14, 1.0, 1.0
    big = torch.zeros(1, k)
    big[0, 0], big[0, 128], big[0, 8 * 128] = 2.0**10, 1.0, 1.0
    # wave 0: 2^24 + 1 -> 2^24 (tie to even); + wave 1's 1 -> 2^24 again. Exact: 2^24 + 2. Subtract 2^24 to see it.
    x = torch.cat([x, torch.zeros(1, 128)], 1)
    big = torch.cat([big, torch.zeros(1, 128)], 1)
    x[0, 2 * 128], big[0, 2 * 128] = -(2.0**14), 2.0**10
    weight = Mxfp8Matrix(*mxfp8_torch.encode(big))
    assert linear(x.bfloat16(), weight).tolist() == [[0.0]]
    decoded_weight = mxfp8_torch.decode(weight.elements, weight.scales)
    assert Bf16().layer_linear([decoded_weight], True)(x.bfloat16()).tolist() == [[2.0]]


def test_a_chunk_is_rounded_once_together_with_its_accumulator() -> None:
    """1 + (2^24 + 1) is 2^24 + 2; a chunk rounded on its own first would be 2^24, and stay so with the 1."""
    row, column = torch.zeros(1, 9 * 128), torch.zeros(1, 9 * 128)
    row[0, 0] = column[0, 0] = 1.0
    row[0, 1024], column[0, 1024] = 2.0**14, 2.0**10
    row[0, 1060] = column[0, 1060] = 1.0
    assert wave_sum(Chunked.of(row.double()), Chunked.of(column.double())).tolist() == [[2.0**24 + 2]]


def test_a_tie_is_decided_by_what_float64_loses() -> None:
    """1 + 2^-24 is a tie of float32; 2^-54 in another block of the chunk, with its own scale, decides it."""
    row = torch.zeros(3, 128)
    row[:, 0], row[:, 32] = 1.0, 2.0**-12
    row[0, 64] = 2.0**-27
    column = row[:1].clone()
    assert torch.equal(mxfp8_torch.decode(*mxfp8_torch.encode(row)), row)
    found = wave_sum(Chunked.of(row.double()), Chunked.of(column.double()))
    assert found.tolist() == [[1 + 2.0**-23], [1.0], [1.0]]


def test_row_alone_has_the_same_bits() -> None:
    x = spread((70, 256), 3, 6)
    weight = Mxfp8Matrix(*mxfp8_torch.encode(spread((40, 256), 4, 6)))
    whole = linear(x, weight)
    for row in (0, 1, 63, 64, 69):
        assert torch.equal(whole[row : row + 1], linear(x[row : row + 1], weight))


def test_decoding_at_each_use_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monodraft.reference.matrices.TILE_ELEMENTS", 256 * 7)
    x = spread((3, 256), 3, 6)
    weight = Mxfp8Matrix(*mxfp8_torch.encode(spread((40, 256), 4, 6)))
    assert torch.equal(linear(x, weight, keep=True), linear(x, weight, keep=False))


def test_nan_block_reaches_its_row_only() -> None:
    x = spread((3, 256), 3, 0)
    x[1, 5] = torch.nan
    weight = Mxfp8Matrix(*mxfp8_torch.encode(spread((4, 256), 4, 0)))
    result = linear(x, weight)
    assert result[1].isnan().all()
    assert torch.equal(result[[0, 2]], linear(x[[0, 2]], weight))


def test_zero_rows_give_positive_zero() -> None:
    weight = Mxfp8Matrix(*mxfp8_torch.encode(spread((4, 256), 4, 0)))
    result = linear(torch.zeros(2, 256).bfloat16(), weight)
    assert torch.equal(result.view(torch.int16), torch.zeros(2, 4, dtype=torch.int16))
