"""Checkpoints that are well formed but not ours to run, each with its reason: a table of signs in a `config.json`.

Every public DSpark drafter outside the supported families shows at least one of these signs (docs/checkpoint.md has the
list; tests/checkpoint/test_refusals.py a config of each). Signs are looked for at the top level and under
`text_config`, `transformer_layer_config` and `dflash_config`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from monodraft.checkpoint.fields import ABSENT, ROPE_SECTIONS, Reader, show
from monodraft.errors import Fault

PLACES = ("", "text_config", "transformer_layer_config", "dflash_config", "dspark_config")


def is_set(value: Any) -> bool:
    """Neither null, false, zero, empty nor a list of only such."""
    return any(map(is_set, value)) if isinstance(value, list) else bool(value)


def not_positive(value: Any) -> bool:
    return not isinstance(value, int) or value < 1


def differs_from(*plain: Any) -> Callable[[Any], bool]:
    return lambda value: value not in plain


def present(value: Any) -> bool:
    return True


@dataclass(frozen=True)
class Sign:
    """`field`, wherever among PLACES, whose value satisfies `shows` means the checkpoint is refused for `reason`.

    `meaningless_in` are architectures whose configs inherit the field from their target without meaning it.
    """

    field: str
    shows: Callable[[Any], bool]
    reason: str
    meaningless_in: frozenset[str] = frozenset()


DENSE = frozenset({"Qwen3DSparkModel", "DSparkMiniMaxDraftModel"})
"""Architectures whose layers are dense whatever number of experts their target's config had. (MiniMax says so by
`dspark_use_dense_ffn` and `moe_layer_freq`, which are looked at.)"""

SLOTS = (
    "slot 0 is the anchor itself and predicts nothing (1 + N rows); here row 0, the anchor's, is the first prediction"
)
MLA = "latent attention (MLA) has no per-head K/V cache of this drafter's shape"
MOE = "experts (MoE) in the draft layers; the kernels run dense FFNs"
REDUCED = "a reduced draft vocabulary with a d2t map; logits must cover the target's vocabulary"
GATED = "attention output gates (Qwen3.5 and later) that a DSpark layer does not have"
SCALED_ROPE = "rescaled RoPE frequencies (YaRN and the like)"
CAUSAL = "causal attention inside the block; DSpark rows see the whole block"
NO_MARKOV = "no Markov head: a DFlash drafter, not a DSpark one"
BIAS = "biases on the projections"

SIGNS = (
    Sign("speculators_model_type", present, f"the speculators format: {SLOTS}, unless it says otherwise"),
    Sign("speculators_config", present, "the speculators format, whose names and slots are not DeepSpec's"),
    Sign("sample_from_anchor", differs_from(True, None), SLOTS),
    Sign("dspark_bonus_anchor", is_set, SLOTS),
    Sign("shift_label", is_set, SLOTS),
    Sign("d2t", present, REDUCED),
    Sign("kv_lora_rank", is_set, MLA),
    Sign("q_lora_rank", is_set, MLA),
    Sign("attention_mode", differs_from("gqa", "mha", None), MLA),
    Sign("n_routed_experts", is_set, MOE, DENSE),
    Sign("num_experts", is_set, MOE, DENSE),
    Sign("num_local_experts", is_set, MOE, DENSE),
    Sign("dspark_n_routed_experts", is_set, MOE),
    Sign("enable_moe_block", is_set, MOE),
    Sign("moe_layer_freq", is_set, MOE),
    Sign("dspark_use_dense_ffn", differs_from(True), MOE),
    Sign("hc_mult", is_set, "hyper-connections (mHC): several residual streams a layer"),
    Sign("eagle_aux_hidden_state_layer_ids", is_set, "features taken at layer inputs, by EAGLE's numbering"),
    Sign("rope_is_neox_style", differs_from(True), "interleaved RoPE (pairs 2i, 2i + 1); here pairs are halves apart"),
    Sign("rope_interleave", is_set, "interleaved RoPE (pairs 2i, 2i + 1); here pairs are halves apart"),
    Sign("attn_output_gate", is_set, GATED),
    Sign("enable_qwen35_gated_q_proj", is_set, GATED),
    Sign("attention_bias", is_set, BIAS),
    Sign("mlp_bias", is_set, BIAS),
    Sign("attention_sink_bias", is_set, "attention sinks: a learned extra logit a head"),
    Sign("attention_value_scale", differs_from(None, 1, 1.0), "scaled values"),
    Sign("causal", is_set, CAUSAL),
    Sign("dflash_query_causal", is_set, CAUSAL),
    Sign("sliding_window_non_causal", differs_from(True), CAUSAL),
    Sign("hybrid_context_fusion", is_set, "hybrid context fusion: the context changes from layer to layer"),
    Sign("dspark_hybrid_context_fusion", is_set, "hybrid context fusion: the context changes from layer to layer"),
    Sign("sparse_attention_config", is_set, "sparse attention in the draft layers"),
    Sign("hidden_size_per_layer_input", is_set, "per-layer input embeddings (Gemma4 PLE)"),
    Sign("num_kv_shared_layers", is_set, "layers that share K/V"),
    Sign("use_double_wide_mlp", is_set, "double-wide MLPs"),
    Sign("markov_rank", not_positive, NO_MARKOV),
    Sign("dspark_markov_rank", not_positive, NO_MARKOV),
)

ARCHITECTURES = {
    "DeepseekV4ForCausalLM": f"DeepSeek-V4: the drafter lives inside the target (mtp.*); {MOE}; mHC",
    "DeepseekV41ForCausalLM": f"DeepSeek-V4.1: features are layer inputs, not outputs; {MOE}; mHC",
    "DeepseekV41ForConditionalGeneration": f"DeepSeek-V4.1: features are layer inputs, not outputs; {MOE}; mHC",
    "K3DSparkModel": f"Kimi-K3: {MLA}",
    "Lfm2DSparkDraftModel": "LFM2.5: interleaved RoPE (pairs 2i, 2i + 1); here pairs are halves apart",
    "Qwen35DSparkModel": f"Qwen3.5: {GATED}",
    "DSparkDraftModel": f"the speculators or SpecForge packaging: {SLOTS}, unless it says otherwise",
    "DFlashDraftModel": f"a DFlash drafter: {SLOTS}",
    "MiniMaxM3DSparkModel": "NeMo's own training export of M3; the released layout of M3.1 is supported",
}
"""Architecture to why it is refused, for those whose name says it."""


def rope_signs(reader: Reader) -> list[Fault]:
    """Refusals inside `rope_parameters` or `rope_scaling`, which for Gemma4 hold one entry a layer type."""
    faults = []
    for place in PLACES:
        for key in ROPE_SECTIONS:
            path = f"{place}.{key}" if place else key
            value = reader.at(path)
            nested = isinstance(value, dict) and any(isinstance(v, dict) for v in value.values())
            for leaf in [f"{path}.full_attention"] if nested else [path]:
                for name in ("rope_type", "type"):
                    kind = reader.at(f"{leaf}.{name}")
                    allowed = ("default", "proportional") if nested else ("default",)
                    if kind is not ABSENT and kind not in allowed:
                        wanted = f"{' or '.join(allowed)}; refused: {SCALED_ROPE}"
                        faults.append(Fault(f"{reader.place}: {leaf}.{name}", show(kind), wanted))
                sections = reader.at(f"{leaf}.mrope_section")
                if sections is not ABSENT and sections is not None:
                    wanted = "nothing; refused: multimodal RoPE sections, copied from the target or real: undecidable"
                    faults.append(Fault(f"{reader.place}: {leaf}.mrope_section", show(sections), wanted))
    return faults


def reduced_vocabulary(reader: Reader) -> list[Fault]:
    """A draft vocabulary smaller than the target's, by the two sizes."""
    faults = []
    paths = {
        name: [f"{place}.{name}" if place else name for place in PLACES] for name in ("vocab_size", "draft_vocab_size")
    }
    sizes = [reader.at(path) for path in paths["vocab_size"]]
    for path in paths["draft_vocab_size"]:
        draft = reader.at(path)
        full = next((size for size in sizes if size is not ABSENT), draft)
        if draft is not ABSENT and draft is not None and draft != full:
            faults.append(Fault(f"{reader.place}: {path}", show(draft), f"{show(full)}; refused: {REDUCED}"))
    return faults


def refusals(reader: Reader) -> list[Fault]:
    """Every sign in the config, as faults whose `wanted` says the reason."""
    faults = []
    architectures = reader.at("architectures")
    names = [name for name in architectures if isinstance(name, str)] if isinstance(architectures, list) else []
    for name in names:
        if name in ARCHITECTURES:
            faults.append(
                Fault(f"{reader.place}: architectures", show(name), f"a supported one: {ARCHITECTURES[name]}")
            )
    for sign in (sign for sign in SIGNS if sign.meaningless_in.isdisjoint(names)):
        for place in PLACES:
            path = f"{place}.{sign.field}" if place else sign.field
            value = reader.at(path)
            if value is not ABSENT and sign.shows(value):
                faults.append(
                    Fault(f"{reader.place}: {path}", show(value), f"a drafter without it; refused: {sign.reason}")
                )
    return faults + rope_signs(reader) + reduced_vocabulary(reader)
