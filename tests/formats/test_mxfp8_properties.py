"""Properties of MXFP8 on arbitrary float32 bit patterns."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from monodraft.formats import e4m3, mxfp8, mxfp8_torch

pytestmark = pytest.mark.numbers

BITS = arrays(np.uint32, (3, 64), elements=st.integers(0, 2**32 - 1))


@st.composite
def close_exponents(draw: st.DrawFn) -> np.ndarray:
    """Blocks whose values lie within a few binades, as weights and activations do, at any magnitude."""
    centre = draw(st.integers(0, 250))
    exponents = draw(arrays(np.uint32, (3, 64), elements=st.integers(max(0, centre - 12), centre)))
    mantissas = draw(arrays(np.uint32, (3, 64), elements=st.integers(0, 2**23 - 1)))
    signs = draw(arrays(np.uint32, (3, 64), elements=st.integers(0, 1)))
    return (signs << np.uint32(31)) | (exponents << np.uint32(23)) | mantissas


@st.composite
def near_the_end(draw: st.DrawFn) -> np.ndarray:
    """Finite values whose largest lie in float32's last binade, round the edge at 248 * 2^120."""
    offsets = draw(arrays(np.int64, (3, 64), elements=st.integers(-(2**24), 0x7F7FFFFF - 0x7F780000)))
    signs = draw(arrays(np.uint32, (3, 64), elements=st.integers(0, 1)))
    return (signs << np.uint32(31)) | (0x7F780000 + offsets).astype(np.uint32)


ANY = st.one_of(BITS, close_exponents(), near_the_end())


def decoded_wide(elements: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """What the bytes say in float64, where nothing overflows: float32's end is no part of the format."""
    factor = np.where(scales == 255, np.nan, 2.0 ** (scales.astype(np.float64) - 127))
    return e4m3.decode(elements).astype(np.float64) * np.repeat(factor, 32, axis=-1)


def ends_float32(x: np.ndarray) -> np.ndarray:
    """[3, 2, 32]: where a value rounds to 256 * 2^120 = 2^128, float32's first infinity."""
    return (np.abs(x) >= np.float32(248 * 2.0**120)).reshape(3, 2, 32)


@given(ANY)
def test_torch_gives_the_same_bytes(bits: np.ndarray) -> None:
    x = bits.view(np.float32)
    elements, scales = mxfp8.encode(x)
    torch_elements, torch_scales = mxfp8_torch.encode(torch.from_numpy(x.copy()))
    assert np.array_equal(elements, torch_elements.numpy())
    assert np.array_equal(scales, torch_scales.numpy())


@given(ANY)
def test_torch_decodes_the_same_values(bits: np.ndarray) -> None:
    elements, scales = mxfp8.encode(bits.view(np.float32))
    expected = mxfp8.decode(elements, scales)
    decoded = mxfp8_torch.decode(torch.from_numpy(elements), torch.from_numpy(scales)).numpy()
    assert np.array_equal(decoded, expected, equal_nan=True)


@given(ANY)
def test_error_is_within_half_a_step_of_the_element(bits: np.ndarray) -> None:
    """With X = 2^(code - 127) and m = |x| / X: e4m3's step at m is 2^(floor(log2 m) - 3), at least 2^-9, and nothing
    saturates (m <= 448), so |decoded - x| <= X * max(2^(floor(log2 m) - 4), 2^-10)."""
    x = bits.view(np.float32)
    elements, scales = mxfp8.encode(x)
    finite = np.repeat(scales != 255, 32, axis=-1)
    wide = x.astype(np.float64)
    scale = np.repeat(2.0 ** (scales.astype(np.float64) - 127), 32, axis=-1)
    m = np.abs(wide) / scale
    assert (m[finite] <= 448).all()
    step = 2.0 ** np.floor(np.log2(np.maximum(m, 2.0**-6)))
    bound = scale * np.maximum(step / 16, 2.0**-10)
    error = np.abs(decoded_wide(elements, scales) - wide)
    assert (error[finite] <= bound[finite]).all()
    assert np.isnan(mxfp8.decode(elements, scales)[~finite]).all()


@given(ANY)
def test_a_block_is_nan_exactly_where_its_input_is_not_finite(bits: np.ndarray) -> None:
    x = bits.view(np.float32)
    _, scales = mxfp8.encode(x)
    assert np.array_equal(scales == 255, ~np.isfinite(x).reshape(3, 2, 32).all(-1))


@given(ANY)
def test_encoding_what_was_decoded_changes_no_value(bits: np.ndarray) -> None:
    """Values survive a second round exactly; the code may fall by one where rounding brought amax down to 448 * 2^k,
    with all elements then doubling: the largest element was above 224 X before, and stays at most 448 X. A block with
    a value past 248 * 2^120 decodes to infinity, and a block with an infinity is NaN."""
    x = bits.view(np.float32)
    once = mxfp8.decode(*mxfp8.encode(x))
    overflowed = np.isinf(once).reshape(3, 2, 32).any(-1)
    assert np.array_equal(overflowed, np.isfinite(x).reshape(3, 2, 32).all(-1) & ends_float32(x).any(-1))
    once = np.where(np.repeat(overflowed, 32, axis=-1), np.float32(np.nan), once)
    elements, scales = mxfp8.encode(once)
    twice = mxfp8.decode(elements, scales)
    assert np.array_equal(once, twice, equal_nan=True)
    again = mxfp8.encode(twice)
    assert np.array_equal(elements, again[0])
    assert np.array_equal(scales, again[1])


@given(close_exponents(), st.integers(-40, 40))
def test_a_power_of_two_moves_the_scale_and_nothing_else(bits: np.ndarray, shift: int) -> None:
    x = bits.view(np.float32)
    with np.errstate(over="ignore"):
        moved = x * np.float32(2.0**shift)
    elements, scales = mxfp8.encode(x)
    moved_elements, moved_scales = mxfp8.encode(moved)
    # Exact only while neither side touches subnormals, the clamp or infinity.
    blocks = np.abs(x).reshape(3, 2, 32)
    least = np.where(blocks == 0, np.inf, blocks).min(-1)
    safe = (scales > 45) & (scales < 205) & (least > 2.0**-80)
    assert np.array_equal(moved_scales[safe].astype(int), scales[safe].astype(int) + shift)
    safe_elements = np.repeat(safe, 32, axis=-1)
    assert np.array_equal(moved_elements[safe_elements], elements[safe_elements])
