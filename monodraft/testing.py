"""Small drafters with random weights, for tests and benchmarks: a config, its weights, and a folder in released layout.

The weights are scaled so that activations and scores stay of order 1 through any number of layers; they draft nothing
sensible.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from monodraft.checkpoint.config import Activation, DraftConfig, Family, MarkovKind, Norm, Rotary, SwigluOai
from monodraft.checkpoint.dialects import gemma4, minimax, qwen3
from monodraft.checkpoint.layout import LINEARS, tensor_specs
from monodraft.checkpoint.loading import assemble
from monodraft.checkpoint.reading import CONFIG
from monodraft.checkpoint.saving import named_tensors, save_drafter
from monodraft.checkpoint.stored import SINGLE
from monodraft.checkpoint.weights import DraftWeights
from monodraft.formats import mxfp8_torch

_ARCHITECTURES = {
    Family.MINIMAX_M31: minimax.ARCHITECTURE,
    Family.QWEN3: qwen3.ARCHITECTURE,
    Family.MINICPM5: qwen3.ARCHITECTURE,
    Family.GEMMA4: gemma4.ARCHITECTURE,
}

_GEMMA4 = {
    "rotary": Rotary.PROPORTIONAL,
    "attention_scale": 1.0,
    "logit_softcap": 30.0,
    "value_norm": True,
    "shared_kv_projection": True,
    "sandwich_norms": True,
    "layer_scalars": True,
}


def _rotary_dim(family: Family, head_dim: int) -> int:
    return {Family.MINIMAX_M31: head_dim // 2, Family.GEMMA4: head_dim // 4}.get(family, head_dim)


def random_config(family: Family | str = Family.MINIMAX_M31, **overrides: Any) -> DraftConfig:
    """A small drafter of the family: hidden 256, 2 layers, 8 heads (4 K/V) of 32, FFN 512, vocabulary 512, block 7,
    Markov rank 64, features of 3 target layers. `overrides` replace fields of DraftConfig; what follows from an
    overridden field (rotary_dim from head_dim, windows from num_layers, ...) follows, unless it is given too.
    """
    family = Family(family)
    minimax_like = family is Family.MINIMAX_M31
    sizes = {"hidden_size": 256, "num_layers": 2, "head_dim": 32, "vocab_size": 512} | overrides
    facts: dict[str, Any] = {
        "family": family,
        "architecture": _ARCHITECTURES[family],
        "num_heads": 8,
        "num_kv_heads": 4,
        "ffn_size": 512,
        "block_size": 7,
        "mask_token_id": sizes["vocab_size"] - 1,
        "target_layer_ids": (0, 2, 3),
        "rms_norm_eps": 1e-6,
        "norm": Norm.GEMMA if minimax_like else Norm.RMS,
        "activation": Activation.SWIGLU_OAI if minimax_like else Activation.SILU,
        "swiglu": SwigluOai() if minimax_like else None,
        "rope_theta": 1e6,
        "rotary_dim": _rotary_dim(family, sizes["head_dim"]),
        "max_positions": 4096,
        "windows": (64 if minimax_like else None,) * sizes["num_layers"],
        "markov": MarkovKind.VANILLA,
        "markov_rank": 64,
        "has_confidence": True,
        "confidence_with_markov": True,
        "mxfp8_linears": minimax_like,
        "ships_embeddings": family in (Family.QWEN3, Family.GEMMA4),
        "num_target_layers": None if minimax_like else 5,
    }
    if family is Family.GEMMA4:
        facts |= {"activation": Activation.GELU_TANH, "embed_scale": sizes["hidden_size"] ** 0.5, **_GEMMA4}
    return DraftConfig(**(facts | sizes))


def nvidia_m3_config(**overrides: Any) -> DraftConfig:
    """A small drafter as nvidia/MiniMax-M3-DSpark is one: a Qwen3 layer, block 8, a window in every layer (64), groups
    of 2 query heads. `overrides` as in `random_config`."""
    layers = overrides.get("num_layers", 2)
    facts = {"block_size": 8, "num_heads": 16, "num_kv_heads": 8, "windows": (64,) * layers}
    return random_config(Family.QWEN3, **(facts | overrides))


def random_weights(
    config: DraftConfig, seed: int = 0, mxfp8: bool | None = None, dtype: torch.dtype = torch.bfloat16
) -> DraftWeights:
    """Weights for `config`, the same for the same seed. All families get an embedding and an LM head (as `load_drafter`
    returns them). `mxfp8`: whether the seven linears are Mxfp8Matrix; None is what the config says. `dtype` of all
    other tensors: bfloat16, or float32 with all its bits in use.
    """
    generator = torch.Generator().manual_seed(seed)
    quantised = config.mxfp8_linears if mxfp8 is None else mxfp8
    tensors: dict[str, torch.Tensor] = {}
    for spec in tensor_specs(replace(config, mxfp8_linears=False)):
        value = torch.randn(spec.shape, generator=generator)
        role = spec.role.split(".")[-1]
        if role.endswith("norm"):
            value = 0.1 * value + (0.0 if config.norm is Norm.GEMMA else 1.0)
            if role in ("q_norm", "k_norm") and config.norm is Norm.RMS:
                value = value * (config.head_dim**-0.5 / config.score_scale) ** 0.5
        elif role == "layer_scalar":
            value = 1.0 + 0.1 * value
        elif role in ("embed", "markov_w1"):
            value = value / config.embed_scale if role == "embed" else value
        elif len(spec.shape) == 2:
            value = value * spec.shape[1] ** -0.5
        else:
            value = 0.1 * value
        if quantised and role in LINEARS:
            tensors[spec.role], tensors[f"{spec.role}.scales"] = mxfp8_torch.encode(value.bfloat16())
        else:
            tensors[spec.role] = value.to(dtype)
    return assemble(config, tensors)


def write_checkpoint(folder: str | Path, config: DraftConfig, weights: DraftWeights, sharded: bool = False) -> None:
    """A folder as the family's vendor releases it: `config.json` and `model.safetensors`, or (`sharded`) several files
    with an index. Embedding and LM head are in it where `config.ships_embeddings`; else `write_target` makes a folder
    to take them from."""
    total = sum(t.nbytes for t in (weights.fc, weights.markov_w1, weights.markov_w2))
    save_drafter(folder, config, weights, max_shard_size=total if sharded else None)


def write_modelopt_checkpoint(folder: str | Path, config: DraftConfig, weights: DraftWeights) -> None:
    """A folder as ModelOpt exports it (nvidia/MiniMax-M3-DSpark): block facts and window under `dflash_config`, the
    embedding in bf16 and everything else in the dtype of `weights`, no LM head: `write_target` makes a folder for it.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = named_tensors(config, replace(weights, embed=weights.embed.bfloat16()))
    del tensors["lm_head.weight"]
    save_file(tensors, folder / SINGLE, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(qwen3.write_modelopt(config), indent=2) + "\n")


def write_target(folder: str | Path, config: DraftConfig, weights: DraftWeights, tied: bool = False) -> None:
    """A target's folder with nothing but `config.json`, embedding and LM head (only the former if `tied`)."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    facts = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.num_target_layers or config.target_layer_ids[-1] + 2,
        "tie_word_embeddings": tied,
    }
    tensors = {"model.embed_tokens.weight": weights.embed.clone()}
    if not tied:
        tensors["lm_head.weight"] = weights.lm_head.clone()
    save_file(tensors, folder / SINGLE, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(facts, indent=2) + "\n")
