"""Rows and norms, executed and compared bit for bit with a model that adds in the stated order."""

from __future__ import annotations

import functools

import device_models as models
import numpy as np
import pytest

pytest.importorskip("flydsl")

from device_harness import M3, SMALL, body_program, run, run_word

from monodraft.device import probes
from monodraft.device import words as dw
from monodraft.device.geometry import Geometry

pytestmark = pytest.mark.executed

GEOMETRIES = [SMALL, Geometry(hidden=512, ranks=4), Geometry(hidden=2048, ranks=1, waves=2), M3]
EPS = 1e-6


def held(rows: np.ndarray, geo: Geometry) -> np.ndarray:
    """Rows [n, hidden] as what every thread holds, [n, threads, 16]; zeros past the row."""
    out = np.zeros((len(rows), geo.threads, 16), np.float32)
    out[:, : geo.row_threads] = rows.reshape(len(rows), geo.row_threads, 16)
    return out


@pytest.mark.parametrize("geo", GEOMETRIES, ids=lambda geo: str(geo.hidden))
def test_row_x_is_the_row_and_zeros_past_it(geo: Geometry) -> None:
    """Every bf16 pattern passes, NaN payloads included."""
    rows = -(-65536 // geo.hidden)
    x = np.resize(np.arange(65536, dtype=np.uint32).astype(np.uint16), (rows, geo.hidden))
    found = run_word("row_x", geo, ctas=rows, a=x, b=np.ones((rows, geo.threads, 16), np.float32))["b"]
    np.testing.assert_array_equal(models.bits(found), models.bits(held(models.from_bf16(x), geo)))


@pytest.mark.parametrize("geo", GEOMETRIES, ids=lambda geo: str(geo.hidden))
def test_norm_w_gives_pairs_and_zeros_past_the_row(geo: Geometry) -> None:
    w = np.random.default_rng(1).integers(0, 65536, geo.hidden).astype(np.uint16)
    found = run_word("norm_w", geo, a=w, b=np.ones((geo.threads, 8), np.uint32))["b"]
    wanted = np.zeros((geo.threads, 8), np.uint32)
    wanted[: geo.row_threads] = w.view(np.uint32).reshape(-1, 8)
    np.testing.assert_array_equal(found, wanted)


def pairs(rows: np.ndarray, tag: int) -> np.ndarray:
    """bf16 rows [n, hidden] as tagged pairs [n, hidden / 2, 2]."""
    words = np.ascontiguousarray(rows).view(np.uint32)
    return np.stack([words, np.full_like(words, tag)], -1)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_row_sum4_adds_in_rank_order_and_rounds_once(ranks: int) -> None:
    """Cancelling ranks, ties of bf16, subnormals, infinities and NaN; any other order of ranks gives other bits."""
    geo = Geometry(hidden=512, ranks=ranks)
    rng = np.random.default_rng(ranks)
    x = models.to_bf16(models.random_f32(rng, ranks * 3 * 512, -12, 12)).reshape(ranks, 3, 512)
    special = [0x0000, 0x8000, 0x0001, 0x7F7F, 0x7F80, 0xFF80, 0x7FC1]
    x[:, 2, :256] = rng.choice(np.array(special, np.uint16), (ranks, 256))
    x[:, 1, :64] = models.to_bf16(np.float32([[1.0], [2.0**-8], [2.0**-9], [-1.0]] * 2)[:ranks])
    regions = np.stack([pairs(each, 9) for each in x])
    out = np.ones((3, geo.threads, 16), np.float32)
    found = run_word("row_sum4", geo, ctas=3, a=regions, n=regions[0].nbytes, tag=9, b=out)["b"]
    total = models.from_bf16(x[0])
    with np.errstate(all="ignore"):
        for each in x[1:]:
            total = total + models.from_bf16(each)
    wanted = held(models.round_bf16(total), geo)
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(models.bits(found)[~nan], models.bits(wanted)[~nan])


@functools.cache
def rsqrt_of(value: float) -> np.float32:
    """`v_rsq_f32` as the executor has it (docs/executor.md); a GPU may differ by 1 ulp."""

    def body(p: probes.Arguments) -> None:
        from monodraft.device.numbers import hw_rsqrt

        dw.st(p.b, p.i, hw_rsqrt(dw.ld(p.a, p.i, dtype=probes.fx.Float32)))

    found = run(body_program(body, SMALL), a=np.full(512, value, np.float32), b=np.zeros(512, np.float32))["b"][0]
    exact = 1 / np.sqrt(np.float64(np.float32(value)))
    assert abs(found - exact) <= np.spacing(np.float32(exact))
    return np.float32(found)


def model_norm(s: models.F32, w: models.F32, geo: Geometry, unit_offset: bool) -> models.F32:
    mean = models.square_sum(s, geo.threads) * np.float32(1 / geo.hidden) + np.float32(EPS)
    return models.norm(s, w, rsqrt_of(float(mean)), unit_offset)


def norm_inputs(geo: Geometry) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three rows, three rows to add, weights: w = 2^-9 and -1 among them, sums that are bf16 ties."""
    rng = np.random.default_rng(geo.hidden)
    x = models.to_bf16(rng.standard_normal((3, geo.hidden)).astype(np.float32))
    d = models.to_bf16(rng.standard_normal((3, geo.hidden)).astype(np.float32))
    x[1] = models.to_bf16(models.random_f32(rng, geo.hidden, -8, 8))
    x[2] = models.to_bf16(models.from_bf16(x[2]) * np.float32(2.0**-12))  # mean of squares below eps
    d[1, :64] = models.to_bf16(np.float32([2.0**-9]))[0]
    w = models.to_bf16(rng.uniform(-1, 1, geo.hidden).astype(np.float32))
    w[:4] = models.to_bf16(np.float32([2.0**-9, -1.0, 0.0, 1.0]))
    return x, d, w


@pytest.mark.parametrize("geo", GEOMETRIES, ids=lambda geo: str(geo.hidden))
def test_norm_row_twice_with_the_residual_between(geo: Geometry) -> None:
    """The probe norms x, adds d to the result and norms (that + residual), the residual being bf16 in LDS. Where the
    sum is a bf16 tie, a norm of the rounded sum would differ."""
    x, d, w = norm_inputs(geo)
    found = run_word("norm_row", geo, ctas=3, a=x, c=w, d=d, b=np.ones((3, geo.threads, 16), np.float32))["b"]
    weights = models.from_bf16(w)
    for row in range(3):
        first = models.from_bf16(x[row])
        mixed = model_norm(first, weights, geo, True) + models.from_bf16(d[row])
        wanted = model_norm(mixed + first, weights, geo, True)
        np.testing.assert_array_equal(models.bits(found[row]), models.bits(held(wanted[None], geo)[0]))


@pytest.mark.parametrize("unit_offset", [True, False], ids=["gemma", "plain"])
def test_norm_row_of_both_families(unit_offset: bool) -> None:
    x, _, w = norm_inputs(SMALL)

    def body(p: probes.Arguments) -> None:
        res = probes.shared(probes.fx.Int32, p.geo.residual_words())
        red = probes.shared(probes.fx.Float32, p.geo.waves)
        values = dw.row_x(p.geo, p.a, probes.fx.block_idx.x)
        weights = dw.norm_w(p.geo, p.c)
        normed = dw.norm_row(p.geo, values, weights, res, red, EPS, add=False, unit_offset=unit_offset)
        probes._store_row(p, normed)

    out = np.ones((3, SMALL.threads, 16), np.float32)
    found = run(body_program(body, SMALL), ctas=3, a=x, c=w, b=out)["b"]
    for row in range(3):
        wanted = model_norm(models.from_bf16(x[row]), models.from_bf16(w), SMALL, unit_offset)
        np.testing.assert_array_equal(models.bits(found[row]), models.bits(held(wanted[None], SMALL)[0]))
    if unit_offset:
        lost = models.round_bf16(models.from_bf16(w[:1]) + np.float32(1))
        assert lost[0] == 1, "w = 2^-9 vanishes in a bf16 1 + w: the case tells the two roundings apart"
