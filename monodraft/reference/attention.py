"""Non-causal attention of one request's block over its context and the block itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from monodraft.reference.numerics import Numerics


@dataclass(frozen=True)
class Keys:
    """Keys and values [n, kv heads, D] in `store` of the consecutive positions from `start`."""

    start: int
    keys: torch.Tensor
    values: torch.Tensor


def visible(queries: torch.Tensor, keys: torch.Tensor, window: int | None) -> torch.Tensor:
    """bool [g, n]: query row sees key, |q - key| < window both ways (window None: all). Positions int64 [g], [n]."""
    distance = (queries[:, None] - keys[None, :]).abs()
    return torch.ones_like(distance, dtype=torch.bool) if window is None else distance < window


def attend(
    numerics: Numerics, q: torch.Tensor, context: Keys, block: Keys, window: int | None, scale: float
) -> torch.Tensor:
    """q [g, heads, D] in `store` at the block's positions to [g, heads * D] in `store`.

    Query head h reads KV head h // (heads / kv heads). In float32: score = dot * scale (dot exact and rounded once,
    then the product rounded); p = exp(score - max) over the visible keys; l = sum p, exact and rounded once;
    P = bf16(p), unnormalised; o = sum P v, exact and rounded once; result = bf16(o / l). Invisible keys contribute
    nothing.
    """
    g, heads, size = q.shape
    keys, values = torch.cat([context.keys, block.keys]), torch.cat([context.values, block.values])
    kv_heads = keys.shape[1]
    steps = torch.arange(g, device=q.device)
    context_at = context.start + torch.arange(len(context.keys), device=q.device)
    seen = visible(block.start + steps, torch.cat([context_at, block.start + steps]), window)
    # [kv heads, heads per kv head * g, D]
    grouped = q.view(g, kv_heads, -1, size).permute(1, 2, 0, 3).reshape(kv_heads, -1, size)
    scores = numerics.matmul(grouped, keys.transpose(0, 1)) * scale
    hidden = ~seen.repeat(heads // kv_heads, 1)
    scores = scores.masked_fill(hidden, -torch.inf)
    p = numerics.map(torch.exp, scores - scores.amax(-1, keepdim=True))
    weighted = numerics.matmul(numerics.stored(p), values.permute(1, 2, 0))
    out = numerics.stored(weighted / numerics.sum(p)[..., None])
    return out.view(kv_heads, -1, g, size).permute(2, 0, 1, 3).reshape(g, heads * size)
