"""The small operations of the numerics, on their own."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from monodraft.reference.numerics import NUMERICS, Bf16, Exact, select
from reference.test_rounded import spread

pytestmark = pytest.mark.numbers


def test_stored_rounds_float64_once() -> None:
    """Features may come in float64; a cast through float32 would round this one to 1."""
    x = torch.tensor([1 + 2**-8 + 2**-30], dtype=torch.float64)
    assert Bf16().stored(x).tolist() == [1 + 2**-7]
    assert Bf16().stored(x.float()).tolist() == [1.0]
    assert Exact().stored(x).tolist() == x.tolist()


def test_rsqrt_is_correctly_rounded() -> None:
    """r is the float32 next to 1 / sqrt(x): (r + ulp / 2)^2 x >= 1 >= (r - ulp / 2)^2 x in rationals."""
    x = (torch.rand(3000, generator=torch.Generator().manual_seed(1)) * 4 + 1e-3).float()
    for value, root in zip(x.tolist(), Bf16().rsqrt(x), strict=True):
        above, below = (torch.nextafter(root, torch.tensor(side)) for side in (torch.inf, -torch.inf))
        low, high = ((Fraction(float(root)) + Fraction(float(end))) / 2 for end in (below, above))
        assert low * low * Fraction(value) <= 1 <= high * high * Fraction(value)


@pytest.mark.parametrize("sign", [1, -1])
def test_matmul_decides_ties_exactly(sign: int) -> None:
    """As in `test_rounded`, through what attention calls: 1 + 2^-24 +- 2^-54."""
    x = torch.tensor([[1.0, 2.0**-24, 2.0**-27]]).bfloat16()
    w = torch.tensor([[1.0, 1.0, sign * 2.0**-27]]).bfloat16()
    assert Bf16().matmul(x, w).tolist() == [[1 + 2.0**-23 if sign > 0 else 1.0]]


def test_sums_do_not_depend_on_order() -> None:
    x = spread((50, 301), 3, 6).float()
    for operation in (Bf16().sum, Bf16().sum_squares):
        assert torch.equal(operation(x), operation(x.flip(1)))


def test_every_numerics_has_its_name() -> None:
    assert [select(name).name for name in NUMERICS] == ["exact", "bf16", "w8a16", "mxfp8"]
    assert isinstance(select(Exact(torch.float32)), Exact)
