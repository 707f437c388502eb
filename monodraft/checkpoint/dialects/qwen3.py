"""`Qwen3DSparkModel`, in three packagings of one arithmetic: DeepSpec's (Qwen3-4B/8B/14B), ModelOpt's
(nvidia/MiniMax-M3-DSpark: block facts and window under `dflash_config`, float32 weights) and MiniCPM5's
(`draft_vocab_size` equal to `vocab_size`, RoPE base only in `rope_parameters`, no embeddings shipped).

Source: deepseek-ai/DeepSpec `deepspec/modeling/dspark/qwen3/`; for the others the notes in docs/checkpoint.md.
"""

from __future__ import annotations

from typing import Any

from monodraft.checkpoint.config import Activation, DraftConfig, Family, MarkovKind, Norm
from monodraft.checkpoint.fields import (
    ABSENT,
    LONGEST_BLOCK,
    MOST_LAYERS,
    Check,
    Field,
    Reader,
    at_most,
    boolean,
    layer_ids,
    one_of,
    optional,
    positive_float,
    positive_int,
    rope_base,
    rope_paths,
    token_id,
)
from monodraft.checkpoint.quantization import read_mxfp8, write_mxfp8
from monodraft.checkpoint.windows import read_windows

ARCHITECTURE = "Qwen3DSparkModel"


def either(name: str) -> tuple[str, str]:
    """A field of the drafter at the top or under `dflash_config`."""
    return name, f"dflash_config.{name}"


HEAD_FIELDS = (
    Field("block_size", either("block_size"), at_most(LONGEST_BLOCK)),
    Field("mask_token_id", either("mask_token_id"), token_id),
    Field("target_layer_ids", either("target_layer_ids"), layer_ids),
    Field("num_target_layers", either("num_target_layers"), optional(positive_int), default=None),
    Field("markov", either("markov_head_type"), one_of(*(str(kind) for kind in MarkovKind))),
    Field("markov_rank", either("markov_rank"), positive_int),
    Field(
        "has_confidence",
        (*either("enable_confidence_head"), "dflash_config.use_confidence_head"),
        boolean,
    ),
)
"""What DSpark adds to a backbone; shared with the Gemma4 dialect."""

FIELDS = (
    Field("hidden_size", ("hidden_size",), positive_int),
    Field("num_layers", ("num_hidden_layers",), at_most(MOST_LAYERS)),
    Field("num_heads", ("num_attention_heads",), positive_int),
    Field("num_kv_heads", ("num_key_value_heads",), positive_int),
    Field("head_dim", ("head_dim",), positive_int),
    Field("ffn_size", ("intermediate_size",), positive_int),
    Field("vocab_size", ("vocab_size",), positive_int),
    Field("hidden_act", ("hidden_act",), one_of("silu"), default="silu"),
    Field("gemma_norm", ("use_gemma_norm",), one_of(False), default=False),
    Field("rms_norm_eps", ("rms_norm_eps",), positive_float),
    Field("rope_theta", rope_paths("rope_theta"), rope_base),
    Field("partial", rope_paths("partial_rotary_factor"), one_of(1, 1.0), default=1.0),
    Field("max_positions", ("max_position_embeddings",), positive_int),
    *HEAD_FIELDS,
)

CHECKS = (
    Check(
        ("num_heads", "num_kv_heads"),
        "num_attention_heads",
        lambda q, kv: q % kv == 0,
        "a multiple of num_key_value_heads",
    ),
    Check(("mask_token_id", "vocab_size"), "mask_token_id", lambda t, v: t < v, "an id below vocab_size"),
    Check(("head_dim",), "head_dim", lambda d: d % 2 == 0, "an even number"),
    Check(
        ("target_layer_ids", "num_target_layers"),
        "target_layer_ids",
        lambda ids, layers: layers is None or ids[-1] < layers,
        "layers below num_target_layers",
    ),
)


def read_confidence_with_markov(reader: Reader, has_confidence: bool) -> bool:
    """Whether the confidence head sees the Markov embedding.

    ModelOpt's exporter writes `dflash_config.use_confidence_head` alone: its head always sees it (the tensor audit
    checks the width).
    """
    if not has_confidence:
        return False
    modelopt = reader.at("dflash_config.use_confidence_head") is not ABSENT
    default = True if modelopt else ABSENT
    value = reader.read(Field("", either("confidence_head_with_markov"), boolean, default=default))
    return value is True


def read(reader: Reader) -> DraftConfig:
    """DraftConfig from a config of this dialect; raises ConfigError with all faults."""
    values = reader.read_all(FIELDS)
    with_markov = read_confidence_with_markov(reader, values.get("has_confidence", False))
    windows = read_windows(reader, values.get("num_layers"))
    mxfp8 = read_mxfp8(reader, values)
    reader.check_all(values, CHECKS)
    reader.finish()
    standalone = reader.at("draft_vocab_size") not in (ABSENT, None)
    for name in ("hidden_act", "gemma_norm", "partial"):
        del values[name]
    return DraftConfig(
        family=Family.MINICPM5 if standalone else Family.QWEN3,
        architecture=ARCHITECTURE,
        norm=Norm.RMS,
        activation=Activation.SILU,
        swiglu=None,
        rotary_dim=values["head_dim"],
        windows=windows,
        mxfp8_linears=mxfp8,
        ships_embeddings=not standalone,
        markov=MarkovKind(values.pop("markov")),
        confidence_with_markov=with_markov,
        **values,
    )


def write_head(config: DraftConfig) -> dict[str, Any]:
    """What DSpark adds to a backbone's config, in DeepSpec's words."""
    facts: dict[str, Any] = {
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": list(config.target_layer_ids),
        "markov_rank": config.markov_rank,
        "markov_head_type": str(config.markov),
        "enable_confidence_head": config.has_confidence,
        "num_anchors": 512,
    }
    if config.num_target_layers is not None:
        facts["num_target_layers"] = config.num_target_layers
    if config.has_confidence:
        facts["confidence_head_with_markov"] = config.confidence_with_markov
    return facts


def write_backbone(config: DraftConfig) -> dict[str, Any]:
    """What all packagings say about the layers, in transformers' words."""
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_positions,
        "layer_types": ["full_attention" if window is None else "sliding_attention" for window in config.windows],
        "sliding_window": widest(config),
        "tie_word_embeddings": False,
    }


def widest(config: DraftConfig) -> int | None:
    """The window of the layers that slide, None where none does."""
    return next((window for window in config.windows if window is not None), None)


def write(config: DraftConfig) -> dict[str, Any]:
    """The config as DeepSpec writes it (as MiniCPM5's vendor does for that family), for `json.dump`."""
    facts: dict[str, Any] = {
        **write_backbone(config),
        "use_sliding_window": widest(config) is not None,
        "torch_dtype": "bfloat16",
        **write_head(config),
        **write_mxfp8(config),
    }
    if config.family is Family.MINICPM5:
        facts["rope_parameters"] = {"rope_theta": config.rope_theta, "rope_type": "default"}
        facts |= {"draft_vocab_size": config.vocab_size, "sample_from_anchor": True}
    else:
        facts["rope_theta"] = config.rope_theta
    return facts


def write_modelopt(config: DraftConfig) -> dict[str, Any]:
    """The config as ModelOpt exports it (nvidia/MiniMax-M3-DSpark), for `json.dump`; its confidence head, where there
    is one, sees the Markov embedding."""
    window = widest(config)
    exported: dict[str, Any] = {
        "block_size": config.block_size,
        "causal": False,
        "markov_head_type": str(config.markov),
        "markov_rank": config.markov_rank,
        "mask_token_id": config.mask_token_id,
        "num_target_layers": config.num_target_layers,
        "projector_type": "dspark",
        "target_layer_ids": list(config.target_layer_ids),
        "use_confidence_head": config.has_confidence,
        "use_swa": window is not None,
    }
    if window is not None:
        exported["swa_window_size"] = window
    return {
        **write_backbone(config),
        "dflash_config": exported,
        "rope_theta": config.rope_theta,
        "torch_dtype": "float32",
        **write_mxfp8(config),
    }
