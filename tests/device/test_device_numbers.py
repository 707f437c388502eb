"""Numbers, executed and compared bit for bit with independent models over the edge sets."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flydsl")

import device_models as models
from device_harness import M3, run_word

pytestmark = pytest.mark.executed


CTAS = 128


def through(name: str, x: models.F32, **more: models.F32) -> dict[str, np.ndarray]:
    """A word over any number of float32 values, `CTAS` CTAs at a time; outputs are as long as `x`."""
    count = min(CTAS, -(-x.size // M3.threads)) * M3.threads
    found: dict[str, list[np.ndarray]] = {"b": [], "c": []}
    for start in range(0, x.size, count):
        arrays = {"c": np.zeros(count, np.float32), "a": x[start : start + count]}
        arrays |= {key: value[start : start + count] for key, value in more.items()}
        padded = {key: np.resize(value, count).astype(np.float32) for key, value in arrays.items()}
        outputs = run_word(name, ctas=count // M3.threads, b=np.zeros(count, np.uint32), **padded)
        for key, pieces in found.items():
            pieces.append(outputs[key])
    return {key: np.concatenate(pieces)[: x.size] for key, pieces in found.items()}


def random_values(count: int = 30_000) -> models.F32:
    return models.random_f32(np.random.default_rng(7), count)


@pytest.mark.parametrize("name", ["bf16_bits", "bf16r"])
def test_bf16_rounding_is_nearest_even_on_every_pattern_and_tie(name: str) -> None:
    x = np.concatenate([models.bf16_neighbours(), random_values()])
    found = through(name, x)["b"]
    nan = np.isnan(x)
    wanted = models.to_bf16(x).astype(np.uint32)
    if name == "bf16r":
        assert not (found & 0xFFFF).any()
        found = found >> 16
    assert not (found >> 16).any()
    np.testing.assert_array_equal(found[~nan], wanted[~nan])
    assert np.isnan(models.from_bf16(found[nan].astype(np.uint16))).all()


def test_bfpair_packs_two_roundings() -> None:
    a, b = models.bf16_neighbours(), models.bf16_neighbours()[::-1].copy()
    found = through("bfpair", a, c=b)["b"]
    for half, x in ((found & 0xFFFF, a), (found >> 16, b)):
        nan = np.isnan(x)
        np.testing.assert_array_equal(half[~nan], models.to_bf16(x)[~nan])
        assert np.isnan(models.from_bf16(half[nan].astype(np.uint16))).all()


def test_exp_is_exp2_of_the_rounded_product_within_one_ulp() -> None:
    x = np.concatenate([models.all_bf16(), models.random_f32(np.random.default_rng(1), 30_000, -20, 8)])
    found = models.f32(through("exp", x)["b"])
    with np.errstate(all="ignore"):
        exponent = x * np.float32(np.log2(np.e))
        wanted = np.exp2(exponent.astype(np.float64))
        ulp = np.spacing(np.maximum(wanted, 2.0**-126).astype(np.float32)).astype(np.float64)
        exact = np.isinf(wanted.astype(np.float32)) | (wanted == 0) | np.isnan(wanted)
        np.testing.assert_array_equal(found[exact], wanted[exact].astype(np.float32))
        assert (np.abs(found - wanted)[~exact] <= ulp[~exact]).all()
    subnormal = (wanted > 2.0**-149) & (wanted < 2.0**-127)
    assert subnormal.any()
    assert (found[subnormal] > 0).all(), "small results are not flushed"


def test_hw_sqrt_is_within_one_ulp() -> None:
    normal = np.abs(np.concatenate([models.all_bf16(), random_values()]))
    x = np.concatenate([normal[normal >= 2.0**-126], models.f32([0, 0x80000000, 0x7F800000, 0x7FC00000, 0xBF800000])])
    found = models.f32(through("hw_sqrt", x)["b"])
    with np.errstate(all="ignore"):
        wanted = np.sqrt(x.astype(np.float64))
        ulp = np.spacing(wanted.astype(np.float32)).astype(np.float64)
        special = ~np.isfinite(wanted) | (wanted == 0)
        np.testing.assert_array_equal(found[special], wanted[special].astype(np.float32))
        assert (np.abs(found - wanted)[~special] <= ulp[~special]).all()


def test_mx_scale_gives_the_code_and_its_inverse_on_every_edge() -> None:
    am = np.concatenate([models.amax_edges(), np.abs(random_values())])
    found = through("mx_scale", am)
    codes = models.f32(found["b"])
    wanted = models.scale_codes(am)
    np.testing.assert_array_equal(codes, wanted.astype(np.float32))
    inverse = found["c"]
    nan = wanted == 255
    np.testing.assert_array_equal(inverse[~nan], np.ldexp(1.0, 127 - wanted[~nan]).astype(np.float32))
    assert np.isnan(inverse[nan]).all()


def test_mx_scale_agrees_with_the_host_byte_for_byte() -> None:
    from monodraft.formats.mxfp8 import block_exponent

    am = np.concatenate([models.amax_edges(), np.abs(random_values())])
    codes = models.f32(through("mx_scale", am)["b"]).astype(np.uint8)
    np.testing.assert_array_equal(codes, block_exponent(am))


STATED = {
    0x00000000: 1,
    0x00000001: 1,
    0x007FFFFF: 1,
    0x7F7FFFFF: 247,
    0x7F800000: 255,
    0x7FC00000: 255,
    0x7F800001: 255,
}
STATED |= {0x43E00000: 127, 0x43E00001: 128, 0x3FE00000: 119, 0x3FE00001: 120, 0x40000000: 120}


@pytest.mark.parametrize(("amax", "code"), STATED.items())
def test_mx_scale_of_stated_cases(amax: int, code: int) -> None:
    """Zero, subnormals, the largest f32, infinity, NaN with payload, 448 and 1.75 and their upper neighbours, 2."""
    assert models.f32(through("mx_scale", models.f32([amax]))["b"])[0] == code
