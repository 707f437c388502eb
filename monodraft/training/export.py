"""From a trained module to a drafter's weights as backends take them."""

from __future__ import annotations

import torch

from monodraft.checkpoint.weights import DraftWeights, LayerWeights, Matrix, Mxfp8Matrix
from monodraft.formats.mxfp8 import encode
from monodraft.training.draft_model import DraftLayer, DraftModel


def pack_linear(weight: torch.Tensor, mxfp8: bool) -> Matrix:
    """A float32 weight [N, K] as bf16, or as MXFP8 quantised from the float32 values (one rounding, not two)."""
    if not mxfp8:
        return weight.detach().to(torch.bfloat16).cpu()
    elements, scales = encode(weight.detach().float().cpu().numpy())
    return Mxfp8Matrix(torch.from_numpy(elements), torch.from_numpy(scales))


def export_weights(model: DraftModel) -> DraftWeights:
    """The module's weights, bf16 and (where the config says so) MXFP8 linears, on the CPU."""

    def vector(parameter: torch.Tensor) -> torch.Tensor:
        return parameter.detach().to(torch.bfloat16).cpu().contiguous()

    def layer(module: DraftLayer) -> LayerWeights:
        linears = {
            name: pack_linear(getattr(module, name).weight, model.config.mxfp8_linears)
            for name in ("q", "k", "v", "o", "gate", "up", "down")
        }
        norms = {name: vector(getattr(module, name).weight) for name in ("input_norm", "post_norm", "q_norm", "k_norm")}
        return LayerWeights(**linears, **norms)  # type: ignore[arg-type]

    embedding = vector(model.embedding)
    return DraftWeights(
        fc=vector(model.fc.weight),
        hidden_norm=vector(model.hidden_norm.weight),
        layers=tuple(layer(module) for module in model.layers),  # type: ignore[arg-type]
        final_norm=vector(model.final_norm.weight),
        embed=embedding,
        lm_head=embedding,
        markov_w1=vector(model.markov_w1.weight),
        markov_w2=vector(model.markov_w2.weight),
        confidence_weight=vector(model.confidence.weight),
        confidence_bias=vector(model.confidence.bias),
    )
