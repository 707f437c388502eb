"""The interface of a verifying target: any causal language model that can forget its last tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class TargetRows:
    """Tokens of one request to run through the target at positions `start`, `start + 1`, ...

    `logits` is the number of last rows whose logits are wanted; `features` asks for the captured layers of all rows.
    """

    request: int
    start: int
    tokens: tuple[int, ...]
    logits: int = 1
    features: bool = True


@dataclass(frozen=True)
class TargetOutput:
    """`logits` float32 or float64 [rows.logits, V]; `features` [n, m * H], the raw residual stream after each
    captured layer, concatenated in id order, or None where it was not asked for."""

    request: int
    logits: torch.Tensor
    features: torch.Tensor | None


class TargetModel(Protocol):
    """A target with one KV cache a request. The result of a request never depends on the others in a call.

    `vocab_size`: width of the logits. `max_positions`: the longest text, or None for no limit.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_positions(self) -> int | None: ...

    def open(self, request: int) -> None:
        """Start a request with an empty cache."""
        ...

    def close(self, request: int) -> None:
        """Forget a request."""
        ...

    def fork(self, source: int, request: int, length: int) -> None:
        """Open `request` with the first `length` positions of `source`."""
        ...

    def truncate(self, request: int, length: int) -> None:
        """Keep the first `length` positions of a request; the rest are rejected drafts."""
        ...

    def forward(self, rows: Sequence[TargetRows]) -> list[TargetOutput]:
        """Append the rows to the caches; row i sees what precedes it. Each `start` is its cache's length."""
        ...
