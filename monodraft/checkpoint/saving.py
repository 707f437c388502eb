"""`save_drafter`: weights in memory to a folder in the family's released layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.layout import tensor_specs
from monodraft.checkpoint.loading import disassemble
from monodraft.checkpoint.reading import CONFIG, write_config
from monodraft.checkpoint.shards import index_json, shard_names, split_into_shards
from monodraft.checkpoint.stored import INDEX
from monodraft.checkpoint.weights import DraftWeights


def named_tensors(config: DraftConfig, weights: DraftWeights) -> dict[str, torch.Tensor]:
    """File name to tensor, with the dtypes of the file; embedding and LM head where `config.ships_embeddings`."""
    tensors = disassemble(weights)
    named = {}
    for spec in tensor_specs(config):
        if spec.shared and not config.ships_embeddings:
            continue
        tensor = tensors[spec.role].contiguous()
        named[spec.name] = tensor.view(torch.float8_e4m3fn) if spec.dtypes == ("F8_E4M3",) else tensor
    return named


def save_drafter(
    folder: str | Path, config: DraftConfig, weights: DraftWeights, max_shard_size: int | None = None
) -> None:
    """Write `config.json` and the tensors into `folder` (made if need be), sharded where `max_shard_size` bytes say so.

    Not atomic: for a finished checkpoint that may replace another, see `pack`.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = named_tensors(config, weights)
    sizes = {name: tensor.nbytes for name, tensor in tensors.items()}
    shards = split_into_shards(sizes, max_shard_size)
    files = shard_names(len(shards))
    for file, names in zip(files, shards, strict=True):
        save_file(_unaliased({name: tensors[name] for name in names}), folder / file, metadata={"format": "pt"})
    if len(files) > 1:
        (folder / INDEX).write_text(index_json(sizes, shards))
    (folder / CONFIG).write_text(json.dumps(write_config(config), indent=2) + "\n")


def _unaliased(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors with a storage each: a tied embedding is written twice, as the format wants."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        pointer = tensor.untyped_storage().data_ptr()
        result[name] = tensor.clone() if pointer in seen else tensor
        seen.add(pointer)
    return result
