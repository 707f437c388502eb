"""Correctly rounded sums against rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monodraft.reference import rounded

pytestmark = pytest.mark.numbers

BITS = {torch.bfloat16: 8, torch.float32: 24}
DTYPES = list(BITS)


def nearest(exact: Fraction, dtype: torch.dtype) -> float:
    """`exact` rounded once, to nearest even, with the exponent range of float32 (and so of bf16), subnormals kept."""
    if exact == 0:
        return 0.0
    size = abs(exact)
    exponent = max(math.frexp(float(size))[1] - 1, -126)
    if size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    quantum = Fraction(2) ** (exponent - BITS[dtype] + 1)
    value = round(size / quantum) * quantum  # round() of a Fraction is to nearest even
    return math.copysign(float(value) if value < Fraction(2) ** 128 else math.inf, exact)


def exact_dots(x: torch.Tensor, w: torch.Tensor, dtype: torch.dtype, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The definition, output by output."""
    rows = []
    for a in x.tolist():
        row = []
        for n, b in enumerate(w.tolist()):
            total = sum((Fraction(p) * Fraction(q) for p, q in zip(a, b, strict=True)), Fraction(0))
            row.append(nearest(total + (Fraction(float(bias[n])) if bias is not None else 0), dtype))
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64).to(dtype)


def dots(x: torch.Tensor, w: torch.Tensor, dtype: torch.dtype, bias: torch.Tensor | None = None) -> torch.Tensor:
    return rounded.matmul(rounded.Rows(x.double()), rounded.Rows(w.double()), dtype, bias)


def spread(shape: tuple[int, ...], seed: int, powers: int) -> torch.Tensor:
    """bf16 values of random sign whose exponents spread over 2 * `powers` binades."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.randint(-powers, powers + 1, shape, generator=generator)
    return torch.ldexp(torch.randn(shape, generator=generator), scale).bfloat16()


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(-160, 127), st.sampled_from(DTYPES))
def test_round_to_is_one_rounding(mantissa: float, exponent: int, dtype: torch.dtype) -> None:
    value = math.ldexp(math.frexp(mantissa)[0], exponent)
    found = float(rounded.round_to(torch.tensor([value], dtype=torch.float64), dtype))
    assert found == nearest(Fraction(value), dtype)


def test_round_to_bf16_does_not_round_twice() -> None:
    """Just above a bf16 tie, by less than float32 holds: a cast through float32 lands on the tie and goes to even."""
    value = torch.tensor([1 + 2**-8 + 2**-30], dtype=torch.float64)
    assert float(value.to(torch.bfloat16)) == 1.0, "torch casts right now; round_to could use it"
    assert float(rounded.round_to(value, torch.bfloat16)) == 1 + 2**-7


def test_round_to_subnormal_bf16_does_not_round_twice() -> None:
    """Below 1.5 quanta of 2^-133 by less than 8 bits hold: rounding to 8 bits first would give 1.5, then 2 quanta."""
    value = torch.tensor([(1.5 - 2.0**-20) * 2.0**-133], dtype=torch.float64)
    assert float(rounded.round_to(value, torch.bfloat16)) == 2.0**-133


def test_round_to_keeps_nan_and_infinity() -> None:
    odd = torch.tensor([math.nan, math.inf, -math.inf, 3e38 * 2, -(2.0**1000)], dtype=torch.float64)
    for dtype in DTYPES:
        result = rounded.round_to(odd, dtype).tolist()
        assert math.isnan(result[0])
        assert result[1:] == [math.inf, -math.inf, math.inf, -math.inf]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("powers", [0, 4, 40])
def test_matmul_is_correctly_rounded(powers: int, dtype: torch.dtype) -> None:
    x, w = spread((3, 40), 1, powers), spread((50, 40), 2, powers)
    assert torch.equal(dots(x, w, dtype), exact_dots(x, w, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_matmul_with_bias_rounds_once(dtype: torch.dtype) -> None:
    x, w = spread((3, 40), 1, 4), spread((50, 40), 2, 4)
    bias = spread((50,), 3, 4).double()
    found = dots(x, w, dtype, bias)
    assert torch.equal(found, exact_dots(x, w, dtype, bias))
    assert not torch.equal(found, (dots(x, w, dtype).double() + bias).to(dtype))


@pytest.mark.parametrize("power", [27, 30])
@pytest.mark.parametrize("dtype", DTYPES)
def test_near_ties_are_decided_by_terms_that_float64_loses(dtype: torch.dtype, power: int) -> None:
    """1 + half an ulp is a tie; a term of 2^-54 or 2^-60, or minus that, decides it and is lost in float64."""
    half, tiny = 2.0 ** -BITS[dtype], 2.0**-power
    x = torch.tensor([[1.0, half, tiny]] * 3).double()
    w = torch.tensor([[1.0, 1.0, tiny], [1.0, 1.0, -tiny], [1.0, 1.0, 0.0]]).double()
    wanted = [1 + 2 * half, 1.0, 1.0]
    for significant in (8, 24):
        found = rounded.matmul(rounded.Rows(x, significant), rounded.Rows(w, significant), dtype)
        assert found.tolist() == [wanted] * 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_rest_does_not_move_an_odd_float64_onto_a_tie(dtype: torch.dtype) -> None:
    """tie + 2^-52 - 2^-54: float64 keeps tie + 2^-52; stepping from there towards the rest would land on the tie."""
    half = 2.0 ** -BITS[dtype]
    x = torch.tensor([[1.0, half, 2.0**-26, 2.0**-27]])
    w = torch.tensor([[1.0, 1.0, 2.0**-26, -(2.0**-27)]])
    assert dots(x, w, dtype).tolist() == [[1 + 2 * half]]


def test_cancellation_leaves_what_is_left() -> None:
    x = torch.tensor([[2.0**60, 1.0, -(2.0**60), 2.0**-40]])
    w = torch.ones(1, 4)
    assert dots(x, w, torch.float32).tolist() == [[1.0]]
    assert dots(x, w - torch.tensor([[0.0, 1.0, 0.0, 0.0]]), torch.float32).tolist() == [[2.0**-40]]


def test_zero_is_positive() -> None:
    x = torch.tensor([[1.0, -1.0], [-0.0, -0.0], [0.0, 0.0]])
    zeros = dots(x, torch.ones(1, 2), torch.bfloat16)
    assert not torch.signbit(zeros).any()
    tiny = torch.tensor([[-(2.0**-100)]]), torch.tensor([[2.0**-100]])
    for bias in (None, torch.zeros(1, dtype=torch.float64)):
        assert not torch.signbit(dots(*tiny, torch.float32, bias)).any()


def test_nan_and_infinity_do_not_depend_on_order() -> None:
    x = torch.tensor([[math.inf, 1.0], [math.inf, -math.inf], [math.nan, 1.0], [1.0, 1.0]])
    result = dots(x, torch.ones(2, 2), torch.float32)
    assert result[0].tolist() == [math.inf] * 2
    assert result[1:3].isnan().all()
    assert result[3].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("powers", [0, 30])
def test_matmul_does_not_depend_on_order_rows_or_threads(powers: int) -> None:
    x, w = spread((9, 300), 5, powers), spread((64, 300), 6, powers)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    whole = dots(x, w, torch.float32)
    assert torch.equal(whole, dots(x[:, order], w[:, order], torch.float32))
    assert all(torch.equal(whole[i : i + 1], dots(x[i : i + 1], w, torch.float32)) for i in range(9))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2 if threads == 1 else 1)
        assert torch.equal(whole, dots(x, w, torch.float32))
    finally:
        torch.set_num_threads(threads)


def test_plain_float64_products_do_depend_on_order() -> None:
    """Why the bound and the second summation exist: float64 alone gives other bits in another order."""
    x, w = spread((9, 300), 5, 30).double(), spread((64, 300), 6, 30).double()
    assert not torch.equal(x @ w.T, x.flip(1) @ w.flip(1).T)


@pytest.mark.parametrize("dtype", DTYPES)
def test_total_is_correctly_rounded(dtype: torch.dtype) -> None:
    x = spread((200, 33), 7, 12).double() ** 2
    wanted = [nearest(sum(map(Fraction, row), Fraction(0)), dtype) for row in x.tolist()]
    assert rounded.total(x, dtype).tolist() == torch.tensor(wanted, dtype=torch.float64).to(dtype).tolist()
