"""Every error a user can cause, with the place, the value found and the value wanted.

The command line prints the message of a `MonodraftError` and leaves with its `exit_code`; anything else
is a defect of ours and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def visible(text: str) -> str:
    """Text that came from a file or a path, safe for a terminal of any encoding: what does not print is escaped
    (escape sequences, halves of surrogate pairs); newlines stay."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


@dataclass(frozen=True)
class Fault:
    """One thing wrong with an input: `where` (file, and tensor or field), what was `found`, what was `wanted`."""

    where: str
    found: str
    wanted: str

    def __str__(self) -> str:
        return f"{self.where}: found {self.found}, wanted {self.wanted}"


class MonodraftError(Exception):
    """Base of all errors that a user can cause and mend."""

    exit_code = 2

    def __init__(self, message: str, faults: Sequence[Fault] = ()) -> None:
        self.faults = tuple(faults)
        lines = [message, *(f"  {fault}" for fault in self.faults)]
        super().__init__(visible("\n".join(lines)))


class ConfigError(MonodraftError):
    """A `config.json` that is malformed, incomplete or contradicts itself."""


class UnsupportedCheckpoint(MonodraftError):
    """A checkpoint that is well formed but that we refuse, with the reason."""


class CheckpointError(MonodraftError):
    """A tensor file that is truncated, corrupt, or whose tensors are not the ones that the config asks for."""


class InputError(MonodraftError):
    """A prompt, token id, option or output path that cannot be used."""


class StepFailed(MonodraftError):
    """A draft step that ended in a bounded wait, naming the rank and the place of the first failure."""


class KernelError(MonodraftError):
    """A geometry, an argument of a device helper or a launch argument that cannot work; raised before anything runs."""
