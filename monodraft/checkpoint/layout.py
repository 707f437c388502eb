"""Which tensors a drafter has: role (our name), file name, shape and dtypes, for both name layouts.

Roles are the paths of `DraftWeights`: "fc", "layers.2.q", with ".scales" appended for the scale bytes of an MXFP8
linear.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from monodraft.checkpoint.config import DraftConfig, Family, MarkovKind

BLOCK = 32
FLOATS = ("BF16", "F32")
LINEARS = ("q", "k", "v", "o", "gate", "up", "down")
"""The seven linears of a layer: what MXFP8 quantises."""

MODULES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}

IGNORED = (
    (r"(^|\.)t2d$", "maps target tokens to a draft vocabulary; this drafter has the whole one"),
    (r"(^|\.)mask_embedding(\.weight)?$", "the mask rows embed mask_token_id instead, as the vendor's own loader does"),
    (r"rotary_emb\.(inv_freq|original_inv_freq|cos_cached|sin_cached)$", "computed from rope_theta"),
    (r"(^|\.)sts_temperatures$", "calibration of the vendor's scheduler, not of the drafter"),
    (r"^confidence_temperatures$", "calibration of the vendor's scheduler, not of the drafter"),
)
"""Tensors that may be in a file and are not read: pattern and reason."""


@dataclass(frozen=True)
class Layout:
    """How names are spelled: `prefix` before all of the drafter's own, `infix` after "layers.N.", the last norm's
    name, and what precedes embed_tokens and lm_head."""

    prefix: str
    infix: str
    final_norm: str
    embed_prefix: str
    head_prefix: str


RELEASED = Layout(
    "language_model.model.dspark.", "decoder_layer.", "final_norm", "language_model.model.", "language_model."
)
NATIVE = Layout("", "", "norm", "", "")
MODEL = Layout("model.", "", "norm", "model.", "")


@dataclass(frozen=True)
class TensorSpec:
    """One tensor that a file must have (or, where `shared`, may leave to the target)."""

    role: str
    name: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]
    shared: bool = False


def default_layout(family: Family) -> Layout:
    """The layout that the family's vendor releases."""
    return RELEASED if family is Family.MINIMAX_M31 else NATIVE


def detect_layout(names: Collection[str], family: Family) -> Layout:
    """The layout by which a file's tensors are named, judged by its names; the family's own where they say nothing."""
    for layout in (RELEASED, MODEL, NATIVE):
        own = [name for name in names if name.startswith(f"{layout.prefix}layers.")]
        if own:
            infix = "decoder_layer." if any(re.search(r"layers\.\d+\.decoder_layer\.", name) for name in own) else ""
            final = "final_norm" if f"{layout.prefix}final_norm.weight" in names else "norm"
            return Layout(layout.prefix, infix, final, layout.embed_prefix, layout.head_prefix)
    return default_layout(family)


def linear_shapes(config: DraftConfig) -> dict[str, tuple[int, int]]:
    """[N, K] of the seven linears of a layer (six where K and V share a projection)."""
    hidden, ffn = config.hidden_size, config.ffn_size
    shapes = {
        "q": (config.q_size, hidden),
        "k": (config.kv_size, hidden),
        "v": (config.kv_size, hidden),
        "o": (hidden, config.q_size),
        "gate": (ffn, hidden),
        "up": (ffn, hidden),
        "down": (hidden, ffn),
    }
    if config.shared_kv_projection:
        del shapes["v"]
    return shapes


def layer_norms(config: DraftConfig) -> dict[str, tuple[str, int]]:
    """Role in a layer to (module name, length) of its norms."""
    hidden, head = config.hidden_size, config.head_dim
    norms = {
        "input_norm": ("input_layernorm", hidden),
        "q_norm": ("self_attn.q_norm", head),
        "k_norm": ("self_attn.k_norm", head),
        "post_norm": ("post_attention_layernorm", hidden),
    }
    if config.sandwich_norms:
        norms |= {
            "attention_output_norm": ("post_attention_layernorm", hidden),
            "post_norm": ("pre_feedforward_layernorm", hidden),
            "ffn_output_norm": ("post_feedforward_layernorm", hidden),
        }
    return norms


def _layer_specs(config: DraftConfig, layout: Layout, layer: int, floats: tuple[str, ...]) -> list[TensorSpec]:
    root = f"{layout.prefix}layers.{layer}.{layout.infix}"
    role = f"layers.{layer}."
    specs = [
        TensorSpec(role + norm, f"{root}{module}.weight", (length,), floats)
        for norm, (module, length) in layer_norms(config).items()
    ]
    if config.layer_scalars:
        specs.append(TensorSpec(role + "layer_scalar", f"{root}layer_scalar", (1,), floats))
    for linear, (n, k) in linear_shapes(config).items():
        name = f"{root}{MODULES[linear]}.weight"
        if config.mxfp8_linears:
            specs.append(TensorSpec(role + linear, name, (n, k), ("F8_E4M3",)))
            scales = (n, k // BLOCK)
            specs.append(TensorSpec(f"{role}{linear}.scales", f"{name}_scale_inv", scales, ("U8", "F8_E8M0")))
        else:
            specs.append(TensorSpec(role + linear, name, (n, k), floats))
    return specs


def _head_specs(config: DraftConfig, layout: Layout, floats: tuple[str, ...]) -> list[TensorSpec]:
    hidden, vocab, rank = config.hidden_size, config.vocab_size, config.markov_rank
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "markov_w1": ("markov_head.markov_w1.weight", (vocab, rank)),
        "markov_w2": ("markov_head.markov_w2.weight", (vocab, rank)),
    }
    if config.markov is MarkovKind.GATED:
        shapes["markov_gate"] = ("markov_head.gate_proj.weight", (rank, hidden + rank))
        shapes["markov_gate_bias"] = ("markov_head.gate_proj.bias", (rank,))
    if config.markov is MarkovKind.RNN:
        shapes["markov_joint"] = ("markov_head.joint_proj.weight", (3 * rank, hidden + 2 * rank))
        shapes["markov_joint_bias"] = ("markov_head.joint_proj.bias", (3 * rank,))
    if config.has_confidence:
        width = hidden + rank * config.confidence_with_markov
        shapes["confidence_weight"] = ("confidence_head.proj.weight", (1, width))
        shapes["confidence_bias"] = ("confidence_head.proj.bias", (1,))
    return [TensorSpec(role, layout.prefix + name, shape, floats) for role, (name, shape) in shapes.items()]


def tensor_specs(config: DraftConfig, layout: Layout | None = None) -> list[TensorSpec]:
    """Every tensor of a drafter, in the order in which a step reads them; embedding and LM head last, as `shared`."""
    layout = layout or default_layout(config.family)
    floats = ("BF16",) if config.family is Family.MINIMAX_M31 else FLOATS
    hidden, vocab = config.hidden_size, config.vocab_size
    specs = [
        TensorSpec("fc", f"{layout.prefix}fc.weight", (hidden, config.feature_size), floats),
        TensorSpec("hidden_norm", f"{layout.prefix}hidden_norm.weight", (hidden,), floats),
    ]
    for layer in range(config.num_layers):
        specs += _layer_specs(config, layout, layer, floats)
    specs.append(TensorSpec("final_norm", f"{layout.prefix}{layout.final_norm}.weight", (hidden,), floats))
    specs += _head_specs(config, layout, floats)
    specs.append(TensorSpec("embed", f"{layout.embed_prefix}embed_tokens.weight", (vocab, hidden), FLOATS, shared=True))
    specs.append(TensorSpec("lm_head", f"{layout.head_prefix}lm_head.weight", (vocab, hidden), FLOATS, shared=True))
    return specs


def ignored_reason(name: str) -> str | None:
    """Why a tensor of this name is not read, or None where it may not be there."""
    return next((reason for pattern, reason in IGNORED if re.search(pattern, name)), None)
