"""The interface behind which any backend stands: the reference, the executor, a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from monodraft.checkpoint.config import DraftConfig


@dataclass(frozen=True)
class ContextRows:
    """Target features of newly committed positions of one request.

    `features` [S, m * H] bf16 (or wider): row s belongs to absolute position `start + s`.
    """

    request: int
    start: int
    features: torch.Tensor


@dataclass(frozen=True)
class Anchor:
    """Where a request drafts from: `token` sits at `position` and the target has not processed it yet.

    `temperature` 0 drafts greedily. `seed` keys the draws of a sampled draft: the same seed and position give
    the same tokens on every backend that implements the same numerics.
    """

    request: int
    token: int
    position: int
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Draft:
    """A block of drafted tokens for one request; row j is meant for position `anchor.position + 1 + j`.

    `tokens` int64 [g]; `logits` float32 [g, V], Markov-corrected, the very ones that were sampled from (None when the
    draft is greedy and the caller did not ask for them); `confidence` float32 [g], the logit of P(accepted | all
    earlier accepted), or None where the drafter has no confidence head.
    """

    request: int
    tokens: torch.Tensor
    logits: torch.Tensor | None
    confidence: torch.Tensor | None


@runtime_checkable
class Drafter(Protocol):
    """Propose and commit, for several requests at once.

    Invariant at `propose`: the rows committed for a request cover exactly positions 0 .. position - 1 (or the last
    window of them); nothing of an earlier block is ever read. A backend may queue what `commit` gives it and fold it
    into the next `propose` (the one-launch kernels do); the caller cannot tell the difference.

    Requests are small integers that the caller opens and closes. Errors are `monodraft.errors.InputError` for a call
    that breaks the contract (gap in positions, unknown request, id out of the vocabulary), raised before any state
    changes, and `StepFailed` for a step that did not complete.
    """

    @property
    def config(self) -> DraftConfig: ...

    def open(self, request: int) -> None:
        """Start a request with an empty context."""
        ...

    def close(self, request: int) -> None:
        """Forget a request and free its pages."""
        ...

    def fork(self, source: int, request: int, length: int) -> None:
        """Open `request` with the first `length` committed positions of `source` (prefix restore)."""
        ...

    def commit(self, rows: Sequence[ContextRows]) -> None:
        """Add context rows; each must start where its request's context ends."""
        ...

    def propose(self, anchors: Sequence[Anchor], *, logits: bool = False) -> list[Draft]:
        """Draft one block per anchor, in order. Sampled anchors carry logits; `logits` adds greedy ones."""
        ...
