"""How tensors are spread over the files of one checkpoint (not over ranks: that is `monodraft.plan`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from monodraft.checkpoint.stored import SINGLE


def split_into_shards(sizes: Mapping[str, int], max_shard_size: int | None) -> list[list[str]]:
    """Names in order, cut into runs of at most `max_shard_size` bytes (a larger tensor gets a file of its own)."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if max_shard_size is not None and shards[-1] and filled + size > max_shard_size:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def shard_names(count: int) -> list[str]:
    """File names of `count` shards, as transformers writes them."""
    if count == 1:
        return [SINGLE]
    return [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]


def index_json(sizes: Mapping[str, int], shards: Sequence[Sequence[str]]) -> str:
    """Text of `model.safetensors.index.json`."""
    files = shard_names(len(shards))
    weight_map = {name: file for file, names in zip(files, shards, strict=True) for name in names}
    index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
    return json.dumps(index, indent=2) + "\n"
