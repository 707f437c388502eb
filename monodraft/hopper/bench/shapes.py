"""Drafters that the device run checks and times: the released shapes with random weights, and small ones."""

from __future__ import annotations

import torch

from monodraft.checkpoint.config import Activation, DraftConfig, Family, MarkovKind, Norm, SwigluOai
from monodraft.checkpoint.weights import DraftWeights, LayerWeights

_SIZES = {
    "qwen3-8b": (Family.QWEN3, 4096, 32, 8, 12288, 151936),
    "qwen3-4b": (Family.QWEN3, 2560, 32, 8, 9728, 151936),
    "minicpm5-2b": (Family.MINICPM5, 2048, 16, 2, 6144, 130560),
    "m3.1": (Family.MINIMAX_M31, 6144, 64, 4, 12288, 200064),
}
NAMES = tuple(_SIZES)


def config_of(name: str) -> DraftConfig:
    """The released drafter's sizes (spec section 2)."""
    family, hidden, heads, kv_heads, ffn, vocab = _SIZES[name]
    minimax = family is Family.MINIMAX_M31
    return DraftConfig(
        family=family,
        architecture=name,
        hidden_size=hidden,
        num_layers=5,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=128,
        ffn_size=ffn,
        vocab_size=vocab,
        block_size=7,
        mask_token_id=vocab - 6,
        target_layer_ids=(1, 9, 17, 25, 33),
        rms_norm_eps=1e-6,
        norm=Norm.GEMMA if minimax else Norm.RMS,
        activation=Activation.SWIGLU_OAI if minimax else Activation.SILU,
        swiglu=SwigluOai() if minimax else None,
        rope_theta=1e7 if minimax else 1e6,
        rotary_dim=64 if minimax else 128,
        max_positions=131072 if minimax else 40960,
        windows=(4096 if minimax else None,) * 5,
        markov=MarkovKind.VANILLA,
        markov_rank=256,
        has_confidence=True,
        confidence_with_markov=True,
        mxfp8_linears=False,
        ships_embeddings=not minimax,
    )


def random_weights(config: DraftConfig, seed: int = 0, device: str = "cuda") -> DraftWeights:
    """bf16 weights drawn on the device: linears of variance 1 / K, norms near 1, Markov bias of deviation about 1."""
    generator = torch.Generator(device=device).manual_seed(seed)

    def matrix(n: int, k: int, scale: float = 1.0) -> torch.Tensor:
        out = torch.empty(n, k, dtype=torch.bfloat16, device=device)
        return out.normal_(0.0, scale * k**-0.5, generator=generator)

    def norm(size: int) -> torch.Tensor:
        mean = 0.0 if config.norm is Norm.GEMMA else 1.0
        return torch.empty(size, dtype=torch.bfloat16, device=device).normal_(mean, 0.1, generator=generator)

    h, f, r, v = config.hidden_size, config.ffn_size, config.markov_rank, config.vocab_size
    layers = tuple(
        LayerWeights(
            input_norm=norm(h),
            q=matrix(config.q_size, h),
            k=matrix(config.kv_size, h),
            v=matrix(config.kv_size, h),
            o=matrix(h, config.q_size),
            q_norm=norm(128),
            k_norm=norm(128),
            post_norm=norm(h),
            gate=matrix(f, h),
            up=matrix(f, h),
            down=matrix(h, f),
        )
        for _ in range(config.num_layers)
    )
    return DraftWeights(
        fc=matrix(h, config.feature_size),
        hidden_norm=norm(h),
        layers=layers,
        final_norm=norm(h),
        embed=matrix(v, h, h**0.5),
        lm_head=matrix(v, h, 2.0),
        markov_w1=matrix(v, r, r**0.5),
        markov_w2=matrix(v, r),
        confidence_weight=matrix(1, h + r),
        confidence_bias=torch.zeros(1, dtype=torch.bfloat16, device=device),
    )
