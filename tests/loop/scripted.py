"""A target and drafters whose every answer is known, and that check the loop's invariant at every call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import torch

from monodraft.drafter import Anchor, ContextRows, Draft
from monodraft.loop.request import Request
from monodraft.loop.session import Session
from monodraft.loop.target_model import TargetOutput, TargetRows

History = tuple[int, ...]


def random_logits(history: History, vocab_size: int, purpose: int, scale: float = 2.0) -> torch.Tensor:
    """Logits [V] that depend on every token of the history and on nothing else."""
    seed = hash((history, purpose)) & (2**62 - 1)
    return torch.randn(vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


class ScriptedTarget:
    """A target whose logits are a function of the whole history. The feature row of a position is a ticket for the
    history up to and with that position, so whoever holds features can tell which text they belong to."""

    def __init__(
        self,
        vocab_size: int = 11,
        max_positions: int | None = None,
        logits: Callable[[History], torch.Tensor] | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.max_positions = max_positions
        self.logits = lru_cache(None)(logits or (lambda history: random_logits(history, vocab_size, 0)))
        self.caches: dict[int, list[int]] = {}
        self.widths: list[int] = []
        self._tickets: dict[History, int] = {}
        self._histories: list[History] = []

    def open(self, request: int) -> None:
        assert request not in self.caches
        self.caches[request] = []

    def close(self, request: int) -> None:
        del self.caches[request]

    def fork(self, source: int, request: int, length: int) -> None:
        assert 0 < length <= len(self.caches[source])
        self.open(request)
        self.caches[request] = self.caches[source][:length]

    def truncate(self, request: int, length: int) -> None:
        assert 0 <= length <= len(self.caches[request])
        del self.caches[request][length:]

    def forward(self, rows: Sequence[TargetRows]) -> list[TargetOutput]:
        assert len({row.request for row in rows}) == len(rows), "a request twice in one call"
        return [self._forward_one(row) for row in rows]

    def _forward_one(self, rows: TargetRows) -> TargetOutput:
        cache = self.caches[rows.request]
        assert rows.start == len(cache)
        assert rows.tokens
        assert all(0 <= token < self.vocab_size for token in rows.tokens)
        assert self.max_positions is None or rows.start + len(rows.tokens) <= self.max_positions
        self.widths.append(len(rows.tokens))
        histories = []
        for token in rows.tokens:
            cache.append(token)
            histories.append(tuple(cache))
        logits = [self.logits(history) for history in histories[len(histories) - rows.logits :]]
        features = torch.tensor([[float(self._ticket(history))] for history in histories], dtype=torch.float64)
        empty = torch.empty(0, self.vocab_size)
        return TargetOutput(rows.request, torch.stack(logits) if logits else empty, features)

    def history(self, feature: torch.Tensor) -> History:
        """The text that a feature row [1] belongs to."""
        return self._histories[int(feature)]

    def _ticket(self, history: History) -> int:
        if history not in self._tickets:
            self._tickets[history] = len(self._histories)
            self._histories.append(history)
        return self._tickets[history]

    def continuation(self, prompt: History, count: int) -> list[int]:
        """The greedy text behind a prompt, one token at a time: the oracle."""
        text = list(prompt)
        for _ in range(count):
            text.append(int(self.logits(tuple(text)).argmax()))
        return text[len(prompt) :]


Script = Callable[[Anchor, History], tuple[list[int], torch.Tensor | None, torch.Tensor | None]]
"""(anchor, text with the anchor as last token) -> tokens [g], logits [g, V] or None, confidence logits [g] or None."""


class ScriptedDrafter:
    """Proposes what its script says. At every propose it checks the invariant: the committed rows of the request are
    exactly positions 0 .. L - 1 and each is the feature of the text that the anchor continues."""

    def __init__(
        self,
        target: ScriptedTarget,
        script: Script,
        *,
        block: int = 4,
        max_positions: int = 0,
        confidence: bool = False,
    ) -> None:
        self.target = target
        self.script = script
        self.config: Any = SimpleNamespace(block_size=block, max_positions=max_positions, has_confidence=confidence)
        self.rows: dict[int, list[History]] = {}
        self.proposed: list[Anchor] = []

    def open(self, request: int) -> None:
        assert request not in self.rows
        self.rows[request] = []

    def close(self, request: int) -> None:
        del self.rows[request]

    def fork(self, source: int, request: int, length: int) -> None:
        assert 0 < length <= len(self.rows[source])
        self.open(request)
        self.rows[request] = self.rows[source][:length]

    def commit(self, rows: Sequence[ContextRows]) -> None:
        for context in rows:
            committed = self.rows[context.request]
            assert context.start == len(committed), "gap or overlap in the committed rows"
            assert len(context.features) > 0
            committed.extend(self.target.history(feature) for feature in context.features)

    def propose(self, anchors: Sequence[Anchor], *, logits: bool = False) -> list[Draft]:
        return [self._propose_one(anchor) for anchor in anchors]

    def _propose_one(self, anchor: Anchor) -> Draft:
        committed = self.rows[anchor.request]
        assert len(committed) == anchor.position, "the context does not end before the anchor"
        assert len(self.target.caches[anchor.request]) == anchor.position, "the target's cache does not either"
        text = committed[-1]
        for position, history in enumerate(committed):
            assert history == text[: position + 1], f"row {position} is the feature of another text"
        self.proposed.append(anchor)
        tokens, draft_logits, confidence = self.script(anchor, (*text, anchor.token))
        assert len(tokens) == self.config.block_size
        return Draft(anchor.request, torch.tensor(tokens), draft_logits, confidence)


def right_then_wrong(target: ScriptedTarget, block: int, right: Callable[[Anchor], int]) -> Script:
    """Greedy drafts whose first `right(anchor)` tokens are the target's and whose next one is not."""

    def script(anchor: Anchor, text: History) -> tuple[list[int], None, None]:
        tokens = target.continuation(text, block)
        count = right(anchor)
        if count < block:
            tokens[count] = (tokens[count] + 1) % target.vocab_size
        return tokens, None, None

    return script


def sampled_script(target: ScriptedTarget, block: int, temperature: float, scale: float = 2.0) -> Script:
    """Drafts drawn from logits that have nothing to do with the target's: acceptance is low, residuals are large."""

    def script(anchor: Anchor, text: History) -> tuple[list[int], torch.Tensor, None]:
        generator = torch.Generator().manual_seed(hash((anchor.seed, anchor.position)) & (2**62 - 1))
        history, tokens, logits = text, [], []
        for _ in range(block):
            logits.append(random_logits(history[-1:], target.vocab_size, 1, scale))
            p = (logits[-1].double() / temperature).softmax(-1)
            tokens.append(int(torch.multinomial(p, 1, generator=generator)))
            history = (*history, tokens[-1])
        return tokens, torch.stack(logits), None

    return script


def run(session: Session, *requests: Request) -> list[list[int]]:
    """Outputs of requests that start together."""
    ids = [session.add(request) for request in requests]
    while session.running:
        session.step()
    return [session.output(i) for i in ids]
