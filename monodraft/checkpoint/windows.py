"""Which layers see only a sliding window: `layer_types`, `sliding_window`, `use_sliding_window`, `dflash_config`.

null, 0 and absent are three things (docs/checkpoint.md): null says "no window", 0 is a mistake, an absent window is an
error where a layer slides. Whatever could drop a trained window in silence is a contradiction that names both fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class _Facts:
    """What a config says about windows, each with the path where it says it."""

    types_path: str
    kinds: Any
    window_path: str
    raw_window: Any
    use_path: str
    use: Any
    use_exported: Any


EXPORTED, USE_EXPORTED = "dflash_config.swa_window_size", "dflash_config.use_swa"


def _exported_window(reader: Reader, facts: _Facts, window: int | None) -> int | None:
    """ModelOpt's window; faults where its three fields contradict one another."""
    before = len(reader.faults)
    exported = _window(reader, EXPORTED)
    for path, flag in ((facts.use_path, facts.use), (USE_EXPORTED, facts.use_exported)):
        if flag is not ABSENT and not isinstance(flag, bool):
            reader.fault(path, flag, "true or false")
    if facts.use_exported is True and exported is None and len(reader.faults) == before:
        reader.contradiction(USE_EXPORTED, EXPORTED, "a window where it is used")
    if facts.use_exported is False and exported is not None:
        reader.contradiction(USE_EXPORTED, EXPORTED, "no window where none is used")
    if window is not None and exported is not None and window != exported:
        reader.contradiction(facts.window_path, EXPORTED, "the same window in both")
    return exported


def _check_sliding(reader: Reader, facts: _Facts, window: int | None) -> None:
    """Faults where `layer_types` has sliding layers and the rest denies them their window."""
    if facts.use is False:
        reader.contradiction(
            facts.types_path, facts.use_path, "use_sliding_window true, or full_attention in every layer"
        )
    if window is None and facts.raw_window is ABSENT:
        reader.fault(facts.window_path, ABSENT, f"a window, since {facts.types_path} has sliding_attention")
    elif window is None:
        reader.contradiction(facts.types_path, facts.window_path, "a window, since a layer has sliding_attention")


def _check_full(reader: Reader, facts: _Facts, window: int | None) -> None:
    """Faults where `layer_types` has only full layers and the rest speaks of a window in use."""
    if facts.use_exported is True:
        reader.contradiction(facts.types_path, USE_EXPORTED, "sliding_attention in every layer")
    elif facts.use is True:
        reader.contradiction(
            facts.types_path, facts.use_path, "a layer with sliding_attention, or use_sliding_window false"
        )
    elif window is not None and facts.use is ABSENT:
        reader.contradiction(facts.types_path, facts.window_path, "a layer with sliding_attention, or a window of null")


def _uniform(reader: Reader, facts: _Facts, window: int | None) -> int | None:
    """The window of every layer where there is no `layer_types`."""
    if facts.use_exported is True:
        return window
    if facts.use is True and window is None:
        reader.contradiction(facts.use_path, facts.window_path, "a window where it is used")
    elif window is not None and facts.use is not False:
        # transformers would derive layer types from max_window_layers here; the drafter's trained pattern is not known.
        reader.fault("layer_types", ABSENT, f"one entry a layer, since {facts.window_path} is {window}")
    return None


def read_windows(reader: Reader, num_layers: int | None) -> tuple[int | None, ...]:
    """Window of each layer in tokens, None for full attention. Faults go to the reader.

    `num_layers` is None where that field itself had a fault: the result is then meaningless, the faults are not.
    """
    before = len(reader.faults)
    types, sliding, use = (_spelled(reader, name) for name in ("layer_types", "sliding_window", "use_sliding_window"))
    facts = _Facts(*types, *sliding, *use, reader.at(USE_EXPORTED))
    window = _window(reader, facts.window_path)
    exported = _exported_window(reader, facts, window)
    kinds = None if facts.kinds is ABSENT else _layer_types(reader, facts.types_path, facts.kinds, num_layers)
    if len(reader.faults) > before:
        return (None,) * (num_layers or 0)
    # Qwen3Config saves null in sliding_window unless use_sliding_window: the exporter's own window then speaks.
    window = window if exported is None else exported
    if kinds is None:
        return (_uniform(reader, facts, window),) * (num_layers or 0)
    check = _check_sliding if "sliding_attention" in kinds else _check_full
    check(reader, facts, window)
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
