"""MiniMax-M3.1: `DSparkMiniMaxDraftModel`, facts under `text_config` (and, where repeated, the same at the top).

Source: the schema audit of the released checkpoint in alibaba/rtp-llm and the notes that docs/checkpoint.md names.
"""

from __future__ import annotations

from typing import Any

from monodraft.checkpoint.config import Activation, DraftConfig, Family, MarkovKind, Norm, SwigluOai
from monodraft.checkpoint.fields import (
    ABSENT,
    LONGEST_BLOCK,
    MOST_LAYERS,
    Check,
    Field,
    Reader,
    at_most,
    boolean,
    fraction,
    layer_ids,
    one_of,
    positive_float,
    positive_int,
    rope_base,
    rope_paths,
    token_id,
)
from monodraft.checkpoint.quantization import read_mxfp8, write_mxfp8
from monodraft.checkpoint.windows import read_windows

ARCHITECTURE = "DSparkMiniMaxDraftModel"
ROOTS = ("text_config", "")

FIELDS = (
    Field("hidden_size", ("hidden_size",), positive_int),
    Field("num_layers", ("num_hidden_layers",), at_most(MOST_LAYERS)),
    Field("num_heads", ("num_attention_heads",), positive_int),
    Field("num_kv_heads", ("num_key_value_heads",), positive_int),
    Field("head_dim", ("head_dim",), positive_int),
    Field("ffn_size", ("dspark_ffn_hidden_size", "dense_intermediate_size"), positive_int),
    Field("vocab_size", ("vocab_size",), positive_int),
    Field("block_size", ("dspark_block_size",), at_most(LONGEST_BLOCK)),
    Field("mask_token_id", ("dspark_noise_token_id",), token_id),
    Field("target_layer_ids", ("dspark_target_layer_ids",), layer_ids),
    Field("rms_norm_eps", ("rms_norm_eps",), positive_float),
    Field("gemma_norm", ("use_gemma_norm",), one_of(True)),
    Field("hidden_act", ("hidden_act",), one_of("swigluoai"), default="swigluoai"),
    # Constants of the family where the config leaves them out: NeMo's M3 layers, asserted by vLLM's AMD kernels.
    Field("alpha", ("swiglu_alpha",), positive_float, default=1.702),
    Field("limit", ("swiglu_limit",), positive_float, default=7.0),
    Field("beta", ("swiglu_beta",), positive_float, default=1.0),
    Field("rope_theta", rope_paths("rope_theta"), rope_base),
    Field("max_positions", ("max_position_embeddings",), positive_int),
    Field("markov", ("dspark_markov_head_type",), one_of(*(str(kind) for kind in MarkovKind))),
    Field("markov_rank", ("dspark_markov_rank",), positive_int),
    Field("has_confidence", ("enable_confidence_head",), boolean),
)

CHECKS = (
    Check(
        ("num_heads", "num_kv_heads"),
        "num_attention_heads",
        lambda q, kv: q % kv == 0,
        "a multiple of num_key_value_heads",
    ),
    Check(("mask_token_id", "vocab_size"), "dspark_noise_token_id", lambda t, v: t < v, "an id below vocab_size"),
    Check(
        ("rotary_dim", "head_dim"),
        "rotary_dim",
        lambda r, d: r % 2 == 0 and 2 <= r <= d,
        "an even number from 2 to head_dim",
    ),
)


def read_rotary_dim(reader: Reader, head_dim: int) -> Any:
    """Rotated dims from `rotary_dim` or `partial_rotary_factor`; all places must say the same."""
    dims, factors = reader.spellings(("rotary_dim",)), reader.spellings(rope_paths("partial_rotary_factor"))
    if not dims and not factors:
        reader.fault("rotary_dim or partial_rotary_factor", ABSENT, "this field")
        return ABSENT
    dim = reader.read(Field("", ("rotary_dim",), positive_int, default=None))
    factor = reader.read(Field("", rope_paths("partial_rotary_factor"), fraction, default=None))
    if dim is ABSENT or factor is ABSENT:
        return ABSENT
    if dim is not None and factor is not None and dim != factor * head_dim:
        reader.contradiction(next(iter(dims)), next(iter(factors)), f"rotary_dim = factor * head_dim ({head_dim})")
    return int(factor * head_dim) if dim is None else dim


def read(reader: Reader) -> DraftConfig:
    """DraftConfig from a config of this dialect; raises ConfigError with all faults."""
    reader.roots = ROOTS
    values = reader.read_all(FIELDS)
    if "head_dim" in values and (dim := read_rotary_dim(reader, values["head_dim"])) is not ABSENT:
        values["rotary_dim"] = dim
    if values.get("has_confidence"):
        with_markov = reader.read(Field("", ("confidence_head_with_markov",), boolean))
        values["confidence_with_markov"] = with_markov
    windows = read_windows(reader, values.get("num_layers"))
    mxfp8 = read_mxfp8(reader, values)
    reader.check_all(values, CHECKS)
    reader.finish()
    swiglu = SwigluOai(values.pop("alpha"), values.pop("limit"), values.pop("beta"))
    for name in ("gemma_norm", "hidden_act"):
        del values[name]
    return DraftConfig(
        family=Family.MINIMAX_M31,
        architecture=ARCHITECTURE,
        norm=Norm.GEMMA,
        activation=Activation.SWIGLU_OAI,
        swiglu=swiglu,
        windows=windows,
        mxfp8_linears=mxfp8,
        ships_embeddings=False,
        markov=MarkovKind(values.pop("markov")),
        confidence_with_markov=values.pop("confidence_with_markov", False),
        **values,
    )


def write(config: DraftConfig) -> dict[str, Any]:
    """The config as this vendor writes it, for `json.dump`."""
    assert config.swiglu is not None
    sliding = next((window for window in config.windows if window is not None), None)
    text = {
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "dense_intermediate_size": config.ffn_size,
        "dspark_ffn_hidden_size": config.ffn_size,
        "dspark_use_dense_ffn": True,
        "moe_layer_freq": [0] * config.num_layers,
        "sparse_attention_config": None,
        "dspark_markov_rank": config.markov_rank,
        "dspark_markov_head_type": str(config.markov),
        "dspark_block_size": config.block_size,
        "dspark_noise_token_id": config.mask_token_id,
        "dspark_target_layer_ids": list(config.target_layer_ids),
        "dspark_hybrid_context_fusion": False,
        "dspark_config": {"hybrid_context_fusion": False},
        "sliding_window": sliding,
        "layer_types": ["full_attention" if window is None else "sliding_attention" for window in config.windows],
        "enable_confidence_head": config.has_confidence,
        "confidence_head_with_markov": config.confidence_with_markov,
        "use_gemma_norm": True,
        "hidden_act": "swigluoai",
        "swiglu_alpha": config.swiglu.alpha,
        "swiglu_limit": config.swiglu.limit,
        "swiglu_beta": config.swiglu.beta,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rotary_dim": config.rotary_dim,
        "max_position_embeddings": config.max_positions,
    }
    return {"architectures": [ARCHITECTURE], "text_config": text, **write_mxfp8(config)}
