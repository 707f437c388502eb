"""The target alone, one token a step: what speculation is compared with."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from monodraft.loop.request import Request
from monodraft.loop.sampling import Sampling
from monodraft.loop.target_model import TargetModel, TargetRows
from monodraft.loop.verify import Verdict, accept_greedy, accept_sampled, kept_tokens

PLAIN_REQUEST = -1
"""Request id of the plain run; sessions count from 0, so both can share a target."""


@dataclass(frozen=True)
class PlainRun:
    """`tokens` of the output; `margins`: the target's best logit less its second, for each token; seconds of the
    prompt and of the steps behind it."""

    tokens: tuple[int, ...]
    margins: tuple[float, ...]
    prefill_seconds: float
    decode_seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Of the decode steps; the first token comes from the prompt."""
        return (len(self.tokens) - 1) / self.decode_seconds if self.decode_seconds else 0.0


@dataclass(frozen=True)
class Comparison:
    """A speculative text against the plain one. `first_difference` is an index into the output, or None if equal;
    `margin` is the target's best logit less its second there, in the plain run. A margin of rounding size is a near
    tie that a matrix kernel of another width broke the other way; a larger one is a defect."""

    first_difference: int | None
    margin: float | None

    @property
    def equal(self) -> bool:
        return self.first_difference is None


def generate_plain(
    target: TargetModel,
    request: Request,
    *,
    limit: int | None = None,
    prefill_chunk: int = 512,
    on_token: Callable[[int], None] | None = None,
) -> PlainRun:
    """Continue the prompt with 1-row steps of the target and no drafter.

    Same chunks of the prompt, sampling, stop tokens and `limit` (longest text) as a `Session`. `on_token` is called
    with the number of tokens so far.
    """
    wanted = len(request.prompt) + request.max_new_tokens
    room = (wanted if limit is None else min(wanted, limit)) - len(request.prompt)
    tokens: list[int] = []
    margins: list[float] = []
    target.open(PLAIN_REQUEST)
    try:
        start = time.perf_counter()
        pending, committed, decode_start = list(request.prompt), 0, start
        finish = None
        while finish is None:
            chunk = tuple(pending[:prefill_chunk])
            pending = pending[prefill_chunk:]
            [output] = target.forward([TargetRows(PLAIN_REQUEST, committed, chunk, int(not pending), features=False)])
            committed += len(chunk)
            if pending:
                continue
            verdict = _choose(output.logits, request.sampling, request.seed, committed)
            best = output.logits[0].topk(2).values.tolist()
            margins.append(best[0] - best[1])
            kept, finish = kept_tokens([verdict.next_token], request.stop_tokens, room - len(tokens))
            tokens += kept
            pending = kept
            if len(tokens) == 1:
                decode_start = time.perf_counter()
            if on_token:
                on_token(len(tokens))
        end = time.perf_counter()
    finally:
        target.close(PLAIN_REQUEST)
    return PlainRun(tuple(tokens), tuple(margins), decode_start - start, end - decode_start)


def compare(speculative: list[int], plain: PlainRun) -> Comparison:
    """Where two greedy texts part, if they do."""
    if list(plain.tokens) == speculative:
        return Comparison(None, None)
    both = zip(speculative, plain.tokens, strict=False)
    shorter = min(len(speculative), len(plain.tokens))
    first = next((i for i, (a, b) in enumerate(both) if a != b), shorter)
    return Comparison(first, plain.margins[first] if first < len(plain.margins) else None)


def _choose(logits: torch.Tensor, sampling: Sampling, seed: int, position: int) -> Verdict:
    if sampling.greedy:
        return accept_greedy([], logits)
    return accept_sampled([], None, logits, sampling, seed=seed, position=position)
