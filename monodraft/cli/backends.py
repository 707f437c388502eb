"""Backends of rooms that the loop does not know, made known to it. The rooms are imported when one is used."""

from __future__ import annotations

import importlib.util
from typing import Any

from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.weights import DraftWeights
from monodraft.drafter import Drafter
from monodraft.loop.backends import Backend, backend_names, register_backend


def _make_executor(config: DraftConfig, weights: DraftWeights, **options: Any) -> Drafter:
    from monodraft.hosts.executor_drafter import ExecutorDrafter

    return ExecutorDrafter(config, weights, **options)


def _executor_unavailable() -> str | None:
    if importlib.util.find_spec("flydsl") is None:
        return 'FlyDSL is not installed (pip install "monodraft[gfx950]")'
    return None


def register_all() -> None:
    """Register every backend of the package; a second call changes nothing."""
    if "executor" not in backend_names():
        register_backend("executor", Backend(_make_executor, _executor_unavailable))
