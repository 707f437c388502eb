"""The same draft step in PyTorch: eager and torch.compile, both captured into a CUDA graph by the caller.

Same inputs and result as the kernels' step without new context rows: block of 7 rows, 5 layers over cached context K/V,
final norm, LM head, serial Markov chain with argmax, confidence. bf16 weights (engines dequantise MXFP8 off gfx95x).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from monodraft.checkpoint.config import Activation, DraftConfig, Norm, Rotary
from monodraft.checkpoint.weights import DraftWeights


def draft_step(
    config: DraftConfig, weights: DraftWeights, context: int
) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """A function that drafts one block after `context` random K/V rows: (tokens [g], confidence [g])."""
    c, g, d, device = config, config.block_size, config.head_dim, weights.embed.device
    nq, nk = c.num_heads, c.num_kv_heads
    add = 1.0 if c.norm is Norm.GEMMA else 0.0
    eps = c.rms_norm_eps

    def factor(w: torch.Tensor) -> torch.Tensor:
        return (w.float() + add).to(torch.bfloat16)

    layers: list[dict[str, Any]] = []
    for layer in weights.layers:
        assert isinstance(layer.q, torch.Tensor)
        layers.append(
            {
                "qkv": torch.cat([layer.q, layer.k, *([] if c.shared_kv_projection else [layer.v])]),  # type: ignore[list-item]
                "o": layer.o,
                "gate_up": torch.cat([layer.gate, layer.up]),  # type: ignore[list-item]
                "down": layer.down,
                "n1": factor(layer.input_norm),
                "n2": factor(layer.post_norm),
                "qn": factor(layer.q_norm),
                "kn": factor(layer.k_norm),
                "on": factor(layer.attention_output_norm) if layer.attention_output_norm is not None else None,
                "dn": factor(layer.ffn_output_norm) if layer.ffn_output_norm is not None else None,
                "scalar": layer.layer_scalar,
                "k": torch.randn(1, nk, context + g, d, device=device, dtype=torch.bfloat16),
                "v": torch.randn(1, nk, context + g, d, device=device, dtype=torch.bfloat16),
            }
        )
    final, r = factor(weights.final_norm), c.rotary_dim
    leading = c.rotary is Rotary.LEADING
    inverse = c.rope_theta ** (-torch.arange(0, r, 2, device=device).float() / (r if leading else d))
    angle = torch.arange(context, context + g, device=device).float()[:, None] * inverse
    cos, sin = torch.cat([angle.cos()] * 2, -1).bfloat16(), torch.cat([angle.sin()] * 2, -1).bfloat16()
    ids = torch.tensor([11] + [c.mask_token_id] * (g - 1), device=device)
    assert weights.confidence_weight is not None
    assert weights.confidence_bias is not None
    p, bias = weights.confidence_weight, weights.confidence_bias

    def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), w, eps)

    def rope(x: torch.Tensor) -> torch.Tensor:
        if not leading:  # pairs of dims half a head apart
            a, b = x[..., : r // 2], x[..., d // 2 : d // 2 + r // 2]
            ca, sa = cos[..., : r // 2], sin[..., : r // 2]
            parts = [a * ca - b * sa, x[..., r // 2 : d // 2], b * ca + a * sa, x[..., d // 2 + r // 2 :]]
            return torch.cat(parts, -1)
        turned, rest = x[..., :r], x[..., r:]
        half = torch.cat([-turned[..., r // 2 :], turned[..., : r // 2]], -1)
        return torch.cat([turned * cos + half * sin, rest], -1)

    def gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        if c.activation is Activation.SILU:
            return F.silu(gate) * up
        if c.activation is Activation.GELU_TANH:
            return F.gelu(gate, approximate="tanh") * up
        s = c.swiglu
        assert s is not None
        gate, up = gate.clamp(max=s.limit), up.clamp(-s.limit, s.limit)
        return gate * torch.sigmoid(s.alpha * gate) * (up + s.beta)

    def joined(x: torch.Tensor, delta: torch.Tensor, w: torch.Tensor | None) -> torch.Tensor:
        return x + (delta if w is None else norm(delta, w))

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        x = F.embedding(ids, weights.embed)
        if c.embed_scale != 1.0:
            x = x * c.embed_scale
        for w in layers:
            heads = F.linear(norm(x, w["n1"]), w["qkv"]).view(g, -1, d).transpose(0, 1)
            q, k, v = heads[:nq], heads[nq : nq + nk], heads[-nk:]
            q, k = rope(norm(q, w["qn"])), rope(norm(k, w["kn"]))
            w["k"][0, :, context:] = k
            w["v"][0, :, context:] = F.rms_norm(v, (d,), None, eps) if c.value_norm else v
            a = F.scaled_dot_product_attention(q[None], w["k"], w["v"], enable_gqa=True, scale=c.score_scale)
            x = joined(x, F.linear(a[0].transpose(0, 1).reshape(g, nq * d), w["o"]), w["on"])
            gate, up = F.linear(norm(x, w["n2"]), w["gate_up"]).chunk(2, -1)
            x = joined(x, F.linear(gated(gate, up), w["down"]), w["dn"])
            if w["scalar"] is not None:
                x = x * w["scalar"]
        x = norm(x, final)
        base, previous, tokens, rows = F.linear(x, weights.lm_head), ids[:1], [], []
        if c.logit_softcap is not None:
            base = c.logit_softcap * torch.tanh(base / c.logit_softcap)
        for j in range(g):
            e = F.embedding(previous, weights.markov_w1)
            rows.append(e)
            previous = (base[j : j + 1].float() + F.linear(e, weights.markov_w2).float()).argmax(-1)
            tokens.append(previous)
        confidence = F.linear(torch.cat([x, torch.cat(rows)], -1), p, bias)[:, 0]
        return torch.cat(tokens), confidence

    return step
