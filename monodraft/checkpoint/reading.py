"""`read_config`: from a folder's `config.json` to a DraftConfig, by the dialect that its architecture names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.dialects import gemma4, minimax, qwen3
from monodraft.checkpoint.fields import ABSENT, Reader, show
from monodraft.checkpoint.refusals import refusals
from monodraft.errors import ConfigError, Fault, UnsupportedCheckpoint

CONFIG = "config.json"
DIALECTS = {dialect.ARCHITECTURE: dialect for dialect in (minimax, qwen3, gemma4)}


def load_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; raises ConfigError where it is missing, unreadable or no object."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"{path.name} cannot be read", [Fault(str(path), error.strerror or str(error), "a file")]
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path.name} is not JSON", [Fault(str(path), str(error), "a JSON object")]) from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path.name} is not a JSON object", [Fault(str(path), show(value), "a JSON object")])
    return value


def config_from_dict(raw: Mapping[str, Any], place: str = CONFIG) -> DraftConfig:
    """DraftConfig from a parsed `config.json`; `place` names it in errors.

    Raises UnsupportedCheckpoint with every reason to refuse it, or ConfigError with every fault in it.
    """
    reader = Reader(raw, place)
    reader.check_sections()
    reasons = refusals(reader)
    if reasons:
        raise UnsupportedCheckpoint("this drafter is not supported", reasons)
    names = reader.at("architectures")
    supported = ", ".join(sorted(DIALECTS))
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise ConfigError(
            f"{place} names no architecture", [Fault(f"{place}: architectures", show(names), f"one of {supported}")]
        )
    if names[0] not in DIALECTS:
        raise UnsupportedCheckpoint(
            "this drafter is not supported",
            [Fault(f"{place}: architectures", show(names[0]), f"a drafter we know: {supported}")],
        )
    return DIALECTS[names[0]].read(reader)


def read_config(folder: str | Path) -> DraftConfig:
    """DraftConfig of the drafter in `folder`, from its `config.json` alone (no tensor file is opened).

    Raises ConfigError or UnsupportedCheckpoint. A target's folder that has its drafter in `dspark/` is refused with
    that hint. `ships_embeddings` is what the family does; `load_drafter` corrects it by the tensors.
    """
    folder = Path(folder)
    raw = load_json(folder / CONFIG)
    nested = folder / "dspark" / CONFIG
    if "DSpark" not in show(raw.get("architectures")) and nested.is_file():
        raise UnsupportedCheckpoint(
            "this is a target's folder",
            [Fault(str(folder), show(raw.get("architectures", ABSENT)), f"the drafter's own folder: {nested.parent}")],
        )
    return config_from_dict(raw, str(folder / CONFIG))


def write_config(config: DraftConfig) -> dict[str, Any]:
    """A `config.json`, as the family's vendor writes it, that reads back as `config`."""
    return DIALECTS[config.architecture].write(config)
