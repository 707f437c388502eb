"""What a drafter shares with its target: the embedding and the LM head, found in the target's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.fields import ABSENT, Reader
from monodraft.checkpoint.layout import FLOATS
from monodraft.checkpoint.reading import CONFIG, load_json
from monodraft.checkpoint.stored import StoredTensor, stored_tensors
from monodraft.errors import CheckpointError, Fault

NAMES = {
    "embed": (
        "language_model.model.embed_tokens.weight",
        "model.language_model.embed_tokens.weight",
        "model.embed_tokens.weight",
        "embed_tokens.weight",
    ),
    "lm_head": ("language_model.lm_head.weight", "lm_head.weight"),
}
"""Where targets keep the two tensors, most specific first."""

TIED_BY_DEFAULT = ("gemma",)
"""Families of targets whose config leaves out `tie_word_embeddings` because true is their default."""


def _fact(reader: Reader, name: str) -> tuple[str, Any]:
    return next(iter(reader.spellings((name,)).items()), (name, ABSENT))


def _agreement(config: DraftConfig, reader: Reader) -> list[Fault]:
    """Faults where target and drafter cannot belong together."""
    faults = []
    for name, size in (("hidden_size", config.hidden_size), ("vocab_size", config.vocab_size)):
        path, found = _fact(reader, name)
        if found != size:
            shown = "nothing" if found is ABSENT else str(found)
            faults.append(Fault(f"{reader.place}: {path}", shown, f"{size}, the drafter's {name}"))
    path, layers = _fact(reader, "num_hidden_layers")
    if isinstance(layers, int) and config.target_layer_ids[-1] >= layers:
        wanted = f"more than {config.target_layer_ids[-1]}, the last of the drafter's target_layer_ids"
        faults.append(Fault(f"{reader.place}: {path}", str(layers), wanted))
    return faults


def _is_tied(reader: Reader) -> bool:
    _, tied = _fact(reader, "tie_word_embeddings")
    _, kind = _fact(reader, "model_type")
    return tied is True or (tied is ABSENT and str(kind).startswith(TIED_BY_DEFAULT))


def shared_tensors(folder: str | Path, config: DraftConfig) -> Mapping[str, StoredTensor]:
    """The target's "embed" and "lm_head" [V, H] (one and the same where the target ties them), from headers alone.

    Raises CheckpointError with all faults: hidden size, vocabulary or layer count that differ from the drafter's (both
    values named), a tensor that is missing, misshapen or of another dtype.
    """
    folder = Path(folder)
    reader = Reader(load_json(folder / CONFIG), str(folder / CONFIG), roots=("text_config", ""))
    faults = _agreement(config, reader)
    stored = stored_tensors(folder, only=[name for names in NAMES.values() for name in names])
    found: dict[str, StoredTensor] = {}
    for role, names in NAMES.items():
        tensor = next((stored[name] for name in names if name in stored), None)
        if tensor is None and role == "lm_head" and "embed" in found and _is_tied(reader):
            tensor = found["embed"]
        if tensor is None:
            tie = ", or tie_word_embeddings true" if role == "lm_head" else ""
            faults.append(Fault(str(folder), "nothing (missing)", f"{' or '.join(names)}{tie}"))
            continue
        found[role] = tensor
        where = f"{tensor.path}: {tensor.name}"
        if tensor.shape != (config.vocab_size, config.hidden_size):
            wanted = f"shape {[config.vocab_size, config.hidden_size]}, the drafter's vocabulary and hidden size"
            faults.append(Fault(where, f"shape {list(tensor.shape)}", wanted))
        if tensor.dtype not in FLOATS:
            faults.append(Fault(where, f"dtype {tensor.dtype}", f"dtype {' or '.join(FLOATS)}"))
    if faults:
        raise CheckpointError(f"{folder} is not this drafter's target", faults)
    return found
