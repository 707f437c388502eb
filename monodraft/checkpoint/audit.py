"""Compares the tensors of a folder with those that its config asks for, from headers alone, all faults at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.layout import Layout, TensorSpec, detect_layout, ignored_reason, tensor_specs
from monodraft.checkpoint.reading import read_config
from monodraft.checkpoint.stored import StoredTensor, stored_tensors
from monodraft.errors import CheckpointError, Fault


@dataclass(frozen=True)
class Audit:
    """A folder whose tensors are the ones its config asks for.

    `tensors` maps roles (layout.py) to where their bytes are; `ignored` maps names of tensors that are not read to the
    reason; `from_target` are the roles ("embed", "lm_head") that the drafter leaves to its target.
    """

    folder: Path
    config: DraftConfig
    layout: Layout
    tensors: Mapping[str, StoredTensor]
    ignored: Mapping[str, str]
    from_target: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors that are read."""
        return sum(tensor.size for tensor in self.tensors.values())


def _compare(spec: TensorSpec, stored: StoredTensor) -> list[Fault]:
    where = f"{stored.path}: {spec.name}"
    faults = []
    if stored.shape != spec.shape:
        faults.append(Fault(where, f"shape {list(stored.shape)}", f"shape {list(spec.shape)}"))
    if stored.dtype not in spec.dtypes:
        faults.append(Fault(where, f"dtype {stored.dtype}", f"dtype {' or '.join(spec.dtypes)}"))
    return faults


def _unexpected(name: str, stored: StoredTensor) -> Fault:
    if name.split(".")[-1] == "d2t":
        return Fault(f"{stored.path}: {name}", "a d2t map", "the target's whole vocabulary (reduced ones are refused)")
    return Fault(f"{stored.path}: {name}", f"an unexpected {stored.dtype} {list(stored.shape)}", "no such tensor")


def audit(config: DraftConfig, stored: Mapping[str, StoredTensor], folder: Path) -> Audit:
    """Audit of `stored` against `config`; raises CheckpointError with every missing, unexpected, misshapen or wrongly
    typed tensor."""
    layout = detect_layout(stored.keys(), config.family)
    specs = tensor_specs(config, layout)
    faults = []
    tensors: dict[str, StoredTensor] = {}
    for spec in specs:
        if spec.name in stored:
            tensors[spec.role] = stored[spec.name]
            faults += _compare(spec, stored[spec.name])
        elif not spec.shared:
            wanted = f"{' or '.join(spec.dtypes)} {list(spec.shape)}"
            faults.append(Fault(f"{folder}: {spec.name}", "nothing (missing)", wanted))
    expected = {spec.name for spec in specs}
    ignored = {}
    for name in sorted(stored.keys() - expected):
        reason = ignored_reason(name)
        if reason is None:
            faults.append(_unexpected(name, stored[name]))
        else:
            ignored[name] = reason
    if faults:
        raise CheckpointError(f"{folder} is not the checkpoint that its config.json describes", faults)
    missing = tuple(spec.role for spec in specs if spec.shared and spec.name not in stored)
    return Audit(folder, replace(config, ships_embeddings=not missing), layout, tensors, ignored, missing)


def audit_folder(folder: str | Path) -> Audit:
    """Audit of the drafter in `folder`: config, then every tensor. Raises ConfigError, UnsupportedCheckpoint or
    CheckpointError; nothing is allocated."""
    folder = Path(folder)
    return audit(read_config(folder), stored_tensors(folder), folder)
