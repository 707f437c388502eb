"""Which layers see only a sliding window: `layer_types`, `sliding_window`, `use_sliding_window`, `dflash_config`.

null, 0 and absent are three things (docs/checkpoint.md): null says "no window", 0 is a mistake, an absent window is an
error where a layer slides. Whatever could drop a trained window in silence is a contradiction that names both fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monodraft.checkpoint.fields import ABSENT, Reader, show

KINDS = ("full_attention", "sliding_attention")


def _positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _spelled(reader: Reader, name: str) -> tuple[str, Any]:
    """Full path and value of a field that may be at several roots; contradictions among them are noted."""
    found = reader.spellings((name,))
    if not found:
        return name, ABSENT
    (path, value), *others = found.items()
    for other, another in others:
        if another != value:
            reader.contradiction(path, other, "the same value in both")
    return path, value


def _window(reader: Reader, path: str) -> int | None:
    """The window at `path`; faults for 0 and for what is not a number, None for null and absent."""
    value = reader.at(path)
    if value is ABSENT or value is None:
        return None
    if not _positive(value):
        reader.fault(path, value, "a positive window in tokens, or null for full attention (0 is neither)")
        return None
    return int(value)


def _layer_types(reader: Reader, path: str, kinds: Any, num_layers: int | None) -> Sequence[str] | None:
    """`layer_types` if it is one known kind for each layer, else None after noting a fault."""
    if not isinstance(kinds, list) or any(kind not in KINDS for kind in kinds):
        reader.fault(path, kinds, f"a list of {' or '.join(show(kind) for kind in KINDS)}")
        return None
    if num_layers is not None and len(kinds) != num_layers:
        reader.fault(path, len(kinds), f"{num_layers} entries, one a layer (num_hidden_layers)")
        return None
    return kinds


def read_windows(reader: Reader, num_layers: int | None) -> tuple[int | None, ...]:
    """Window of each layer in tokens, None for full attention. Faults go to the reader.

    `num_layers` is None where that field itself had a fault: the result is then meaningless, the faults are not.
    """
    types_path, kinds = _spelled(reader, "layer_types")
    window_path, raw_window = _spelled(reader, "sliding_window")
    use_path, use = _spelled(reader, "use_sliding_window")
    before = len(reader.faults)
    window = _window(reader, window_path)
    exported = _window(reader, "dflash_config.swa_window_size")
    use_exported = reader.at("dflash_config.use_swa")
    for path, flag in ((use_path, use), ("dflash_config.use_swa", use_exported)):
        if flag is not ABSENT and not isinstance(flag, bool):
            reader.fault(path, flag, "true or false")
    if use_exported is True and exported is None and len(reader.faults) == before:
        reader.contradiction("dflash_config.use_swa", "dflash_config.swa_window_size", "a window where it is used")
    if use_exported is False and exported is not None:
        reader.contradiction("dflash_config.use_swa", "dflash_config.swa_window_size", "no window where none is used")
    if window is not None and exported is not None and window != exported:
        reader.contradiction(window_path, "dflash_config.swa_window_size", "the same window in both")
    if kinds is not ABSENT:
        kinds = _layer_types(reader, types_path, kinds, num_layers)
    if len(reader.faults) > before or kinds is None:
        return (None,) * (num_layers or 0)
    # Qwen3Config saves null in sliding_window unless use_sliding_window: the exporter's own window then speaks.
    window = exported if exported is not None else window
    if kinds is ABSENT:
        return (_uniform(reader, window_path, use_path, window, use, use_exported),) * (num_layers or 0)
    slides = "sliding_attention" in kinds
    if slides and use is False:
        reader.contradiction(types_path, use_path, "use_sliding_window true, or full_attention in every layer")
    if slides and window is None:
        if raw_window is ABSENT:
            reader.fault(window_path, ABSENT, f"a window, since {types_path} has sliding_attention")
        else:
            reader.contradiction(types_path, window_path, "a window, since a layer has sliding_attention")
    if not slides and use_exported is True:
        reader.contradiction(types_path, "dflash_config.use_swa", "sliding_attention in every layer")
    elif not slides and use is True:
        reader.contradiction(types_path, use_path, "a layer with sliding_attention, or use_sliding_window false")
    elif not slides and window is not None and use is ABSENT:
        reader.contradiction(types_path, window_path, "a layer with sliding_attention, or a window of null")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _uniform(
    reader: Reader, window_path: str, use_path: str, window: int | None, use: Any, use_exported: Any
) -> int | None:
    """The window of every layer where there is no `layer_types`."""
    if use_exported is True:
        return window
    if use is True and window is None:
        reader.contradiction(use_path, window_path, "a window where it is used")
    elif window is not None and use is not False:
        # transformers would derive layer types from max_window_layers here; the drafter's trained pattern is not known.
        reader.fault("layer_types", ABSENT, f"one entry a layer, since {window_path} is {window}")
    return None
