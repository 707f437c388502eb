"""What a checkpoint says: config, tensor names, audit, loading, packing (docs/checkpoint.md).

`read_config` and `audit_folder` need no torch; `load_drafter` and `save_drafter` import it when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from monodraft.checkpoint.audit import Audit, audit_folder
from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.reading import config_from_dict, read_config, write_config

if TYPE_CHECKING:
    from monodraft.checkpoint.loading import load_drafter
    from monodraft.checkpoint.saving import save_drafter

_LAZY = {"load_drafter": "loading", "save_drafter": "saving"}

__all__ = [
    "Audit",
    "DraftConfig",
    "audit_folder",
    "config_from_dict",
    "load_drafter",
    "read_config",
    "save_drafter",
    "write_config",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"monodraft.checkpoint.{_LAZY[name]}"), name)
    raise AttributeError(name)
