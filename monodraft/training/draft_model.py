"""The drafter as a differentiable module, for training only: many anchors of a sequence at once.

It computes what `monodraft.reference` computes (a test compares the two), in the form that training wants: the
context K/V of a whole sequence, and for each anchor a block of query rows that sees the context before its anchor
(within the window) and its own block, both ways, and no other block.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu

from monodraft.checkpoint.config import Activation, DraftConfig, MarkovKind, Norm


class HeadNorm(nn.Module):
    """RMSNorm over the last dimension: x_hat * w, or Gemma's x_hat * (1 + w) with w starting at 0."""

    def __init__(self, size: int, eps: float, kind: Norm) -> None:
        super().__init__()
        self.eps, self.offset = eps, 1.0 if kind is Norm.GEMMA else 0.0
        self.weight = nn.Parameter(torch.full((size,), 1.0 - self.offset))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (self.offset + self.weight)


def rotate(x: torch.Tensor, positions: torch.Tensor, theta: float, rotary: int) -> torch.Tensor:
    """RoPE on the first `rotary` dims of x [..., rows, heads, D], NeoX halves; positions [..., rows]."""
    half = rotary // 2
    frequency = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = (positions[..., None].float() * frequency)[..., None, :]
    cos, sin = angle.cos(), angle.sin()
    a, b, rest = x[..., :half], x[..., half:rotary], x[..., rotary:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


@dataclass(frozen=True)
class Blocks:
    """Anchors of a batch: `anchors` [B, A] positions; `positions` [B, A, g]; `mask` [B, 1, A g, T + A g] bool."""

    anchors: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor


def make_blocks(anchors: torch.Tensor, length: int, block: int, window: int | None) -> Blocks:
    """Positions and the attention mask: context keys p < anchor with q - p < window, own block only."""
    batch, count = anchors.shape
    offsets = torch.arange(block, device=anchors.device)
    positions = anchors[..., None] + offsets
    query = positions.flatten(1)
    start = anchors.repeat_interleave(block, 1)
    keys = torch.arange(length, device=anchors.device)
    context = keys < start[..., None]
    if window is not None:
        context &= query[..., None] - keys < window
    owner = torch.arange(count, device=anchors.device).repeat_interleave(block)
    own = (owner[:, None] == owner[None, :]).expand(batch, -1, -1)
    return Blocks(anchors, positions, torch.cat([context, own], -1)[:, None])


class DraftLayer(nn.Module):
    """One decoder layer over query rows, with context K/V from the shared context rows."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.config = config
        hidden, ffn = config.hidden_size, config.ffn_size
        self.input_norm = HeadNorm(hidden, config.rms_norm_eps, config.norm)
        self.post_norm = HeadNorm(hidden, config.rms_norm_eps, config.norm)
        self.q_norm = HeadNorm(config.head_dim, config.rms_norm_eps, config.norm)
        self.k_norm = HeadNorm(config.head_dim, config.rms_norm_eps, config.norm)
        self.q = nn.Linear(hidden, config.q_size, bias=False)
        self.k = nn.Linear(hidden, config.kv_size, bias=False)
        self.v = nn.Linear(hidden, config.kv_size, bias=False)
        self.o = nn.Linear(config.q_size, hidden, bias=False)
        self.gate = nn.Linear(hidden, ffn, bias=False)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def keys_values(self, x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Normed, rotated keys and plain values of rows x [B, R, H]: [B, R, kv heads, D] each."""
        shape = (*x.shape[:2], self.config.num_kv_heads, self.config.head_dim)
        k = rotate(self.k_norm(self.k(x).view(shape)), positions, self.config.rope_theta, self.config.rotary_dim)
        return k.to(x.dtype), self.v(x).view(shape)

    def forward(self, x: torch.Tensor, context: torch.Tensor, blocks: Blocks) -> torch.Tensor:
        config, batch = self.config, x.shape[0]
        dtype = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
        positions = blocks.positions.flatten(1)
        h = self.input_norm(x).to(dtype)
        q = self.q(h).view(batch, -1, config.num_heads, config.head_dim)
        q = rotate(self.q_norm(q), positions, config.rope_theta, config.rotary_dim).to(dtype)
        places = torch.arange(context.shape[1], device=x.device).expand(batch, -1)
        k_context, v_context = self.keys_values(context.to(dtype), places)
        k_block, v_block = self.keys_values(h, positions)
        k = torch.cat([k_context, k_block], 1).to(dtype).transpose(1, 2)
        v = torch.cat([v_context, v_block], 1).to(dtype).transpose(1, 2)
        groups = config.num_heads // config.num_kv_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        attended = scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=blocks.mask)
        x = x + self.o(attended.transpose(1, 2).flatten(2))
        return x + self.feed_forward(self.post_norm(x).to(dtype))

    def feed_forward(self, h: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate(h).float(), self.up(h).float()
        if self.config.activation is Activation.SWIGLU_OAI:
            s = self.config.swiglu
            assert s is not None
            gate = gate.clamp(max=s.limit)
            hidden = gate * torch.sigmoid(s.alpha * gate) * (up.clamp(-s.limit, s.limit) + s.beta)
        else:
            hidden = silu(gate) * up
        return self.down(hidden.to(h.dtype))


class DraftModel(nn.Module):
    """The whole drafter with the target's embedding [V, H] frozen and shared as embedding and LM head."""

    def __init__(self, config: DraftConfig, embedding: torch.Tensor) -> None:
        super().__init__()
        if config.markov is not MarkovKind.VANILLA:
            raise NotImplementedError(f"training of the {config.markov} Markov head")
        self.config = config
        self.embedding: torch.Tensor
        self.register_buffer("embedding", embedding.detach().clone(), persistent=False)
        hidden, rank = config.hidden_size, config.markov_rank
        self.fc = nn.Linear(config.feature_size, hidden, bias=False)
        self.hidden_norm = HeadNorm(hidden, config.rms_norm_eps, config.norm)
        self.layers = nn.ModuleList(DraftLayer(config) for _ in range(config.num_layers))
        self.final_norm = HeadNorm(hidden, config.rms_norm_eps, config.norm)
        self.markov_w1 = nn.Embedding(config.vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, config.vocab_size, bias=False)
        self.confidence = nn.Linear(hidden + rank, 1)
        for parameter in self.parameters():
            if parameter.ndim >= 2:
                nn.init.normal_(parameter, std=0.02)
        nn.init.normal_(self.markov_w1.weight, std=1.0 / rank**0.5)
        nn.init.zeros_(self.markov_w2.weight)

    def hidden(self, features: torch.Tensor, anchor_tokens: torch.Tensor, blocks: Blocks) -> torch.Tensor:
        """Final normed rows [B, A, g, H] for features [B, T, m H] and anchor tokens [B, A]."""
        batch, count = anchor_tokens.shape
        context = self.hidden_norm(self.fc(features))
        ids = anchor_tokens.new_full((batch, count, self.config.block_size), self.config.mask_token_id)
        ids[..., 0] = anchor_tokens
        x = self.embedding[ids.flatten(1)].float()
        for layer in self.layers:
            x = layer(x, context, blocks)
        return self.final_norm(x).view(batch, count, self.config.block_size, -1)

    def base_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """LM head, shared with the target: [..., V]."""
        return hidden.to(self.embedding.dtype) @ self.embedding.T

    def bias_logits(self, previous: torch.Tensor) -> torch.Tensor:
        """Markov bias of the previous tokens [...]: [..., V]."""
        return self.markov_w2(self.markov_w1(previous))

    def confidence_logit(self, hidden: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """Logit of P(accepted | all earlier accepted): [...]."""
        return self.confidence(torch.cat([hidden, self.markov_w1(previous)], -1))[..., 0]

    @torch.no_grad()
    def draft_greedy(self, hidden: torch.Tensor, anchor_tokens: torch.Tensor) -> torch.Tensor:
        """The serial Markov chain, greedy: int64 [B, A, g]."""
        base = self.base_logits(hidden).float()
        previous, tokens = anchor_tokens, []
        for slot in range(self.config.block_size):
            previous = (base[..., slot, :] + self.bias_logits(previous).float()).argmax(-1)
            tokens.append(previous)
        return torch.stack(tokens, -1)
