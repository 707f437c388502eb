"""What the drafter is fed: the raw residual stream after chosen decoder layers of a Hugging Face causal LM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel


@torch.no_grad()
def target_features(
    target: PreTrainedModel, tokens: torch.Tensor, layer_ids: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Features [B, T, m H] (before the target's final norm, also for its last layer) and logits [B, T, V]."""
    captured: dict[int, torch.Tensor] = {}

    def keep(layer: int) -> Callable[[Any, Any, Any], None]:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            captured[layer] = output[0] if isinstance(output, tuple) else output

        return hook

    handles = [target.get_submodule(f"model.layers.{i}").register_forward_hook(keep(i)) for i in layer_ids]
    try:
        with torch.autocast(tokens.device.type, dtype=torch.bfloat16):
            logits = target(input_ids=tokens, use_cache=False).logits
    finally:
        for handle in handles:
            handle.remove()
    return torch.cat([captured[i] for i in layer_ids], -1), logits
