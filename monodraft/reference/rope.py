"""Rotary position embedding in NeoX halves, partial where the config says so."""

from __future__ import annotations

import torch

from monodraft.checkpoint.config import DraftConfig, Rotary
from monodraft.reference.numerics import Numerics


class Rope:
    """RoPE of one drafter.

    inv_freq = 1 / theta ** (2 i / R) and angle = position * inv_freq by torch's float32 arithmetic, in every numerics:
    the model was trained with these angles. cos and sin of the float32 angle are evaluated in float64 and rounded to
    float32. A rotated pair is a * cos - b * sin, b * cos + a * sin: two rounded products and one rounded sum, no fma.
    Nothing here rounds to bf16: a key or query is rounded once, after norm and RoPE, on the query side and on the
    context side alike (engines that round the context key after its norm too differ by at most 1 bf16 ulp).
    """

    def __init__(self, config: DraftConfig, device: torch.device) -> None:
        rotary, head = config.rotary_dim, config.head_dim
        leading = config.rotary is Rotary.LEADING
        exponent = torch.arange(0, rotary, 2, dtype=torch.float32) / (rotary if leading else head)
        self.inv_freq = (1.0 / config.rope_theta**exponent).to(device)
        pairs = rotary // 2
        self._first = slice(0, pairs)
        self._second = slice(pairs, rotary) if leading else slice(head // 2, head // 2 + pairs)

    def tables(self, numerics: Numerics, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [rows, R / 2] in `work` for positions int64 [rows]."""
        angle = positions.to(torch.float32)[:, None] * self.inv_freq
        return numerics.map(torch.cos, angle), numerics.map(torch.sin, angle)

    def rotate(self, x: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """x [rows, heads, D] in `work`, rotated; dims that RoPE does not turn keep their bits."""
        cos, sin = tables[0][:, None], tables[1][:, None]
        a, b = x[..., self._first], x[..., self._second]
        y = x.clone()
        y[..., self._first] = a * cos - b * sin
        y[..., self._second] = b * cos + a * sin
        return y
