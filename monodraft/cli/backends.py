"""Backends of rooms that the loop does not know, made known to it. The rooms are imported when one is used."""

from __future__ import annotations

import importlib.util
from typing import Any

from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.weights import DraftWeights
from monodraft.drafter import Drafter
from monodraft.errors import Fault, InputError
from monodraft.loop.backends import Backend, backend_names, register_backend


def _make_executor(config: DraftConfig, weights: DraftWeights, **options: Any) -> Drafter:
    from monodraft.hosts.executor_drafter import ExecutorDrafter

    return ExecutorDrafter(config, weights, **options)


def _executor_unavailable() -> str | None:
    if importlib.util.find_spec("flydsl") is None:
        return 'FlyDSL is not installed (pip install "monodraft[gfx950]")'
    return None


def _make_rocm(config: DraftConfig, weights: DraftWeights, **options: Any) -> Drafter:
    """The HIP host. Written to be run, NOT run by us."""
    from monodraft.hosts.hip_drafter import HipDrafter

    return HipDrafter(config, weights, **options)


def _rocm_unavailable() -> str | None:
    from monodraft.hosts.hip_library import missing

    return _executor_unavailable() or missing()


def _make_hopper(
    config: DraftConfig,
    weights: DraftWeights,
    *,
    numerics: str = "bf16",
    ranks: int = 1,
    device: str = "cuda",
    max_requests: int = 16,
    positions: int | None = None,
    **options: Any,
) -> Drafter:
    from monodraft.hopper.drafter import HopperDrafter

    faults = []
    if numerics not in ("bf16", "w8a16"):
        faults.append(Fault("--numerics", numerics, "bf16 or w8a16"))
    if not str(device).startswith("cuda"):
        faults.append(Fault("--device", str(device), "cuda, where the Hopper kernels run"))
    if faults:
        raise InputError("the Hopper backend cannot run this", faults)
    if positions is not None:  # it counts the context alone, without the block behind it
        options["max_positions"] = min(positions, config.max_positions) - config.block_size
    return HopperDrafter(config, weights, mxfp8=numerics == "w8a16", max_requests=max_requests, ranks=ranks, **options)


def _hopper_unavailable() -> str | None:
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        return 'the CUDA packages are not installed (pip install "monodraft[hopper]")'
    import torch

    if not torch.cuda.is_available():
        return "there is no NVIDIA GPU"
    major, minor = torch.cuda.get_device_capability()
    return None if (major, minor) == (9, 0) else f"the GPU is sm_{major}{minor}, the kernels are for sm_90 (Hopper)"


def register_all() -> None:
    """Register every backend of the package; a second call changes nothing."""
    if "executor" not in backend_names():
        register_backend("executor", Backend(_make_executor, _executor_unavailable))
        register_backend("hopper", Backend(_make_hopper, _hopper_unavailable))
        register_backend("rocm", Backend(_make_rocm, _rocm_unavailable))
