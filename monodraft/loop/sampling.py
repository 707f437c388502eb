"""How the target's logits become the distribution that its tokens follow, and the draws, keyed by position."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from monodraft.errors import Fault, InputError

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy, as in the engines."""


@dataclass(frozen=True)
class Sampling:
    """Temperature, then top-k (0: off), then top-p (1: off), in the order of transformers.

    They shape the target's distribution p before it judges a draft. The drafter draws from softmax(logits / T) of
    its own logits, whatever top-k and top-p are; rejection sampling makes the output follow p all the same.
    Raises `InputError` for a value out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        faults = []
        if not 0.0 <= self.temperature < float("inf"):
            faults.append(Fault("temperature", str(self.temperature), "a finite number, 0 (greedy) or more"))
        if self.top_k < 0:
            faults.append(Fault("top_k", str(self.top_k), "0 (off) or more"))
        if not 0.0 < self.top_p <= 1.0:
            faults.append(Fault("top_p", str(self.top_p), "more than 0, at most 1 (off)"))
        if faults:
            raise InputError("sampling option out of range", faults)

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


GREEDY = Sampling()
"""Always the most likely token."""


def target_probabilities(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """p [n, V] in float64, from the target's logits [n, V]; each row sums to 1."""
    scores: torch.Tensor = logits.double()
    none = torch.empty(0, dtype=torch.long)
    warpers: list[TemperatureLogitsWarper | TopKLogitsWarper | TopPLogitsWarper] = []
    warpers.append(TemperatureLogitsWarper(float(sampling.temperature)))
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(min(sampling.top_k, logits.shape[-1])))
    if sampling.top_p < 1.0:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    for warper in warpers:
        scores = warper(none, scores)
    return scores.softmax(-1)


def draft_probabilities(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """q [n, V] in float64: what the drafter drew from, given its Markov-corrected float32 logits [n, V].

    Drafters round logits / T to float32 before they draw (docs/reference.md), which shows at low temperatures.
    """
    return (logits / sampling.temperature).double().softmax(-1)


def derive_seed(seed: int, purpose: str, position: int = 0) -> int:
    """A 63-bit seed for one purpose and position. Verification must not share draws with the draft it judges."""
    text = f"{seed}/{purpose}/{position}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def verify_generator(seed: int, position: int) -> torch.Generator:
    """The draws that decide the token at an absolute position of one request.

    Keyed by position, not by order: what other requests do, or how a prompt was chunked, changes nothing. Each
    position is decided in one round only, so a key is used once.
    """
    return torch.Generator().manual_seed(derive_seed(seed, "verify", position))
