"""The two drafters that are trained for the shipped target."""

from __future__ import annotations

from typing import Any

from monodraft.checkpoint.config import Activation, DraftConfig, Family, MarkovKind, Norm, SwigluOai
from monodraft.training.target_model import TargetRecipe
from monodraft.training.vocabulary import MASK_ID


def minimax_m31_config(target: TargetRecipe) -> DraftConfig:
    """A small drafter of the M3.1 family: 5 layers, Gemma norms, SwiGLU-OAI, half-rotary RoPE, window, MXFP8."""
    return DraftConfig(
        family=Family.MINIMAX_M31,
        architecture="DSparkMiniMaxDraftModel",
        num_layers=5,
        ffn_size=1024,
        target_layer_ids=(0, 2, 4, 6, 7),
        norm=Norm.GEMMA,
        activation=Activation.SWIGLU_OAI,
        swiglu=SwigluOai(),
        rotary_dim=64,
        windows=(512,) * 5,
        markov_rank=128,
        mxfp8_linears=True,
        **common_fields(target),
    )


def qwen3_config(target: TargetRecipe) -> DraftConfig:
    """A smaller sibling of the DeepSpec Qwen3 family: 2 layers, plain norms, SiLU, full attention, bf16."""
    return DraftConfig(
        family=Family.QWEN3,
        architecture="Qwen3DSparkModel",
        num_layers=2,
        ffn_size=1024,
        target_layer_ids=(1, 3, 6),
        norm=Norm.RMS,
        activation=Activation.SILU,
        swiglu=None,
        rotary_dim=128,
        windows=(None,) * 2,
        markov_rank=64,
        mxfp8_linears=False,
        **common_fields(target),
    )


def common_fields(target: TargetRecipe) -> dict[str, Any]:
    """What follows from the target, and what both drafters share."""
    return {
        "hidden_size": target.hidden_size,
        "num_heads": 8,
        "num_kv_heads": 2,
        "head_dim": 128,
        "vocab_size": target.vocab_size,
        "block_size": 7,
        "mask_token_id": MASK_ID,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "max_positions": target.max_positions,
        "markov": MarkovKind.VANILLA,
        "has_confidence": True,
        "confidence_with_markov": True,
        "ships_embeddings": False,
    }
