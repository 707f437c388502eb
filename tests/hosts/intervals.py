"""Intervals that surely hold what a kernel gives: float64 arithmetic of its own inputs, widened by what it may round.

u = 2^-24 is half a unit in the last place of float32, relative to 1. A sum of exact products whose every term passes
through at most d roundings to float32 differs from the exact sum by at most gamma_d = d u / (1 - d u) times the sum of
the products' magnitudes, in whatever order it is added (Higham, *Accuracy and Stability*, 4.2). Single operations round
correctly (IEEE 754), the hardware's exp2, log2 and rsqrt are good to one unit in the last place (docs/device.md).
Rounding is monotone: an interval is rounded by rounding its ends, and an operation of points stays a point.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from monodraft.formats import mxfp8_torch

U = 2.0**-24
DOUBLE = 2.0**-50
"""Relative error of a few float64 operations: added wherever float64 stands for the exact value."""
LOG2_E = 1.4426950408889634
LOG2_E_ERROR = abs(float(torch.tensor(LOG2_E, dtype=torch.float32)) / LOG2_E - 1)
BLOCK = mxfp8_torch.BLOCK


def gamma(roundings: int) -> float:
    """gamma_d of `roundings` d to float32."""
    return roundings * U / (1 - roundings * U)


@dataclass(frozen=True)
class Interval:
    """All values from `low` to `high`, float64 of one shape."""

    low: torch.Tensor
    high: torch.Tensor

    @classmethod
    def of(cls, values: torch.Tensor) -> Interval:
        """Points."""
        wide = values.double()
        return cls(wide, wide)

    @classmethod
    def around(cls, values: torch.Tensor, error: torch.Tensor | float) -> Interval:
        """float64 `values`, each plus or minus its `error` >= 0."""
        return cls(values - error, values + error)

    @property
    def open(self) -> torch.Tensor:
        """Where more than one value is left."""
        return self.low != self.high

    @property
    def magnitude(self) -> torch.Tensor:
        """Largest |value|."""
        return torch.maximum(self.low.abs(), self.high.abs())

    @property
    def least_magnitude(self) -> torch.Tensor:
        """Smallest |value|."""
        across = (self.low <= 0) & (self.high >= 0)
        return torch.minimum(self.low.abs(), self.high.abs()).masked_fill(across, 0.0)

    def __getitem__(self, index: object) -> Interval:
        return Interval(self.low[index], self.high[index])  # type: ignore[index]

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low)

    def __add__(self, other: Interval | torch.Tensor | float) -> Interval:
        """The sum rounded to float32."""
        other = _interval(other, self.low)
        return Interval(self.low + other.low, self.high + other.high).float32()

    def __sub__(self, other: Interval | torch.Tensor | float) -> Interval:
        """The difference rounded to float32."""
        return self + -_interval(other, self.low)

    def __mul__(self, other: Interval | torch.Tensor | float) -> Interval:
        """The product rounded to float32."""
        other = _interval(other, self.low)
        ends = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return _hull(ends).float32()

    def __truediv__(self, other: Interval | torch.Tensor | float) -> Interval:
        """The quotient rounded to float32; the divisor lies above 0."""
        other = _interval(other, self.low)
        assert bool((other.low > 0).all()), "a divisor that may be 0"
        return _hull([a / b for a in (self.low, self.high) for b in (other.low, other.high)]).float32()

    def clamp(self, least: float = -torch.inf, most: float = torch.inf) -> Interval:
        """Values cut off, nothing rounded."""
        return Interval(self.low.clamp(least, most), self.high.clamp(least, most))

    def float32(self) -> Interval:
        """Rounded to float32."""
        return Interval(self.low.float().double(), self.high.float().double())

    def bf16(self) -> Interval:
        """float32 values rounded to bf16."""
        return Interval(self.low.float().bfloat16().double(), self.high.float().bfloat16().double())

    def check(self, found: torch.Tensor, name: str) -> None:
        """Assert that all of `found` lies inside."""
        wide = found.double()
        outside = ~((self.low <= wide) & (wide <= self.high))
        if bool(outside.any()):
            first = tuple(outside.nonzero()[0].tolist())
            wanted = f"{float(self.low[first])!r} .. {float(self.high[first])!r}"
            found_there = f"first {first}: {float(wide[first])!r}, wanted {wanted}"
            raise AssertionError(f"{name}: {int(outside.sum())} of {wide.numel()} outside, {found_there}")


def _interval(value: Interval | torch.Tensor | float, like: torch.Tensor) -> Interval:
    """A float is the float32 constant nearest to it."""
    if isinstance(value, Interval):
        return value
    if isinstance(value, torch.Tensor):
        return Interval.of(value)
    return Interval.of(torch.tensor(value, dtype=torch.float32, device=like.device))


def _hull(candidates: list[torch.Tensor]) -> Interval:
    together = torch.stack(candidates)
    return Interval(together.amin(0), together.amax(0))


def concatenated(parts: list[Interval], dim: int) -> Interval:
    """Intervals side by side along `dim`."""
    return Interval(torch.cat([part.low for part in parts], dim), torch.cat([part.high for part in parts], dim))


def stacked(parts: list[Interval]) -> Interval:
    """Intervals along a new first axis."""
    return concatenated([part[None] for part in parts], 0)


def dot(x: Interval, w: Interval | torch.Tensor, roundings: int) -> Interval:
    """x [..., M, K] times w [..., N, K] transposed, summed in float32 through at most `roundings` roundings a term."""
    centre, radius = (x.low + x.high) / 2, (x.high - x.low) / 2
    middle = w.double() if isinstance(w, torch.Tensor) else (w.low + w.high) / 2
    most = middle.abs() if isinstance(w, torch.Tensor) else w.magnitude
    slack = (gamma(roundings) + _float64_error(x.low.shape[-1])) * x.magnitude + radius
    error = slack @ most.mT
    if isinstance(w, Interval):
        error += x.magnitude @ ((w.high - w.low) / 2).mT
    return Interval.around(centre @ middle.mT, error).float32()


def total(x: Interval, roundings: int) -> Interval:
    """Sum over the last axis in float32, at most `roundings` roundings a term."""
    slack = (gamma(roundings) + _float64_error(x.low.shape[-1])) * x.magnitude.sum(-1)
    return Interval(x.low.sum(-1) - slack, x.high.sum(-1) + slack).float32()


def _float64_error(terms: int) -> float:
    return terms * DOUBLE


def ulp(values: torch.Tensor) -> torch.Tensor:
    """A unit in the last place of float32 at float64 `values`: 2^-23 of the power of two below, 2^-149 at least."""
    return torch.ldexp(torch.ones_like(values), (values.abs().clamp(min=2.0**-126).frexp().exponent - 24))


def _hardware(value: torch.Tensor, relative: torch.Tensor | float = 0.0) -> Interval:
    """float64 results of a function good to an ulp whose argument was off by what makes `relative`."""
    return Interval.around(value, ulp(value) + value.abs() * (relative + DOUBLE))


def exp(x: Interval) -> Interval:
    """e^x as 2^(x log2 e): the product is off by u relative to x, the constant by a quarter of it; exp2 by an ulp."""
    off = U + LOG2_E_ERROR
    ends = [_hardware(end.exp(), end.abs() * off).float32() for end in (x.low, x.high)]
    low, high = ends[0].low.masked_fill(x.low == -torch.inf, 0.0), ends[1].high.masked_fill(x.high == -torch.inf, 0.0)
    return Interval(low.clamp(min=0.0), high)


def rsqrt(x: Interval) -> Interval:
    """1 / sqrt(x), x above 0, good to an ulp."""
    return Interval(_hardware(x.high.rsqrt()).low, _hardware(x.low.rsqrt()).high).float32()


def sigmoid(x: Interval) -> Interval:
    """1 / (1 + e^-x): exponential, sum, quotient."""
    return Interval.of(torch.ones_like(x.low)) / (exp(-x) + 1.0)


def tanh(x: Interval) -> Interval:
    """tanh x: below 0.1 a series, off by its first missing term (below 2^-31 x) and 2 u; else 1 - 2 / (e^2x + 1)."""
    far = -(Interval.of(torch.full_like(x.low, 2.0)) / (exp(x + x) + 1.0)) + 1.0
    near = Interval(*(end.tanh() for end in (x.low, x.high)))
    slack = near.magnitude * (2 * U + 2.0**-31)
    near = Interval(near.low - slack, near.high + slack).float32()
    small, large = x.magnitude < 0.1, x.least_magnitude > 0.1
    low = torch.where(small, near.low, torch.where(large, far.low, torch.minimum(near.low, far.low)))
    return Interval(
        low, torch.where(small, near.high, torch.where(large, far.high, torch.maximum(near.high, far.high)))
    )


def quantised(x: Interval) -> Interval:
    """MXFP8 of bf16 values, in blocks of 32 along the last axis, decoded: what every choice of values comes to."""
    blocks = Interval(*(end.unflatten(-1, (-1, BLOCK)) for end in (x.low, x.high)))
    codes = [
        mxfp8_torch.block_exponent(most.amax(-1).float()).int() for most in (blocks.least_magnitude, blocks.magnitude)
    ]
    assert bool((codes[1] - codes[0] <= 1).all()), "an interval wider than a binade"
    ends = [_on_grid(end, code) for code in codes for end in (blocks.low, blocks.high)]
    whole = _hull(ends)
    return Interval(whole.low.flatten(-2), whole.high.flatten(-2))


def _on_grid(values: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
    """Values [..., blocks, 32] rounded to e4m3 under the scale codes [..., blocks], decoded."""
    scale = torch.ldexp(torch.ones_like(values[..., :1]), code[..., None] - 127)
    scaled = (values / scale).clamp(-448.0, 448.0).float()
    return scaled.to(torch.float8_e4m3fn).double() * scale
