"""A Hugging Face causal language model as the verifying target."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from monodraft.errors import Fault, InputError, UnsupportedCheckpoint
from monodraft.loop.target_model import TargetOutput, TargetRows

EMBEDDING_LAYER = -1
"""Captured layer id that means the input of the first decoder layer."""

CROPPABLE_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
"""Layer types whose state can be cut back to an earlier position; a recurrent state cannot."""


class Target:
    """Runs a transformers model for several requests, each with its own cache and length.

    Requests of one call run one after another, so a row's bits depend on its own request only. They still depend on
    how many rows run together: torch picks another matrix kernel for 1 row than for 8 (measured: docs/loop.md).

    `layer_ids`: zero-based decoder layers whose output is captured, -1 for the embedding output. Captured is the raw
    residual stream after the layer, also for the last one: before the model's final norm (Hugging Face's
    `hidden_states[-1]` is after it). Raises `UnsupportedCheckpoint` for a model with a state that cannot be cut back,
    `InputError` for a layer id that the model does not have.
    """

    def __init__(self, model: PreTrainedModel, layer_ids: Sequence[int], *, name: str = "target") -> None:
        self.model = model.eval()
        self.layer_ids = tuple(layer_ids)
        self.name = name
        self.config: Any = model.config.get_text_config(decoder=True)
        self._layers = decoder_layers(model, name)
        self._check()
        self._caches: dict[int, DynamicCache] = {}
        self._captured: dict[int, torch.Tensor] = {}
        self._hooks = [self._capture(layer) for layer in self.layer_ids]
        parameters = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._keeps_logits = "logits_to_keep" in parameters

    @property
    def vocab_size(self) -> int:
        return int(self.config.vocab_size)

    @property
    def hidden_size(self) -> int:
        return int(self.config.hidden_size)

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    @property
    def max_positions(self) -> int | None:
        return getattr(self.config, "max_position_embeddings", None)

    @property
    def stop_ids(self) -> list[Any]:
        """What the model's generation config, or else its config, names as end of text; unchecked (pair.py)."""
        generation = getattr(self.model, "generation_config", None)
        ids = getattr(generation, "eos_token_id", None)
        ids = self.config.eos_token_id if ids is None else ids
        return [] if ids is None else list(ids) if isinstance(ids, list | tuple) else [ids]

    @property
    def stop_tokens(self) -> frozenset[int]:
        """Ids that end the text."""
        return frozenset(self.stop_ids)

    def open(self, request: int) -> None:
        assert request not in self._caches, f"request {request} is open"
        # Without a config every layer keeps all positions; sliding layers mask instead of dropping, so they can be cut.
        self._caches[request] = DynamicCache()

    def close(self, request: int) -> None:
        del self._caches[request]

    def length(self, request: int) -> int:
        """Positions in a request's cache."""
        return int(self._caches[request].get_seq_length())

    def fork(self, source: int, request: int, length: int) -> None:
        assert length <= self.length(source), f"request {source} has {self.length(source)} positions, not {length}"
        self.open(request)
        layers: list[Any] = self._caches[source].layers
        for index, layer in enumerate(layers):
            if layer.get_seq_length() == 0:  # a layer that shares another's K/V
                continue
            keys, values = (state[..., :length, :].clone() for state in (layer.keys, layer.values))
            self._caches[request].update(keys, values, index)

    def truncate(self, request: int, length: int) -> None:
        surplus = self.length(request) - length
        assert surplus >= 0, f"request {request} has {self.length(request)} positions, not {length}"
        if surplus:
            self._caches[request].crop(-surplus)

    def forward(self, rows: Sequence[TargetRows]) -> list[TargetOutput]:
        return [self._forward_one(request) for request in rows]

    @torch.inference_mode()
    def _forward_one(self, rows: TargetRows) -> TargetOutput:
        cache = self._caches[rows.request]
        assert rows.start == cache.get_seq_length(), f"{rows.start} is not the end of request {rows.request}"
        device = self.model.device
        count = len(rows.tokens)
        arguments: dict[str, Any] = {self._cache_argument: cache, "use_cache": True}
        if self._keeps_logits:
            arguments["logits_to_keep"] = max(rows.logits, 1)  # 0 would mean all
        self._captured.clear()
        logits = self.model(
            input_ids=torch.tensor([rows.tokens], device=device),
            position_ids=torch.arange(rows.start, rows.start + count, device=device)[None],
            **arguments,
        ).logits[0]
        logits = logits[logits.shape[0] - rows.logits :]
        features = None
        if rows.features:
            features = torch.cat([self._captured[layer][0] for layer in self.layer_ids], dim=-1)
        self._captured.clear()
        return TargetOutput(rows.request, logits if logits.dtype == torch.float64 else logits.float(), features)

    def _capture(self, layer: int) -> Any:
        """Hook that keeps the residual stream after `layer` (or before layer 0)."""
        if layer == EMBEDDING_LAYER:

            def keep_input(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                self._captured[layer] = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]

            return self._layers[0].register_forward_pre_hook(keep_input, with_kwargs=True)

        def keep_output(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
            self._captured[layer] = output[0] if isinstance(output, tuple) else output

        return self._layers[layer].register_forward_hook(keep_output)

    def _check(self) -> None:
        kinds = set(getattr(self.config, "layer_types", None) or ()) - CROPPABLE_LAYERS
        if kinds:
            raise UnsupportedCheckpoint(
                "the target's state cannot be cut back to the accepted tokens",
                [Fault(f"{self.name}: layer_types", ", ".join(sorted(kinds)), ", ".join(sorted(CROPPABLE_LAYERS)))],
            )
        outside = [layer for layer in self.layer_ids if not EMBEDDING_LAYER <= layer < self.num_layers]
        if outside:
            wanted = f"-1 (embedding) to {self.num_layers - 1}, the target's layers"
            raise InputError(
                "the drafter wants features of layers that the target does not have",
                [Fault(f"drafter: target_layer_ids, for target {self.name}", str(outside), wanted)],
            )


def decoder_layers(model: PreTrainedModel, name: str = "target") -> nn.ModuleList:
    """The decoder layers of a causal language model, also inside a vision-language wrapper.

    Raises `UnsupportedCheckpoint` where no list of the configured length is found.
    """
    wanted = model.config.get_text_config(decoder=True).num_hidden_layers
    decoder = model.get_decoder()
    candidates = [getattr(decoder, "layers", None), *(m for n, m in model.named_modules() if n.endswith("layers"))]
    for layers in candidates:
        if isinstance(layers, nn.ModuleList) and len(layers) == wanted:
            return layers
    raise UnsupportedCheckpoint(
        "no decoder layers to capture features from",
        [Fault(f"{name}: model", type(model).__name__, f"a module list `layers` of {wanted} decoder layers")],
    )
