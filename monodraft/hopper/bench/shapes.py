"""Drafters that the device run checks and times: the released shapes with random weights, and small ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from monodraft.checkpoint.config import Activation, DraftConfig, Family, MarkovKind, Norm, Rotary, SwigluOai
from monodraft.checkpoint.weights import DraftWeights, LayerWeights

_SIZES = {
    "qwen3-8b": (Family.QWEN3, 4096, 32, 8, 12288, 151936),
    "qwen3-4b": (Family.QWEN3, 2560, 32, 8, 9728, 151936),
    "minicpm5-2b": (Family.MINICPM5, 2048, 16, 2, 6144, 130560),
    "m3.1": (Family.MINIMAX_M31, 6144, 64, 4, 12288, 200064),
    "gemma4-12b": (Family.GEMMA4, 3840, 16, 1, 15360, 262144),
}
NAMES = tuple(_SIZES)


def config_of(name: str) -> DraftConfig:
    """The released drafter's sizes (spec section 2)."""
    family, hidden, heads, kv_heads, ffn, vocab = _SIZES[name]
    minimax = family is Family.MINIMAX_M31
    config = DraftConfig(
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
    return replace(config, **_gemma4(hidden)) if family is Family.GEMMA4 else config


def _gemma4(hidden: int) -> dict[str, Any]:
    """What is otherwise in Gemma4's drafter (spec 2.2, its released config)."""
    return {
        "head_dim": 512,
        "activation": Activation.GELU_TANH,
        "rotary": Rotary.PROPORTIONAL,
        "rotary_dim": 128,
        "max_positions": 262144,
        "embed_scale": hidden**0.5,
        "attention_scale": 1.0,
        "logit_softcap": 30.0,
        "value_norm": True,
        "shared_kv_projection": True,
        "sandwich_norms": True,
        "layer_scalars": True,
    }


def random_weights(config: DraftConfig, seed: int = 0, device: str = "cuda") -> DraftWeights:
    """bf16 weights drawn on the device: linears of variance 1 / K, norms near 1, Markov bias of deviation about 1."""
    generator = torch.Generator(device=device).manual_seed(seed)

    def matrix(n: int, k: int, scale: float = 1.0) -> torch.Tensor:
        out = torch.empty(n, k, dtype=torch.bfloat16, device=device)
        return out.normal_(0.0, scale * k**-0.5, generator=generator)

    def norm(size: int) -> torch.Tensor:
        mean = 0.0 if config.norm is Norm.GEMMA else 1.0
        return torch.empty(size, dtype=torch.bfloat16, device=device).normal_(mean, 0.1, generator=generator)

    def head_norm() -> torch.Tensor:  # so that scores are of order 1, whatever they are multiplied by
        return norm(config.head_dim) * (config.head_dim**-0.5 / config.score_scale) ** 0.5

    h, f, r, v = config.hidden_size, config.ffn_size, config.markov_rank, config.vocab_size

    def layer() -> LayerWeights:
        made = LayerWeights(
            input_norm=norm(h),
            q=matrix(config.q_size, h),
            k=matrix(config.kv_size, h),
            v=matrix(config.kv_size, h),
            o=matrix(h, config.q_size),
            q_norm=head_norm(),
            k_norm=head_norm(),
            post_norm=norm(h),
            gate=matrix(f, h),
            up=matrix(f, h),
            down=matrix(h, f),
        )
        if config.shared_kv_projection:
            made = replace(made, v=made.k)
        if config.sandwich_norms:
            scalar = torch.full((1,), 0.9, dtype=torch.bfloat16, device=device)
            made = replace(made, attention_output_norm=norm(h), ffn_output_norm=norm(h), layer_scalar=scalar)
        return made

    layers = tuple(layer() for _ in range(config.num_layers))
    return DraftWeights(
        fc=matrix(h, config.feature_size),
        hidden_norm=norm(h),
        layers=layers,
        final_norm=norm(h),
        embed=matrix(v, h, h**0.5 / config.embed_scale),
        lm_head=matrix(v, h, 2.0),
        markov_w1=matrix(v, r, r**0.5),
        markov_w2=matrix(v, r),
        confidence_weight=matrix(1, h + r),
        confidence_bias=torch.zeros(1, dtype=torch.bfloat16, device=device),
    )
