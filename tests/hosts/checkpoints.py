"""Small random drafters of every supported family, written as their vendors release them and loaded from there."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any

import torch

from monodraft.checkpoint import load_drafter
from monodraft.checkpoint.config import DraftConfig, Family
from monodraft.checkpoint.weights import DraftWeights
from monodraft.testing import (
    nvidia_m3_config,
    random_config,
    random_weights,
    write_checkpoint,
    write_modelopt_checkpoint,
    write_target,
)


class Release(StrEnum):
    """Supported drafters by who releases them."""

    MINIMAX_M31 = "minimax-m31"
    QWEN3 = "qwen3"
    NVIDIA_M3 = "nvidia-m3"
    MINICPM5 = "minicpm5"


def release_config(release: Release, **overrides: Any) -> DraftConfig:
    """A small drafter of the release; MiniCPM5's, as released, has few K/V heads: ranks above 2 share them."""
    if release is Release.NVIDIA_M3:
        return nvidia_m3_config(**overrides)
    few = {"num_kv_heads": 2} if release is Release.MINICPM5 else {}
    return random_config(Family(release), **(few | overrides))


def released(release: Release, folder: Path, seed: int = 0, **overrides: Any) -> tuple[DraftConfig, DraftWeights]:
    """Config and weights of a small random drafter, written below `folder` in its vendor's dialect, names and dtypes,
    with a target to take shared tensors from, and read back by `load_drafter`. nvidia's is float32, all bits in use."""
    config = release_config(release, **overrides)
    modelopt = release is Release.NVIDIA_M3
    weights = random_weights(config, seed, dtype=torch.float32 if modelopt else torch.bfloat16)
    (write_modelopt_checkpoint if modelopt else write_checkpoint)(folder / "drafter", config, weights)
    write_target(folder / "target", config, weights)
    return load_drafter(folder / "drafter", folder / "target")
