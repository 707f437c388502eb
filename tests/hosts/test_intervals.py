"""The intervals hold what float32 gives in any order, and no more than that: they are what the stages are judged by."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from head_bounds import gumbel_error, possible
from intervals import Interval, U, dot, exp, gamma, quantised, rsqrt, sigmoid, tanh, total, ulp

from monodraft.executor import numerics
from monodraft.formats import mxfp8_torch

pytestmark = pytest.mark.numbers

LOG2_E, LN_2 = np.float32(1.4426950408889634), np.float32(0.6931471805599453)


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return (scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).bfloat16()


def holds(wanted: Interval, found: torch.Tensor) -> bool:
    return bool(((wanted.low <= found.double()) & (found.double() <= wanted.high)).all())


def in_order(terms: torch.Tensor) -> torch.Tensor:
    """float32 sum over the last axis, one term after another."""
    result = torch.zeros(terms.shape[:-1])
    for term in terms.unbind(-1):
        result = result + term
    return result


def test_a_dot_holds_every_order_and_a_lost_term_falls_out() -> None:
    x, w = normal(16, 256, seed=1), normal(64, 256, seed=2)
    wanted = dot(Interval.of(x), w, 256)
    products = x.float()[:, None] * w.float()[None]
    orders = (torch.randperm(256, generator=torch.Generator().manual_seed(seed)) for seed in range(20))
    assert all(holds(wanted, in_order(products[..., order])) for order in orders)
    pairs = products
    while pairs.shape[-1] > 1:
        pairs = pairs[..., 0::2] + pairs[..., 1::2]
    assert holds(dot(Interval.of(x), w, 8), pairs[..., 0])
    lost = in_order(products[..., 1:]).double()
    outside = (lost < wanted.low) | (lost > wanted.high)
    assert float(outside.double().mean()) > 0.99


def test_a_sum_is_as_wide_as_gamma_says() -> None:
    x = normal(8, 512, seed=3).double()
    found = total(Interval.of(x), 20)
    width = (found.high - found.low) / 2
    most = gamma(20) * x.abs().sum(-1)
    assert bool((width <= most * (1 + 1e-3) + ulp(x.sum(-1))).all())
    assert bool((width >= most - ulp(x.sum(-1))).all())


def test_open_operands_widen_a_dot_by_what_they_can_move() -> None:
    x, w = normal(4, 64, seed=4).double(), normal(8, 64, seed=5)
    wide = Interval.around(x, 0.01)
    found = dot(wide, w, 2)
    for seed in range(50):
        moved = x + 0.01 * (2 * torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) - 1)
        assert holds(found, moved @ w.double().T)
    corner = x + 0.01 * w[0].double().sign()
    assert float((found.high - corner @ w.double().T)[:, 0].abs().max()) < 1e-4


def test_functions_hold_what_the_hardware_makes_of_them() -> None:
    x = np.concatenate([np.linspace(-40, 20, 20001), np.linspace(-0.2, 0.2, 4001)]).astype(np.float32)
    points = Interval.of(torch.from_numpy(x))
    one, two = np.float32(1), np.float32(2)
    e = numerics.through_double(np.exp2, x * LOG2_E)
    assert holds(exp(points), torch.from_numpy(e))
    assert holds(sigmoid(points), torch.from_numpy(one / (numerics.through_double(np.exp2, -x * LOG2_E) + one)))
    far = one - two / (numerics.through_double(np.exp2, (x + x) * LOG2_E) + one)
    assert holds(tanh(points)[torch.from_numpy(np.abs(x) > 0.1)], torch.from_numpy(far[np.abs(x) > 0.1]))
    positive = np.abs(x) + np.float32(1e-3)
    assert holds(rsqrt(Interval.of(torch.from_numpy(positive))), torch.from_numpy(numerics.hardware_rsq(positive)))
    wrong = torch.from_numpy(e).double() * (1 + 1e-4)
    assert not holds(exp(points), wrong)


def test_exp_of_what_is_not_seen_is_nothing() -> None:
    hidden = torch.tensor([-torch.inf, 0.0], dtype=torch.float64)
    found = exp(Interval.of(hidden))
    assert found.low[0] == found.high[0] == 0.0
    assert float(found.high[1] - found.low[1]) <= 4 * U


def test_points_stay_points_and_are_quantised_as_the_format_says() -> None:
    x = normal(32, 256, seed=6, scale=3.0)
    found = quantised(Interval.of(x))
    assert not bool(found.open.any())
    assert torch.equal(found.low, mxfp8_torch.decode(*mxfp8_torch.encode(x)).double())
    sums = (Interval.of(x) + x.flip(0)) * 0.3
    assert not bool(sums.open.any())
    assert torch.equal(sums.low, ((x.float() + x.flip(0).float()) * 0.3).double())


def test_quantised_intervals_hold_every_choice_also_where_the_scale_turns() -> None:
    """Neighbouring bf16 values, some across an e4m3 boundary, some the largest of a block across a power of two."""
    low = normal(64, 64, seed=7).abs()
    low[:, 0] = torch.tensor(448.0 * 2.0**-6).bfloat16()  # the largest that its scale code takes
    bits = low.view(torch.int16)
    high = (bits + 1).view(torch.bfloat16)
    found = quantised(Interval(low.double(), high.double()))
    generator = torch.Generator().manual_seed(8)
    for _ in range(50):
        some = torch.rand(low.shape, generator=generator) < 0.5
        assert holds(found, mxfp8_torch.decode(*mxfp8_torch.encode(torch.where(some, high, low))))


def test_choices_are_the_best_and_the_lowest_of_equals() -> None:
    scores = Interval.of(torch.tensor([1.0, 3.0, 3.0, 2.0]))
    assert [possible(scores, token) for token in range(4)] == [False, True, False, False]
    blurred = Interval(scores.low, scores.high + torch.tensor([0.0, 0.0, 0.5, 0.5]))
    assert [possible(blurred, token) for token in range(4)] == [False, True, True, False]


def test_the_noise_of_the_device_is_within_its_bound() -> None:
    """The formula of `device.random.gumbel` in float32, against the logarithms in float64."""
    words = np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint64).astype(np.uint32)
    words[:4] = 0, 1, (1 << 32) - 1, 1 << 31
    u = (words.astype(np.float64) + 0.5) * 2.0**-32
    wanted = torch.from_numpy(-np.log(-np.log(u))).float().double()
    upper = words >= 1 << 31
    small = np.where(upper, ~words, words).astype(np.float32)
    part = (small + np.float32(0.5)) * np.float32(2.0**-32)
    w = np.float32(1) - part
    rest = np.float32(1) - w
    near = np.where(rest == 0, part, -logarithm(w) * part / np.where(rest == 0, np.float32(1), rest))
    exponential = np.where(upper, near, -logarithm(part)).astype(np.float32)
    found = torch.from_numpy(-logarithm(exponential)).double()
    assert bool(((found - wanted).abs() <= gumbel_error(wanted)).all())
    assert float(((found - wanted).abs() / gumbel_error(wanted)).max()) > 0.05


def logarithm(x: np.ndarray) -> np.ndarray:
    """`device.random.hw_log`."""
    return numerics.hardware_log2(x) * LN_2
