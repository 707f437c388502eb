"""bf16, e4m3 and e8m0 against ml_dtypes and gfloat, over all bytes and the edges of rounding."""

import ml_dtypes
import numpy as np
import pytest
from gfloat import decode_ndarray
from gfloat.formats import format_info_ocp_e4m3, format_info_ocp_e8m0

from monodraft.formats import bf16, e4m3, e8m0

pytestmark = pytest.mark.numbers

BYTES = np.arange(256, dtype=np.uint8)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal values, NaN equal to NaN, the sign of zero told apart."""
    return bool(np.all((a == b) & (np.signbit(a) == np.signbit(b)) | (np.isnan(a) & np.isnan(b))))


def all_bf16() -> np.ndarray:
    return bf16.decode(np.arange(1 << 16, dtype=np.uint32).astype(np.uint16))


def e4m3_neighbourhood() -> np.ndarray:
    """Every e4m3 value and every midpoint of two, 3 float32 ulps round each, both signs, and float32's own extremes."""
    values = np.unique(np.abs(e4m3.VALUES[~np.isnan(e4m3.VALUES)]))
    midpoints = ((values[1:].astype(np.float64) + values[:-1]) / 2).astype(np.float32)
    centres = np.concatenate([values, midpoints]).view(np.uint32).astype(np.int64)
    bits = np.clip(centres[:, None] + np.arange(-3, 4), 0, 0x7F7FFFFF).astype(np.uint32).ravel()
    extremes = np.array([0, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF], np.uint32)
    near = np.concatenate([bits, extremes]).view(np.float32)
    return np.concatenate([near, -near])


def test_every_e4m3_byte_decodes_like_ml_dtypes_and_gfloat() -> None:
    ours = e4m3.decode(BYTES)
    assert same(ours, BYTES.view(ml_dtypes.float8_e4m3fn).astype(np.float32))
    assert same(ours, decode_ndarray(format_info_ocp_e4m3, BYTES).astype(np.float32))


def test_every_e8m0_byte_decodes_like_ml_dtypes_and_gfloat() -> None:
    ours = e8m0.decode(BYTES)
    assert same(ours, BYTES.view(ml_dtypes.float8_e8m0fnu).astype(np.float32))
    assert same(ours, decode_ndarray(format_info_ocp_e8m0, BYTES).astype(np.float32))
    assert ours[[0, 1, 127, 134, 254]].tolist() == [2.0**-127, 2.0**-126, 1.0, 128.0, 2.0**127]


def test_e4m3_is_ocp_and_not_fnuz() -> None:
    assert same(e4m3.decode(np.array([0x80], np.uint8)), np.array([-0.0], np.float32))
    assert e4m3.VALUES[0x7E] == 448.0
    assert np.isnan(e4m3.VALUES[[0x7F, 0xFF]]).all()


@pytest.mark.parametrize("values", [all_bf16(), e4m3_neighbourhood()], ids=["all bf16", "ties and their ulps"])
def test_e4m3_encode_rounds_like_ml_dtypes_up_to_448_and_saturates_above(values: np.ndarray) -> None:
    ours = e4m3.encode(values)
    inside = ~(np.abs(values) > e4m3.MAX)
    with np.errstate(invalid="ignore"):
        theirs = values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert np.array_equal(ours[inside], theirs[inside])
    assert np.array_equal(ours[~inside], np.where(values[~inside] > 0, 0x7E, 0xFE))


def test_e4m3_encode_inverts_decode() -> None:
    assert np.array_equal(e4m3.encode(e4m3.decode(BYTES)), BYTES)


def test_bf16_matches_ml_dtypes_over_all_patterns_and_ties() -> None:
    words = np.arange(1 << 16, dtype=np.uint32)
    bits = (words[:, None] << 16) + np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    values = bits.ravel().astype(np.uint32).view(np.float32)
    with np.errstate(invalid="ignore"):
        theirs = values.astype(ml_dtypes.bfloat16)
    ours = bf16.encode(values)
    finite = ~np.isnan(values)
    assert np.array_equal(ours[finite], theirs.view(np.uint16)[finite])
    assert np.isnan(bf16.decode(ours[~finite])).all()
    every = words.astype(np.uint16)
    assert same(bf16.decode(every), every.view(ml_dtypes.bfloat16).astype(np.float32))
    assert np.array_equal(bf16.is_finite(every), np.isfinite(bf16.decode(every)))
