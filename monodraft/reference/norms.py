"""RMSNorm and Gemma RMSNorm, and the residual stream's contract.

Contract (vLLM's kernel, spec 5.3): s = x + r is formed in float32; the stored residual is bf16(s); the norm reads the
*unrounded* s.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from monodraft.checkpoint.config import Norm
from monodraft.reference.numerics import Numerics


@dataclass(frozen=True)
class RmsNorm:
    """x * rstd * w over the last axis, or x * rstd * (1 + w) for Gemma; `weight` None leaves the factor out.

    In float32: the sum of squares is exact and rounded once, divided by n, plus eps, rstd its reciprocal root (each
    operation rounded); the result is (x * rstd) * factor, with 1 + w formed in float32. A weight shipped in float32 is
    rounded to bf16 first, as all weights but biases are. The result is not rounded: callers round where their contract
    says.
    """

    weight: torch.Tensor | None
    eps: float
    kind: Norm

    def __call__(self, numerics: Numerics, x: torch.Tensor) -> torch.Tensor:
        """x [..., n] in `work` (or `store`, widened) to [..., n] in `work`."""
        x = numerics.widened(x)
        rstd = numerics.rsqrt(numerics.sum_squares(x) / x.shape[-1] + self.eps)
        y = x * rstd[..., None]
        if self.weight is None:
            return y
        weight = numerics.widened(numerics.stored(self.weight))
        return y * (1.0 + weight if self.kind is Norm.GEMMA else weight)
