"""A drafter's weights in memory, in one naming for all families. Backends take these, never a file."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Mxfp8Matrix:
    """MXFP8 weights of a linear [N, K]: `elements` uint8 [N, K] (e4m3 bytes), `scales` uint8 [N, K / 32] (e8m0).

    Value = e4m3(element) * 2^(scale - 127); scale byte 255 makes the whole block NaN.
    """

    elements: torch.Tensor
    scales: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        n, k = self.elements.shape
        return n, k


Matrix = torch.Tensor | Mxfp8Matrix
"""A linear's weight [N, K] (out, in): a bf16 tensor as shipped, or MXFP8."""


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer. Norms are bf16 [hidden] or [head_dim].

    `post_norm` is the norm before the FFN. `v` is `k`, the same object, where `DraftConfig.shared_kv_projection`.
    `attention_output_norm` and `ffn_output_norm` [hidden] exist with `sandwich_norms`, `layer_scalar` [1] with
    `layer_scalars` (Gemma4).
    """

    input_norm: torch.Tensor
    q: Matrix
    k: Matrix
    v: Matrix
    o: Matrix
    q_norm: torch.Tensor
    k_norm: torch.Tensor
    post_norm: torch.Tensor
    gate: Matrix
    up: Matrix
    down: Matrix
    attention_output_norm: torch.Tensor | None = None
    ffn_output_norm: torch.Tensor | None = None
    layer_scalar: torch.Tensor | None = None


@dataclass(frozen=True)
class DraftWeights:
    """All weights of a drafter: bf16 unless the family ships another dtype for a tensor.

    fc [H, m H]; embed and lm_head [V, H] (the target's, where the drafter ships none); markov_w1, markov_w2 [V, r];
    markov_gate [r, H + r] with bias [r] (gated only); markov_joint [3 r, H + 2 r] with bias [3 r] (rnn only);
    confidence_weight [1, H (+ r)], confidence_bias [1]. Inputs are concatenated in this order: gate [h; e], joint
    [s; e; h], confidence [h; e], with e the w1 row of the previous token and s the state (DeepSpec `markov_head.py`).
    `joint`'s 3 r rows are gate, candidate, output.
    """

    fc: torch.Tensor
    hidden_norm: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    embed: torch.Tensor
    lm_head: torch.Tensor
    markov_w1: torch.Tensor
    markov_w2: torch.Tensor
    markov_gate: torch.Tensor | None = None
    markov_gate_bias: torch.Tensor | None = None
    markov_joint: torch.Tensor | None = None
    markov_joint_bias: torch.Tensor | None = None
    confidence_weight: torch.Tensor | None = None
    confidence_bias: torch.Tensor | None = None
