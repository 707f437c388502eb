"""OCP FP8 E4M3 ("fn"): 1 sign, 4 exponent (bias 7), 3 mantissa bits; largest 448, no infinity, NaN is S.1111.111.

Not the FNUZ format of MI300 (largest 240, NaN 0x80).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX = 448.0
NAN = 0x7F

_SMALLEST_NORMAL = np.float32(2.0**-6)
# One unit in the last place of a float32 in [2^14, 2^15) is 2^-9, the spacing of e4m3 subnormals: adding 2^14 rounds
# to that spacing, to nearest even, and leaves the subnormal's mantissa in the low bits.
_SUBNORMAL_MAGIC = np.float32(2.0**14)


def _table() -> NDArray[np.float32]:
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    magnitude = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    magnitude[(codes & 0x7F) == NAN] = np.nan
    return np.where(codes & 0x80, -magnitude, magnitude).astype(np.float32)


VALUES = _table()
"""float32 [256]: the value of every byte."""


def decode(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """e4m3 bytes, any shape, to float32 (exact)."""
    return VALUES[codes]


def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """float32, any shape, to e4m3 bytes: nearest even, magnitudes above 448 (infinity too) saturate to 448, sign kept
    for zeros; NaN becomes 0x7F or 0xFF by its sign."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    bits = values.view(np.uint32)
    sign = ((bits >> np.uint32(24)) & np.uint32(0x80)).astype(np.uint8)
    magnitude = np.minimum((bits & np.uint32(0x7FFFFFFF)).view(np.float32), np.float32(MAX))
    nan = np.isnan(values)
    magnitude = np.where(nan, np.float32(0), magnitude)
    whole = magnitude.view(np.uint32)
    # Nearest even at 20 dropped bits, then the exponent bias changes from 127 to 7.
    normal = ((whole + np.uint32(0x7FFFF) + ((whole >> np.uint32(20)) & np.uint32(1))) >> np.uint32(20)) - np.uint32(
        (127 - 7) << 3
    )
    subnormal = (magnitude + _SUBNORMAL_MAGIC).view(np.uint32) - _SUBNORMAL_MAGIC.view(np.uint32)
    code = np.where(magnitude < _SMALLEST_NORMAL, subnormal, normal).astype(np.uint8)
    return np.where(nan, np.uint8(NAN), code) | sign
