"""The FFN's gate: SiLU, SwiGLU-OAI (spec 5.4), gelu_tanh. float32 from the bf16 linears, one rounding at the end."""

from __future__ import annotations

import math

import torch

from monodraft.checkpoint.config import Activation, DraftConfig
from monodraft.reference.numerics import Numerics


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), in the type of x."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def gated(numerics: Numerics, config: DraftConfig, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """gate, up [M, F] in `store` to [M, F] in `store`.

    SILU: (g * sigmoid(g)) * u. SWIGLU_OAI: g = min(g, limit); (g * sigmoid(alpha * g)) * (clamp(u, -limit, limit)
    + beta). GELU_TANH: gelu(g) * u. Each float32 operation is rounded; sigmoid and gelu are single operations. NaN
    stays NaN through the clamps.
    """
    g, u = numerics.widened(gate), numerics.widened(up)
    if config.activation is Activation.GELU_TANH:
        return numerics.stored(numerics.map(_gelu_tanh, g) * u)
    if config.activation is Activation.SILU:
        return numerics.stored(g * numerics.map(torch.sigmoid, g) * u)
    swiglu = config.swiglu
    assert swiglu is not None, "DraftConfig with SWIGLU_OAI has swiglu"
    g = g.clamp(max=swiglu.limit)
    activated = g * numerics.map(torch.sigmoid, g * swiglu.alpha)
    return numerics.stored(activated * (u.clamp(-swiglu.limit, swiglu.limit) + swiglu.beta))
