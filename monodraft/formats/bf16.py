"""bfloat16 in NumPy, which has no such type: values travel as uint16."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def decode(words: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bf16 bit patterns, any shape, to float32 (exact)."""
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)


def encode(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """float32, any shape, to bf16 bit patterns: nearest even, overflow to infinity, NaN to a quiet NaN of its sign."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where((bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000), quiet, rounded).astype(np.uint16)


def is_finite(words: NDArray[np.uint16]) -> NDArray[np.bool_]:
    """False where a bf16 bit pattern is an infinity or a NaN."""
    return (words & np.uint16(0x7F80)) != np.uint16(0x7F80)
