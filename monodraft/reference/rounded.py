"""Sums with one rounding: the correctly rounded value of an exact sum, whatever the order it was computed in.

Every reduction of the 16-bit numerics is defined as an exact sum of exact terms, rounded once (to nearest even). Such a
result does not depend on the order of the terms, the number of rows in the call, threads or the BLAS library.

It is cheap: a float64 sum has an error bound (Higham, *Accuracy and Stability*, (4.4), valid for every order), and
where both ends of the interval round to the same number that number is the answer. The rest (about one output in 10^8
for bf16, one in 10^5 for float32) is summed again without error (`math.fsum`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

UNIT_ROUNDOFF = 2.0**-53
"""Largest relative error of one float64 operation."""

SLACK = 1.01
"""Covers the rounding of the bound itself and the second-order part of gamma_n = n u / (1 - n u), n u < 0.004."""

Terms = Callable[[torch.Tensor], torch.Tensor]
"""Maps flat output indices int64 [P] to the exact terms float64 [P, K] of those outputs."""

_FRACTION = (1 << 52) - 1
_EXPONENT = 0x7FF << 52
_BF16_DROPPED = 52 - 7
_EXACT_SPAN = 2.0**52 / SLACK
_RECOMPUTED_AT_ONCE = 1 << 20


def round_to(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float64 x rounded once, to nearest even, to float32 or bfloat16.

    torch's own cast to bfloat16 goes through float32 and so rounds twice.
    """
    if dtype is not torch.bfloat16:
        return x.to(dtype)
    bits = x.contiguous().view(torch.int64)
    half = (1 << (_BF16_DROPPED - 1)) - 1
    nearest = (bits + half + ((bits >> _BF16_DROPPED) & 1)) & ~((1 << _BF16_DROPPED) - 1)
    rounded = torch.where(torch.isfinite(x), nearest.view(torch.float64), x)
    subnormal = x.abs() < 2.0**-126
    if bool(subnormal.any()):
        rounded = torch.where(subnormal, torch.round(x * 2.0**133) * 2.0**-133, rounded)
    return rounded.to(torch.float32).to(torch.bfloat16)


def lowest_bit(x: torch.Tensor) -> torch.Tensor:
    """Value of the least significant set bit of float64 x; infinity where x is 0 or not finite. No subnormal x."""
    bits = x.contiguous().view(torch.int64)
    integer = (bits & _FRACTION) | (_FRACTION + 1)
    bit = (bits & _EXPONENT).view(torch.float64) * ((integer & -integer).to(torch.float64) * 2.0**-52)
    return torch.where(x == 0, torch.inf, bit)


@dataclass(frozen=True)
class Rows:
    """float64 rows `values` [..., R, K] that enter dot products, with what bounds the error of these.

    `significant`: bits of a value's significand at most: 4 for e4m3, 8 for bf16. Up to 26 products are exact.
    """

    values: torch.Tensor
    significant: int = 24

    @cached_property
    def norms(self) -> torch.Tensor:
        """Euclidean norms [..., R]; by Cauchy-Schwarz a product of two bounds the sum of a dot product's |terms|."""
        return torch.linalg.vector_norm(self.values, dim=-1)

    @cached_property
    def spans(self) -> torch.Tensor:
        """Norm over the unit that all values of the row are multiples of, the last place of the smallest one [..., R].

        All partial sums of a dot product are multiples of the product of the two units, so where the product of the
        spans stays below 2^52 float64 makes no error at all.
        """
        smallest = self.values.abs().masked_fill(self.values == 0, torch.inf).amin(-1)
        unit = torch.ldexp(torch.ones_like(smallest), torch.frexp(smallest).exponent - self.significant)
        return torch.where(smallest == torch.inf, 0.0, self.norms / unit)


def all_exact(x: Rows, w: Rows) -> bool:
    """Whether float64 computes every dot product of a row of x and a row of w without error."""
    return bool(x.spans.amax() * w.spans.amax() < _EXACT_SPAN) if x.spans.numel() and w.spans.numel() else True


def exact_pairs(x: Rows, w: Rows) -> torch.Tensor:
    """bool [..., M, N]: the dot products that float64 computes without error."""
    return x.spans[..., :, None] * w.spans[..., None, :] < _EXACT_SPAN


def _round_exact_sum(terms: list[float], dtype: torch.dtype) -> float:
    """The exact sum of `terms` rounded once: round to odd in float64, which leaves the final rounding undisturbed."""
    total = math.fsum(terms)
    rest = math.fsum([*terms, -total])
    odd = bool(torch.tensor(total, dtype=torch.float64).view(torch.int64) & 1)
    if rest and not odd:
        total = math.nextafter(total, math.copysign(math.inf, rest))
    return float(round_to(torch.tensor([total], dtype=torch.float64), dtype)[0])


def _recompute(flat: torch.Tensor, dtype: torch.dtype, terms: Terms) -> torch.Tensor:
    """Correctly rounded sums, [P] of `dtype`, of the outputs `flat`."""
    parts = terms(flat).cpu()
    total = parts.sum(-1)
    # All partial sums are multiples of the lowest bit and below 2^53 of it: float64 made no error.
    exact = parts.abs().sum(-1) < 2.0**52 * lowest_bit(parts).amin(-1)
    result = round_to(total, dtype)
    for row in (~exact).nonzero()[:, 0].tolist():
        result[row] = _round_exact_sum(parts[row].tolist(), dtype)
    return result


def settle(value: torch.Tensor, error: torch.Tensor, dtype: torch.dtype, terms: Terms) -> torch.Tensor:
    """Correctly rounded sums, of `dtype`, from float64 sums `value` that are off by at most `error`.

    Zero results are +0. Where the terms are not finite the result (NaN or infinity) does not depend on the order
    either, and `value` is cast.
    """
    low, high = round_to(torch.stack([value - error, value + error]), dtype)
    unsure = low != high
    if bool(unsure.any()):
        finite = torch.isfinite(value) & torch.isfinite(error)
        result = torch.where(finite, low, round_to(value, dtype)).flatten()
        indices = (unsure & finite).flatten().nonzero()[:, 0]
        step = max(1, _RECOMPUTED_AT_ONCE // max(1, terms(indices[:1]).shape[-1])) if len(indices) else 1
        for part in indices.split(step):
            result[part] = _recompute(part, dtype, terms).to(result.device)
        low = result.view(value.shape)
    return low + 0.0


def error_bound(count: int, magnitude: torch.Tensor) -> torch.Tensor:
    """Bound on the error of a float64 sum of `count` exact terms whose absolute values sum to at most `magnitude`."""
    return magnitude * (SLACK * (count + 1) * UNIT_ROUNDOFF)


def matmul(x: Rows, w: Rows, dtype: torch.dtype, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [..., M, K] times w [..., N, K] transposed, plus bias float64 [N]: [..., M, N] of `dtype`, each rounded once.

    The bias is one more term of the exact sum.
    """
    y = x.values @ w.values.mT
    # Sums of bf16 products often end just past float32, in ties that only exactness decides; bf16 cuts far above them.
    tied = dtype is torch.float32 and bias is None
    if tied and all_exact(x, w):
        return round_to(y, dtype) + 0.0
    magnitude = x.norms[..., :, None] * w.norms[..., None, :]
    if tied:
        magnitude = magnitude.masked_fill(exact_pairs(x, w), 0.0)
    if bias is not None:
        y, magnitude = y + bias, magnitude + bias.abs()

    def terms(flat: torch.Tensor) -> torch.Tensor:
        *batch, m, n = torch.unravel_index(flat, y.shape)
        products = x.values[(*batch, m)] * w.values[(*batch, n)]
        return products if bias is None else torch.cat([products, bias[n, None]], -1)

    return settle(y, error_bound(x.values.shape[-1] + 1, magnitude), dtype, terms)


def total(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Sum of float64 x over its last axis, [...] of `dtype`, rounded once."""
    y = x.sum(-1)
    rows = x.reshape(-1, x.shape[-1])
    return settle(y, error_bound(x.shape[-1], x.abs().sum(-1)), dtype, lambda flat: rows[flat])
