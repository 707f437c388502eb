"""MXFP8 as this project writes and reads it: e4m3 elements, one e8m0 scale per 32 consecutive values along K.

The policy, the same on the host, in torch and on gfx950 (docs/formats.md says why):

- Scale code: amax = largest magnitude of the block; v = amax * fl(1/448) in float32 (bits 0x3B124925); code = v's
  exponent field, plus 1 if any mantissa bit of v is set; clamped to [1, 254]. This is ceil(log2(amax / 448)) + 127
  (RCEIL) from bits, without a logarithm. Finite blocks use 1 .. 247.
- Elements: x * 2^(127 - code), rounded to nearest even, saturated to 448. float32 subnormals are not flushed.
- Zero block (only zeros of either sign): code 1, every element byte 0x00.
- A NaN or an infinity anywhere in the block: scale byte 255, every element byte 0x7F.
- Decode: element * 2^(scale - 127); scale 255 makes the whole block NaN; scale 0 is 2^-127; elements 0x7F and 0xFF are
  NaN. A product of 2^128 or more (scale >= 247) overflows to infinity in float32. Of our own blocks that is a value
  from 248 * 2^120 (3.2963e38) on: it rounds to 256 * 2^120, the element that is nearest but one past float32's end.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from monodraft.formats import e4m3, e8m0

BLOCK = 32
RECIPROCAL_448_BITS = 0x3B124925
"""float32 bits of 1/448, rounded to nearest: a little above 1/448."""
LEAST_CODE = 1
GREATEST_CODE = 254

_RECIPROCAL_448 = np.uint32(RECIPROCAL_448_BITS).view(np.float32)
_INFINITY_BITS = np.uint32(0x7F800000)


def block_exponent(amax: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Scale code of blocks whose largest magnitude is `amax` (float32 >= 0, any shape); 255 for NaN and infinity."""
    amax = np.ascontiguousarray(amax, dtype=np.float32)
    special = ~np.isfinite(amax)
    v = (np.where(special, np.float32(0), amax) * _RECIPROCAL_448).view(np.uint32)
    code = (v >> np.uint32(23)) + ((v & np.uint32(0x7FFFFF)) != 0)
    return np.where(special, e8m0.NAN, np.clip(code, LEAST_CODE, GREATEST_CODE)).astype(np.uint8)


def encode(x: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """x float32 [..., K], K a multiple of 32, to elements uint8 [..., K] and scales uint8 [..., K / 32].

    Raises ValueError where K is not a multiple of 32.
    """
    x = np.ascontiguousarray(x, dtype=np.float32)
    if x.ndim == 0 or x.shape[-1] % BLOCK:
        raise ValueError(f"last axis: found {x.shape[-1:]}, wanted a multiple of {BLOCK}")
    blocks = x.reshape(*x.shape[:-1], x.shape[-1] // BLOCK, BLOCK)
    # As integers, magnitudes order like the floats and every NaN lies above infinity: this maximum cannot lose a NaN.
    amax = (blocks.view(np.uint32) & np.uint32(0x7FFFFFFF)).max(axis=-1, initial=0)
    special = amax >= _INFINITY_BITS
    scales = block_exponent(amax.view(np.float32))
    # 2^(127 - code) as float32; finite codes reach 247, so the factor is always a normal number.
    factor = ((np.uint32(254) - np.where(special, 127, scales).astype(np.uint32)) << np.uint32(23)).view(np.float32)
    elements = e4m3.encode(np.where(special[..., None], np.float32(0), blocks) * factor[..., None])
    elements[amax == 0] = 0
    elements[special] = e4m3.NAN
    return elements.reshape(x.shape), scales


def decode(elements: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.float32]:
    """elements uint8 [..., K] and scales uint8 [..., K / 32] to float32 [..., K], exact but for overflow (above)."""
    if elements.shape != (*scales.shape[:-1], scales.shape[-1] * BLOCK):
        raise ValueError(f"scales: found shape {scales.shape}, wanted one per {BLOCK} of elements {elements.shape}")
    with np.errstate(over="ignore"):
        blocks = e4m3.decode(elements).reshape(*scales.shape, BLOCK) * e8m0.decode(scales)[..., None]
    return blocks.reshape(elements.shape)
