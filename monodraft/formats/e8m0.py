"""OCP E8M0, the scale of an MX block: byte s means 2^(s - 127); 255 is NaN; there is no sign, zero or infinity.

Byte 0 is 2^-127, a float32 subnormal (0x00400000): a device that flushes float32 subnormals turns it into 0. Our
encoder never writes it (`mxfp8`), a checkpoint may.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NAN = 255


def _table() -> NDArray[np.float32]:
    bits = np.arange(256, dtype=np.uint32) << np.uint32(23)
    bits[0] = 0x00400000
    bits[NAN] = 0x7FC00000
    return bits.view(np.float32)


VALUES = _table()
"""float32 [256]: the value of every byte, exact."""


def decode(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Scale bytes, any shape, to float32 (exact; 255 is NaN)."""
    return VALUES[codes]
