"""MXFP8: the scale code against exact arithmetic, encode and decode against independent libraries, every special block.

torchao is an oracle where it is right: finite blocks with codes of at least 1 (its code 0 is wrong), and not within 64
float32 ulps above 448 * 2^k, where its eager RCEIL takes a rounded log2 and is one code low (seen with 0.18).
"""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from gfloat import BlockFormatInfo, decode_block
from gfloat.formats import format_info_ocp_e4m3, format_info_ocp_e8m0

from monodraft.formats import bf16, e4m3, mxfp8, mxfp8_torch

pytestmark = pytest.mark.numbers

FLT_MAX = float(np.finfo(np.float32).max)


def around(value: float, ulps: int = 4) -> np.ndarray:
    """float32 neighbours of a positive value."""
    bits = np.float32(value).view(np.uint32).astype(np.int64) + np.arange(-ulps, ulps + 1)
    return bits[(bits > 0) & (bits < 0x7F800000)].astype(np.uint32).view(np.float32)


def edges() -> np.ndarray:
    """Every positive finite bf16, and 4 ulps round 448 * 2^k and 1.75 * 2^k for every k of float32."""
    words = np.arange(1, 0x7F80, dtype=np.uint16)
    powers = [m * 2.0**k for k in range(-149, 128) for m in (1.75, 448.0) if m * 2.0**k <= FLT_MAX]
    return np.concatenate([bf16.decode(words), *(around(value) for value in powers)])


def exact_code(amax: float) -> int:
    """ceil(log2(amax / 448)) + 127 clamped to [1, 254], in rational arithmetic."""
    ratio = Fraction(amax) / 448
    exponent = ratio.numerator.bit_length() - ratio.denominator.bit_length()
    while Fraction(2) ** exponent < ratio:
        exponent += 1
    while Fraction(2) ** (exponent - 1) >= ratio:
        exponent -= 1
    return min(max(exponent + 127, 1), 254)


def block(*values: float, fill: float = 0.0) -> np.ndarray:
    x = np.full(mxfp8.BLOCK, fill, np.float32)
    x[: len(values)] = values
    return x


def encode_both(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """NumPy's bytes, after torch gave the same."""
    elements, scales = mxfp8.encode(x)
    torch_elements, torch_scales = mxfp8_torch.encode(torch.from_numpy(x.copy()))
    assert np.array_equal(elements, torch_elements.numpy())
    assert np.array_equal(scales, torch_scales.numpy())
    values = mxfp8.decode(elements, scales)
    torch_values = mxfp8_torch.decode(torch_elements, torch_scales).numpy()
    assert np.array_equal(values.view(np.uint32), torch_values.view(np.uint32))
    return elements, scales


def test_code_is_exact_rceil_for_every_edge() -> None:
    amax = edges()
    ours = mxfp8.block_exponent(amax)
    assert ours.tolist() == [exact_code(float(value)) for value in amax]
    assert np.array_equal(ours, mxfp8_torch.block_exponent(torch.from_numpy(amax)).numpy())


@pytest.mark.parametrize(
    ("amax", "code"),
    [
        (0.0, 1),
        (2.0**-149, 1),
        (2.0**-127, 1),
        (2.0**-119, 1),
        (1.0, 119),
        (1.75, 119),
        (1.7500001, 120),
        (1.9375, 120),
        (2.0, 120),
        (448.0, 127),
        (448.00003, 128),
        (480.0, 128),
        (FLT_MAX, 247),
        (np.inf, 255),
        (np.nan, 255),
    ],
)
def test_code_of_the_published_table(amax: float, code: int) -> None:
    """The RCEIL column of the table of rules in use; 0, infinity and NaN are our policy."""
    assert mxfp8.block_exponent(np.float32([amax])).tolist() == [code]


def test_code_follows_amd_mono_where_that_is_finite() -> None:
    """v = amax * fl(1/448), exponent field plus one for any mantissa bit, clamp [1, 254]: vLLM's AMD kernels."""
    amax = edges()
    v = (amax * np.uint32(0x3B124925).view(np.float32)).view(np.uint32)
    mono = np.clip((v >> 23) + ((v & 0x7FFFFF) != 0), 1, 254)
    assert np.array_equal(mxfp8.block_exponent(amax), mono)


def test_codes_rise_with_amax() -> None:
    amax = np.sort(edges())
    assert (np.diff(mxfp8.block_exponent(amax).astype(int)) >= 0).all()


@pytest.mark.parametrize("amax", [2.0**-140, 2.0**-126, 1e-30, 1.0, 1.75, 448.0, 3e38])
def test_elements_are_ml_dtypes_casts_of_the_scaled_block(amax: float) -> None:
    rng = np.random.default_rng(0)
    x = (rng.uniform(-1, 1, (64, 64)) * amax).astype(np.float32)
    x[:, ::32] = amax
    elements, scales = encode_both(x)
    scaled = x.reshape(64, 2, 32).astype(np.float64) * 2.0 ** (127 - scales.astype(np.float64))[..., None]
    # The product with a power of two is exact in float32 unless it is far below the least e4m3.
    theirs = scaled.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).view(np.uint8).reshape(64, 64)
    assert np.array_equal(elements, theirs)


def test_decode_is_gfloats_for_all_pairs_of_bytes() -> None:
    form = BlockFormatInfo("mxfp8", format_info_ocp_e4m3, mxfp8.BLOCK, format_info_ocp_e8m0)
    elements = np.arange(256, dtype=np.uint8).reshape(8, 32)
    for scale in range(256):
        scales = np.full((8, 1), scale, np.uint8)
        ours = mxfp8.decode(elements, scales)
        theirs = [list(decode_block(form, [scale, *row])) for row in elements.tolist()]
        with np.errstate(over="ignore"):
            wanted = np.array(theirs, np.float64).astype(np.float32)
        assert np.array_equal(ours, wanted, equal_nan=True), scale


@pytest.mark.filterwarnings("ignore")
def test_bytes_are_torchaos_rceil_for_finite_blocks_with_codes_from_1() -> None:
    mx_tensor = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    amax = bf16.decode(np.arange(1, 0x7F80, dtype=np.uint16))
    amax = amax[(amax >= 448 * 2.0**-126) & (amax < 2.0**127)]
    x = np.random.default_rng(1).uniform(-1, 1, (amax.size, 32)).astype(np.float32) * amax[:, None]
    x[:, 7] = amax
    elements, scales = encode_both(x)
    rceil = mx_tensor.ScaleCalculationMode.RCEIL
    their_scales, their_elements = mx_tensor.to_mx(torch.from_numpy(x), torch.float8_e4m3fn, 32, rceil)
    assert np.array_equal(scales, their_scales.view(torch.uint8).numpy().reshape(scales.shape))
    assert np.array_equal(elements, their_elements.view(torch.uint8).numpy())


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zero_block_is_code_1_and_positive_zeros_also_among_others(zero: float) -> None:
    x = np.stack([block(fill=zero), block(1.0), block(fill=zero)])
    elements, scales = encode_both(x)
    assert scales.ravel().tolist() == [1, 119, 1]
    assert not elements[[0, 2]].any()
    assert np.array_equal(mxfp8.decode(elements, scales)[[0, 2]].view(np.uint32), np.zeros((2, 32), np.uint32))


def test_zeros_in_other_blocks_keep_their_sign() -> None:
    elements, _ = encode_both(block(1.0, -0.0, 0.0))
    assert elements[1:3].tolist() == [0x80, 0x00]


@pytest.mark.parametrize("special", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 13, 31])
def test_one_nan_or_infinity_makes_its_whole_block_nan_and_no_other(special: float, place: int) -> None:
    x = np.ones((1, 96), np.float32)
    x[0, 32 + place] = special
    elements, scales = encode_both(x)
    assert scales.tolist() == [[119, 255, 119]]
    assert (elements[0, 32:64] == 0x7F).all()
    values = mxfp8.decode(elements, scales)[0]
    assert np.isnan(values[32:64]).all()
    assert (np.delete(values, np.s_[32:64]) == 1).all()


def test_a_quiet_nan_payload_and_a_signalling_one_are_both_seen() -> None:
    bits = np.ones(32, np.float32).view(np.uint32)
    for nan in (0x7F800001, 0x7FC00000, 0xFF800001, 0xFFFFFFFF):
        bits[5] = nan
        assert encode_both(bits.view(np.float32))[1].tolist() == [255]


def test_float32_subnormals_are_not_flushed() -> None:
    x = block(2.0**-133, 2.0**-135, 2.0**-136)
    elements, scales = encode_both(x)
    assert scales.tolist() == [1]
    assert e4m3.VALUES[elements[:3]].tolist() == [2.0**-7, 2.0**-9, 0.0]


def test_scale_byte_0_is_a_value() -> None:
    elements = np.full((1, 32), e4m3.encode(np.float32([1.5]))[0], np.uint8)
    assert mxfp8.decode(elements, np.zeros((1, 1), np.uint8))[0, 0] == 1.5 * 2.0**-127
    assert mxfp8_torch.decode(torch.from_numpy(elements), torch.zeros(1, 1, dtype=torch.uint8))[0, 0] == 1.5 * 2.0**-127


def test_ties_go_to_even() -> None:
    """In [1, 2) scaled by 2^(127 - 119) e4m3 has steps of 1/8: odd sixteenths are ties."""
    ties = [1 + (2 * n + 1) / 16 for n in range(6)]
    elements, scales = encode_both(block(1.75, *ties))
    assert scales.tolist() == [119]
    wanted = [round((tie - 1) * 8) / 8 + 1 for tie in ties]
    assert mxfp8.decode(elements, scales)[1:7].tolist() == wanted


@pytest.mark.parametrize("shape", [(33,), (2, 31), ()])
def test_k_that_is_no_multiple_of_32_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="multiple of 32"):
        mxfp8.encode(np.zeros(shape, np.float32))
    with pytest.raises(ValueError, match="multiple of 32"):
        mxfp8_torch.encode(torch.zeros(shape))


def test_decode_refuses_scales_of_another_shape() -> None:
    with pytest.raises(ValueError, match="one per 32"):
        mxfp8.decode(np.zeros((2, 64), np.uint8), np.zeros((2, 1), np.uint8))
    with pytest.raises(ValueError, match="one per 32"):
        mxfp8_torch.decode(torch.zeros(2, 64, dtype=torch.uint8), torch.zeros(2, 1, dtype=torch.uint8))
