"""Tiny random Hugging Face models of several architectures, and drafters with random weights for them."""

from __future__ import annotations

from functools import cache

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from monodraft.checkpoint.config import DraftConfig, Family
from monodraft.reference import ReferenceDrafter
from monodraft.testing import random_config, random_weights

VOCAB = 97
HIDDEN = 32
LAYERS = (0, 1, 3)
"""Captured layers; 3 is the last of the tiny models."""

SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "initializer_range": 0.2,  # large, so that logits differ and near ties are rare
}
ARCHITECTURES = ("qwen3", "llama", "mistral-window", "gemma3-window")


@cache
def tiny_model(architecture: str = "qwen3", dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A random model of the architecture, the same every time; `-window` ones see 8 positions in some layers."""
    torch.manual_seed(5)
    models: dict[str, PreTrainedModel] = {
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES)),
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
        "mistral-window": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=8)),
        "gemma3-window": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, sliding_window=8)),
    }  # type: ignore[dict-item]
    model: PreTrainedModel = models[architecture]()  # type: ignore[operator]
    return model.to(dtype).eval()


def tiny_draft_config(family: Family = Family.MINIMAX_M31, **overrides: object) -> DraftConfig:
    """A drafter of block 4 that fits the tiny models."""
    sizes = {"hidden_size": HIDDEN, "vocab_size": VOCAB, "num_heads": 2, "num_kv_heads": 1, "head_dim": 32}
    more = {"ffn_size": 64, "block_size": 4, "markov_rank": 32, "target_layer_ids": LAYERS, "max_positions": 128}
    return random_config(family, **(sizes | more | overrides))


def tiny_drafter(numerics: str = "exact", family: Family = Family.MINIMAX_M31, **options: int) -> ReferenceDrafter:
    """A reference drafter with random weights: it drafts nothing sensible, with real state."""
    config = tiny_draft_config(family)
    return ReferenceDrafter(config, random_weights(config), numerics, **options)
