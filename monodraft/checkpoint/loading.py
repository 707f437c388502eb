"""`load_drafter`: memory-mapped weights of an audited folder, with embedding and LM head from the target if need be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from monodraft.checkpoint import finite
from monodraft.checkpoint.audit import Audit, audit_folder
from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.stored import StoredTensor
from monodraft.checkpoint.target import shared_tensors
from monodraft.checkpoint.weights import DraftWeights, LayerWeights, Matrix, Mxfp8Matrix
from monodraft.errors import CheckpointError, Fault

Target = str | Path | tuple[torch.Tensor, torch.Tensor]
"""A target's folder, or its embedding and LM head as already loaded."""


def assemble(config: DraftConfig, tensors: Mapping[str, torch.Tensor]) -> DraftWeights:
    """DraftWeights from tensors by role (layout.py); "layers.N.v" may be left out where K and V share a projection."""
    layers = []
    for index in range(config.num_layers):
        root = f"layers.{index}."
        parts: dict[str, Matrix] = {}
        for role in (f.name for f in fields(LayerWeights)):
            if root + role in tensors:
                scales = tensors.get(f"{root}{role}.scales")
                plain = tensors[root + role]
                parts[role] = (
                    plain if scales is None else Mxfp8Matrix(plain.view(torch.uint8), scales.view(torch.uint8))
                )
        if config.shared_kv_projection:
            parts["v"] = parts["k"]
        layers.append(LayerWeights(**parts))  # type: ignore[arg-type]
    rest = {f.name: tensors[f.name] for f in fields(DraftWeights) if f.name in tensors}
    return DraftWeights(layers=tuple(layers), **rest)


def disassemble(weights: DraftWeights) -> dict[str, torch.Tensor]:
    """Tensors by role, the inverse of `assemble` (a shared K and V projection appears once)."""
    tensors: dict[str, torch.Tensor] = {}
    for index, layer in enumerate(weights.layers):
        for role in (f.name for f in fields(LayerWeights)):
            value = getattr(layer, role)
            if value is None or (role == "v" and value is layer.k):
                continue
            name = f"layers.{index}.{role}"
            if isinstance(value, Mxfp8Matrix):
                tensors[name] = value.elements
                tensors[f"{name}.scales"] = value.scales
            else:
                tensors[name] = value
    for field in fields(DraftWeights):
        value = getattr(weights, field.name)
        if field.name != "layers" and value is not None:
            tensors[field.name] = value
    return tensors


def _map_tensors(tensors: Mapping[str, StoredTensor]) -> dict[str, torch.Tensor]:
    """Role to memory-mapped tensor."""
    mapped: dict[str, torch.Tensor] = {}
    for path in {tensor.path for tensor in tensors.values()}:
        try:
            with safe_open(path, framework="pt") as file:
                for role, tensor in tensors.items():
                    if tensor.path == path:
                        mapped[role] = file.get_tensor(tensor.name)
        except (SafetensorError, OSError) as error:
            # The audit has passed it: the file changed meanwhile, or the library is stricter in something.
            fault = Fault(str(path), str(error), "the file that was audited")
            raise CheckpointError(f"{path.name} cannot be mapped", [fault]) from error
    return mapped


def _given(config: DraftConfig, target: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Embedding and LM head as given; raises CheckpointError where their shapes are not the drafter's."""
    wanted = (config.vocab_size, config.hidden_size)
    given = dict(zip(("embed", "lm_head"), target, strict=True))
    faults = [
        Fault(
            f"target {role}",
            f"shape {list(tensor.shape)}",
            f"shape {list(wanted)}, the drafter's vocabulary and hidden size",
        )
        for role, tensor in given.items()
        if tuple(tensor.shape) != wanted
    ]
    if faults:
        raise CheckpointError("this is not the drafter's target", faults)
    return given


def _from_target(audited: Audit, target: Target | None) -> tuple[dict[str, torch.Tensor], list[StoredTensor]]:
    """What the drafter leaves to the target, by role, and the stored tensors behind it."""
    if target is None:
        if not audited.from_target:
            return {}, []
        fault = Fault(
            str(audited.folder), f"no {' and no '.join(audited.from_target)}", "the target's folder as `target`"
        )
        raise CheckpointError("this drafter shares tensors with its target", [fault])
    if isinstance(target, tuple):
        given = _given(audited.config, target)
        return {role: given[role] for role in audited.from_target}, []
    shared = shared_tensors(target, audited.config)
    needed = {role: shared[role] for role in audited.from_target}
    return _map_tensors(needed), list({tensor.name: tensor for tensor in needed.values()}.values())


def load_drafter(
    folder: str | Path, target: Target | None = None, *, check_finite: bool = True
) -> tuple[DraftConfig, DraftWeights]:
    """Config and memory-mapped weights of the drafter in `folder`.

    `target`: folder of the target (or its embedding and LM head [V, H] as tensors), needed where the drafter ships none
    and otherwise only checked. `check_finite`: stream through all weights once and refuse NaN and infinity (scale byte
    255 counts; scale byte 0 is a value).

    Raises ConfigError, UnsupportedCheckpoint or CheckpointError with all faults, before anything is mapped.
    """
    audited = audit_folder(folder)
    shared, behind = _from_target(audited, target)
    if check_finite:
        finite.check_finite([*audited.tensors.values(), *behind])
    return audited.config, assemble(audited.config, _map_tensors(audited.tensors) | shared)
