"""The bf16 GEMV tile: 16 weight rows by 16 token columns, 32 values of K an instruction.

Operand layout of `v_mfma_f32_16x16x32_bf16` (both operands alike): lane l holds row l % 16, and with g = l // 16 the
values k = 8 g .. 8 g + 7 in 4 words. Of the result, lane l holds rows 4 g .. 4 g + 3 of column l % 16.
"""

from __future__ import annotations

from typing import Any

import flydsl.expr as fx

from monodraft.device import flydsl_names as fly
from monodraft.device.checks import refuse

UNIT = 32
"""Values along K that one instruction consumes."""


def mma_bf16(acc: Any, a: Any, b: Any) -> Any:
    """acc + A B of one 16x16x32 tile of bf16: `v_mfma_f32_16x16x32_bf16`, accumulated in f32.

    `acc`: Float32 Vector of 4; `a`, `b`: Int32 Vectors of 4 (bf16 pairs). The executor rounds once an instruction
    (docs/executor.md), hardware's own order is not documented.
    """
    for name, words in (("a", a), ("b", b)):
        if not isinstance(words, fx.Vector) or words.numel != 4:
            found = getattr(words, "numel", type(words).__name__)
            raise refuse("mma_bf16", name, found, "an Int32 Vector of 4 words")
    return fly.mfma_bf16_16x16x32(acc, a.bitcast(fx.BFloat16), b.bitcast(fx.BFloat16))
