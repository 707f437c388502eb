"""`Gemma4DSparkModel`: DeepSpec's drafter for Gemma4, whose layers are all full attention with global head sizes.

Source: deepseek-ai/DeepSpec `deepspec/modeling/dspark/gemma4/` over transformers' Gemma4 text layers: plain RMSNorm,
sandwich norms, unweighted norm on v, score scale 1, proportional RoPE, tanh-GELU, scaled embeddings, logit soft-cap.
"""

from __future__ import annotations

from typing import Any

from monodraft.checkpoint.config import Activation, DraftConfig, Family, MarkovKind, Norm, Rotary
from monodraft.checkpoint.dialects.qwen3 import CHECKS, HEAD_FIELDS, read_confidence_with_markov, write_head
from monodraft.checkpoint.fields import (
    MOST_LAYERS,
    Check,
    Field,
    Reader,
    at_most,
    boolean,
    fraction,
    one_of,
    optional,
    positive_float,
    positive_int,
    rope_base,
    rope_paths,
)
from monodraft.checkpoint.quantization import read_mxfp8, write_mxfp8

ARCHITECTURE = "Gemma4DSparkModel"

FIELDS = (
    Field("hidden_size", ("hidden_size",), positive_int),
    Field("num_layers", ("num_hidden_layers",), at_most(MOST_LAYERS)),
    Field("num_heads", ("num_attention_heads",), positive_int),
    Field("head_dim", ("global_head_dim",), positive_int),
    Field("ffn_size", ("intermediate_size",), positive_int),
    Field("vocab_size", ("vocab_size",), positive_int),
    Field("hidden_act", ("hidden_activation",), one_of("gelu_pytorch_tanh")),
    Field("rms_norm_eps", ("rms_norm_eps",), positive_float),
    Field("rope_theta", rope_paths("rope_theta", "full_attention"), rope_base),
    Field("partial", rope_paths("partial_rotary_factor", "full_attention"), fraction, default=1.0),
    Field("max_positions", ("max_position_embeddings",), positive_int),
    Field("logit_softcap", ("final_logit_softcapping",), optional(positive_float), default=None),
    Field("shared_kv_projection", ("attention_k_eq_v",), boolean),
    *HEAD_FIELDS,
)


def rotated_pairs(factor: float, head_dim: int) -> int:
    """Pairs of dims that transformers' proportional RoPE rotates."""
    return int(factor * head_dim // 2)


ROTATED = Check(
    ("partial", "head_dim"),
    "partial_rotary_factor",
    lambda factor, head_dim: rotated_pairs(factor, head_dim) > 0,
    "a factor that rotates at least one pair of dims",
)


def read_kv_heads(reader: Reader, shared: bool) -> dict[str, Any]:
    """K/V heads: the global count where K and V share a projection, else the common one; empty after a fault."""
    name = "num_global_key_value_heads" if shared else "num_key_value_heads"
    return reader.read_all([Field("num_kv_heads", (name,), positive_int)])


def read(reader: Reader) -> DraftConfig:
    """DraftConfig from a config of this dialect; raises ConfigError with all faults."""
    values = reader.read_all(FIELDS)
    if "shared_kv_projection" in values:
        values |= read_kv_heads(reader, values["shared_kv_projection"])
    with_markov = read_confidence_with_markov(reader, values.get("has_confidence", False))
    kinds = reader.at("layer_types")
    if isinstance(kinds, list) and "sliding_attention" in kinds:
        reader.fault("layer_types", kinds, "full_attention in every layer (the only kind Gemma4DSparkModel has)")
    mxfp8 = read_mxfp8(reader, values)
    reader.check_all(values, (*CHECKS, ROTATED))
    reader.finish()
    del values["hidden_act"]
    rotary_dim = 2 * rotated_pairs(values.pop("partial"), values["head_dim"])
    return DraftConfig(
        family=Family.GEMMA4,
        architecture=ARCHITECTURE,
        norm=Norm.RMS,
        activation=Activation.GELU_TANH,
        swiglu=None,
        rotary=Rotary.PROPORTIONAL,
        rotary_dim=rotary_dim,
        # Its sliding_window is the target's: no draft layer slides.
        windows=(None,) * values["num_layers"],
        mxfp8_linears=mxfp8,
        ships_embeddings=True,
        markov=MarkovKind(values.pop("markov")),
        confidence_with_markov=with_markov,
        embed_scale=values["hidden_size"] ** 0.5,
        attention_scale=1.0,
        value_norm=True,
        sandwich_norms=True,
        layer_scalars=True,
        **values,
    )


def write(config: DraftConfig) -> dict[str, Any]:
    """The config as DeepSpec writes it, for `json.dump`."""
    rope = {
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": config.rotary_dim / config.head_dim,
            "rope_theta": config.rope_theta,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    }
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "gemma4_text",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attention_k_eq_v": config.shared_kv_projection,
        "enable_moe_block": False,
        "final_logit_softcapping": config.logit_softcap,
        "global_head_dim": config.head_dim,
        "head_dim": config.head_dim // 2,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": config.hidden_size,
        "hidden_size_per_layer_input": 0,
        "intermediate_size": config.ffn_size,
        "layer_types": ["full_attention"] * config.num_layers,
        "max_position_embeddings": config.max_positions,
        "num_attention_heads": config.num_heads,
        "num_global_key_value_heads": config.num_kv_heads if config.shared_kv_projection else None,
        "num_hidden_layers": config.num_layers,
        "num_key_value_heads": config.num_heads if config.shared_kv_projection else config.num_kv_heads,
        "num_kv_shared_layers": 0,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": rope,
        "sliding_window": 1024,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_double_wide_mlp": False,
        "vocab_size": config.vocab_size,
        **write_head(config),
        **write_mxfp8(config),
    }
