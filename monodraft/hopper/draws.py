"""What a sampled draft draws by: a request's temperature and seed as the words that stages/sampling.cuh reads."""

from __future__ import annotations

import math
import struct

import numpy as np

from monodraft.errors import Fault

GREEDY_BELOW = 1e-5
"""Temperatures below this draft greedily (spec 1.6)."""

DRAW_WORDS = 4
"""Words of a request: temperature (float32, 0 for a greedy draft), seed low, seed high, 0."""


def is_sampled(temperature: float) -> bool:
    """Whether drafts at this temperature are drawn."""
    return temperature >= GREEDY_BELOW


def draw_words(temperature: float, seed: int) -> tuple[int, ...]:
    """The int32 words of a request. Temperatures beyond float32 are infinite, as where torch divides by them."""
    with np.errstate(over="ignore"):
        rounded = np.float32(temperature if is_sampled(temperature) else 0.0)
    return struct.unpack(f"<{DRAW_WORDS}i", struct.pack("<fQi", rounded, seed, 0))


def faults_of(temperature: float, seed: int, where: str) -> list[Fault]:
    """What is wrong with an anchor's temperature and seed."""
    faults = []
    if not (math.isfinite(temperature) and temperature >= 0):
        faults.append(Fault(f"{where}.temperature", str(temperature), "finite, at least 0"))
    if not 0 <= seed < 2**64:
        faults.append(Fault(f"{where}.seed", str(seed), "0..2^64 - 1"))
    return faults
