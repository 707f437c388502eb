"""Random numbers that depend on (seed, position, id) alone: Philox4x32-10 and Gumbel noise, in f32.

The same integers as `monodraft.reference.sampling`; the noise agrees to about 2^-22 absolute (the reference evaluates
the logarithms in float64). Philox: Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*, SC 2011.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flydsl.expr as fx

from monodraft.device import flydsl_names as fly

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
LN_2 = 0.6931471805599453
ROUNDS = 10


def philox4x32(counter: Sequence[Any], key: Sequence[Any]) -> list[Any]:
    """Four Int32 words from four of counter and two of key (bits count, not signs)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _product(MULTIPLIERS[0], c0)
        high1, low1 = _product(MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + _signed(WEYL[0]), k1 + _signed(WEYL[1])
    return [c0, c1, c2, c3]


def gumbel(word: Any) -> Any:
    """Float32 -log(-log(u)) with u = (word + 0.5) 2^-32, word an Int32 taken as unsigned."""
    upper = word < 0  # u >= 1/2
    # Of two complements the smaller: u itself, or 1 - u; the conversion rounds to 24 bits.
    small = upper.select(word ^ -1, word)
    part = (small.to(fx.Float32) + 0.5) * fx.Float32(2.0**-32)
    w = fx.Float32(1.0) - part
    # log1p(-part) = log(w) * part / (1 - w) makes up for the rounding of w; below 2^-25 w is 1.
    rest = fx.Float32(1.0) - w
    tiny = rest == 0.0
    near = tiny.select(part, -hw_log(w) * part / tiny.select(fx.Float32(1.0), rest))
    exponential = upper.select(near, -hw_log(part))
    return -hw_log(exponential)


def hw_log(x: Any) -> Any:
    """Natural logarithm of a normal Float32 by `v_log_f32`."""
    return fly.intrinsic(fx.Float32, "llvm.amdgcn.log.f32", x) * fx.Float32(LN_2)


def _product(a: int, b: Any) -> tuple[Any, Any]:
    """High and low words of a 32 x 32 bit product of unsigned numbers."""
    wide = (fx.Int64(b) & 0xFFFFFFFF) * fx.Int64(a)
    return fx.Int32(wide >> 32), fx.Int32(wide)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word
