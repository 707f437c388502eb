"""`config.json` as each vendor writes it: the supported drafters and the ones we refuse.

Facts from the public repositories and notes that docs/checkpoint.md names; what nobody has shown is marked `unseen`.
"""

from copy import deepcopy
from typing import Any

M31: dict[str, Any] = {
    "architectures": ["DSparkMiniMaxDraftModel"],
    "text_config": {
        "num_hidden_layers": 5,
        "hidden_size": 6144,
        "vocab_size": 200064,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "dense_intermediate_size": 12288,
        "dspark_ffn_hidden_size": 12288,
        "dspark_markov_rank": 256,
        "dspark_block_size": 7,
        "dspark_noise_token_id": 200058,
        "sliding_window": 4096,
        "dspark_markov_head_type": "vanilla",
        "dspark_use_dense_ffn": True,
        "dspark_hybrid_context_fusion": False,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "use_gemma_norm": True,
        "dspark_target_layer_ids": [3, 17, 31, 45, 59],
        "layer_types": ["sliding_attention"] * 5,
        "moe_layer_freq": [0] * 5,
        "num_local_experts": 128,
        "sparse_attention_config": None,
        "dspark_config": {"hybrid_context_fusion": False},
        # Unseen in a config of M3.1: these four.
        "rotary_dim": 64,
        "rope_theta": 5000000,
        "rms_norm_eps": 1e-06,
        "max_position_embeddings": 1048576,
    },
    "quantization_config": {"quant_method": "mxfp8", "weight_block_size": [1, 32]},
}


def deepspec(hidden: int, heads: int, ffn: int, ids: list[int], target_layers: int) -> dict[str, Any]:
    """What DeepSpec's `build_draft_config` saves for a Qwen3 target (checked against its own code)."""
    return {
        "architectures": ["Qwen3DSparkModel"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "block_size": 7,
        "bos_token_id": 151643,
        "confidence_head_with_markov": True,
        "dtype": "bfloat16",
        "enable_confidence_head": True,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": ffn,
        "layer_types": ["full_attention"] * 5,
        "markov_head_type": "vanilla",
        "markov_rank": 256,
        "mask_token_id": 151669,
        "max_position_embeddings": 40960,
        "max_window_layers": 36,
        "model_type": "qwen3",
        "num_anchors": 512,
        "num_attention_heads": heads,
        "num_hidden_layers": 5,
        "num_key_value_heads": 8,
        "num_target_layers": target_layers,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "target_layer_ids": ids,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    }


QWEN3_4B = deepspec(2560, 32, 9728, [1, 9, 17, 25, 33], 36)
QWEN3_8B = deepspec(4096, 32, 12288, [1, 9, 17, 25, 33], 36)
QWEN3_14B = deepspec(5120, 40, 17408, [1, 10, 19, 28, 37], 40)

NVIDIA_M3: dict[str, Any] = {
    "architectures": ["Qwen3DSparkModel"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "dflash_config": {
        "block_size": 8,
        "causal": False,
        "markov_head_type": "vanilla",
        "markov_rank": 256,
        "mask_token_id": 200063,
        "num_target_layers": 60,
        "projector_type": "dspark",
        "swa_window_size": 1024,
        "target_layer_ids": [1, 12, 23, 35, 46, 57],
        "use_confidence_head": True,
        "use_swa": True,
    },
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 6144,
    "intermediate_size": 12288,
    "layer_types": ["sliding_attention"] * 6,
    "max_position_embeddings": 1048576,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 6,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_theta": 5000000,  # unseen
    "sliding_window": 1024,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "vocab_size": 200064,
}

MINICPM5: dict[str, Any] = {
    "architectures": ["Qwen3DSparkModel"],
    "attention_bias": False,
    "block_size": 7,
    "confidence_head_with_markov": True,
    "draft_vocab_size": 130560,
    "enable_confidence_head": True,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "layer_types": ["full_attention"] * 5,
    "markov_head_type": "vanilla",
    "markov_rank": 256,
    "mask_token_id": 75982,
    "max_position_embeddings": 131072,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 5,
    "num_key_value_heads": 2,
    "num_target_layers": 42,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 5000000.0, "rope_type": "default"},
    "sample_from_anchor": True,
    "sliding_window": None,
    "target_layer_ids": [1, 10, 20, 30, 39],
    "use_sliding_window": False,
    "vocab_size": 130560,
}

GEMMA4_12B: dict[str, Any] = {
    "architectures": ["Gemma4DSparkModel"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attention_k_eq_v": True,
    "block_size": 7,
    "confidence_head_with_markov": True,
    "enable_confidence_head": True,
    "enable_moe_block": False,
    "final_logit_softcapping": 30.0,
    "global_head_dim": 512,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 3840,
    "hidden_size_per_layer_input": 0,
    "intermediate_size": 15360,
    "layer_types": ["full_attention"] * 5,
    "markov_head_type": "vanilla",
    "markov_rank": 256,
    "mask_token_id": 4,
    "max_position_embeddings": 262144,
    "model_type": "gemma4_unified_text",
    "num_anchors": 512,
    "num_attention_heads": 16,
    "num_experts": None,
    "num_global_key_value_heads": 1,
    "num_hidden_layers": 5,
    "num_key_value_heads": 8,
    "num_kv_shared_layers": 0,
    "num_target_layers": 48,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "sliding_window": 1024,
    "target_layer_ids": [5, 17, 29, 41, 46],
    "tie_word_embeddings": False,
    "use_double_wide_mlp": False,
    "vocab_size": 262144,
}

SUPPORTED = {
    "MiniMax-M3.1": M31,
    "dspark_qwen3_4b_block7": QWEN3_4B,
    "dspark_qwen3_8b_block7": QWEN3_8B,
    "dspark_qwen3_14b_block7": QWEN3_14B,
    "nvidia/MiniMax-M3-DSpark": NVIDIA_M3,
    "openbmb/MiniCPM5-2B-DSpark": MINICPM5,
    "dspark_gemma4_12b_block7": GEMMA4_12B,
}


def changed(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A copy with fields replaced; `text_config__x=1` reaches into text_config, a value of ... removes a field."""
    result = deepcopy(config)
    for key, value in changes.items():
        *parents, leaf = key.split("__")
        node = result
        for parent in parents:
            node = node.setdefault(parent, {})
        if value is ...:
            node.pop(leaf, None)
        else:
            node[leaf] = value
    return result


def speculators(backbone: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """The speculators packaging (RedHatAI and others): the backbone under `transformer_layer_config`."""
    return {
        "architectures": ["DSparkDraftModel"],
        "speculators_model_type": "dspark",
        "speculators_config": {"algorithm": "dspark", "proposal_methods": [{"speculative_tokens": 7}]},
        "markov_rank": 256,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "transformer_layer_config": {"model_type": "qwen3", **backbone},
        **facts,
    }


# Each refused drafter of the specification: its config and words of the reason that must be given.
REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "DeepSeek-V4-Flash-DSpark": (
        {
            "architectures": ["DeepseekV4ForCausalLM"],
            "model_type": "deepseek_v4",
            "hidden_size": 4096,
            "num_hidden_layers": 43,
            "num_attention_heads": 64,
            "num_key_value_heads": 1,
            "head_dim": 512,
            "q_lora_rank": 1024,
            "n_routed_experts": 256,
            "num_experts_per_tok": 6,
            "hc_mult": 4,
            "sliding_window": 128,
            "vocab_size": 129280,
            "dspark_block_size": 5,
            "dspark_noise_token_id": 128799,
            "dspark_markov_rank": 256,
            "dspark_target_layer_ids": [40, 41, 42],
            "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
        },
        ["MoE", "mHC", "inside the target", "MLA"],
    ),
    "DeepSeek-V4.1-Flash": (
        {
            "architectures": ["DeepseekV41ForConditionalGeneration"],
            "text_config": {
                "model_type": "deepseek_v41_text",
                "hidden_size": 5120,
                "hc_mult": 4,
                "num_nextn_predict_layers": 3,
                "dspark_block_size": 5,
                "dspark_noise_token_id": 128799,
                "dspark_target_layer_ids": [37, 38, 39],
                "dspark_markov_rank": 256,
                "dspark_n_routed_experts": 128,
                "dspark_num_experts_per_tok": 3,
            },
        },
        ["layer inputs", "MoE", "mHC"],
    ),
    "RedHatAI GLM-5.2": (
        speculators(
            {"hidden_size": 6144, "num_hidden_layers": 5, "vocab_size": 154880},
            block_size=8,
            aux_hidden_state_layer_ids=[8, 23, 39, 55, 70],
        ),
        ["speculators", "slot 0"],
    ),
    "RedHatAI GLM-5.3": (
        speculators(
            {"hidden_size": 6144, "num_hidden_layers": 3, "vocab_size": 154880},
            block_size=8,
            aux_hidden_state_layer_ids=[2, 20, 39, 58, 75],
            sample_from_anchor=False,
        ),
        ["speculators", "slot 0"],
    ),
    "RedHatAI Qwen3.6-35B-A3B": (
        speculators({"hidden_size": 2048, "vocab_size": 248320}, block_size=8, draft_vocab_size=32000),
        ["speculators", "d2t"],
    ),
    "satgeze Qwen3.6-27B": (
        {
            **deepspec(5120, 32, 17408, [1, 16, 31, 46, 61], 64),
            "block_size": 15,
            "partial_rotary_factor": 0.25,
            "rope_parameters": {
                "rope_theta": 1e7,
                "rope_type": "default",
                "partial_rotary_factor": 0.25,
                "mrope_interleaved": True,
                "mrope_section": [11, 11, 10],
            },
            "attn_output_gate": True,
        },
        ["output gates", "multimodal RoPE"],
    ),
    "gemma-4-31B": (
        speculators(
            {"hidden_size": 5376, "vocab_size": 262144}, block_size=8, sample_from_anchor=False, mask_token_id=4
        ),
        ["slot 0", "1 + N"],
    ),
    "North Mini Code": (
        speculators(
            {
                "hidden_size": 2048,
                "num_hidden_layers": 5,
                "num_attention_heads": 32,
                "num_key_value_heads": 4,
                "intermediate_size": 768,
                "layer_types": ["sliding_attention"] * 5,
                "sliding_window": 2048,
                "use_sliding_window": True,
                "vocab_size": 262144,
            },
            block_size=8,
            draft_vocab_size=32000,
            aux_hidden_state_layer_ids=[2, 24, 46],
        ),
        ["speculators", "d2t"],
    ),
    "Kimi-K3.1 (Inferact)": (
        {
            "architectures": ["K3DSparkModel"],
            "hidden_size": 7168,
            "num_hidden_layers": 5,
            "kv_lora_rank": 512,
            "q_lora_rank": 1536,
            "block_size": 7,
            "markov_rank": 512,
            "target_layer_ids": [7, 23, 51, 67, 83],
        },
        ["MLA"],
    ),
    "Kimi-K3 (LithosAI)": (
        changed(
            NVIDIA_M3,
            hidden_size=7168,
            num_attention_heads=64,
            num_key_value_heads=16,
            head_dim=64,
            rope_theta=...,
            rope_parameters={"rope_theta": 10000, "rope_type": "yarn", "factor": 32.0},
            dflash_config__target_layer_ids=[7, 23, 67, 83, 91],
            dflash_config__num_target_layers=93,
        ),
        ["YaRN"],
    ),
    "LFM2.5-1.2B": (
        {
            "architectures": ["Lfm2DSparkDraftModel"],
            "model_type": "qwen3",
            "hidden_size": 2048,
            "num_hidden_layers": 5,
            "rope_theta": 1e6,
            "layer_types": ["full_attention"] * 5,
            "block_size": 7,
            "rope_is_neox_style": False,
            "markov_rank": 256,
            "markov_head_type": "vanilla",
            "enable_confidence_head": True,
            "dflash_config": {"mask_token_id": 16, "target_layer_ids": [2, 5, 8, 10, 12], "num_target_layers": 16},
        },
        ["interleaved RoPE"],
    ),
    # Unseen: its config. Qwen2.5's attention has biases, which a deep copy of the target's config carries along.
    "Qwen2.5-7B (research)": (
        {
            **deepspec(3584, 28, 18944, [1, 7, 14, 21, 26], 28),
            "architectures": ["Qwen2DSparkModel"],
            "model_type": "qwen2",
            "block_size": 8,
            "mask_token_id": 151665,
            "attention_bias": True,
        },
        ["biases"],
    ),
    "Nemotron-3.5-Lightning": (
        changed(
            NVIDIA_M3,
            hidden_size=2688,
            dspark_bonus_anchor=True,
            dflash_query_causal=True,
            attention_sink_bias=True,
            dflash_config__causal=True,
            dflash_config__sample_from_anchor=False,
        ),
        ["causal", "attention sinks", "slot 0"],
    ),
    "RadixArk Qwen3.8-27B": (
        changed(
            deepspec(5120, 32, 17408, [1, 16, 31, 46, 61], 64),
            architectures=["DSparkDraftModel"],
            rope_theta=...,
            rope_parameters={"rope_theta": 10000000, "rope_type": "yarn", "factor": 32.0},
        ),
        ["SpecForge", "YaRN"],
    ),
    "a DFlash drafter": (
        {**changed(QWEN3_4B, markov_rank=0), "architectures": ["DFlashDraftModel"]},
        ["DFlash", "no Markov head"],
    ),
    "NeMo's M3 export": (
        {**M31["text_config"], "architectures": ["MiniMaxM3DSparkModel"]},
        ["NeMo"],
    ),
}
