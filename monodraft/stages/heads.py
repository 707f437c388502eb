"""Head vectors: norm over a head's values and rotary position embedding, D / 8 lanes a vector, 8 values a lane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flydsl.expr as fx

from monodraft.checkpoint.config import Norm
from monodraft.device.memory import load_words, resource
from monodraft.device.numbers import hw_rsqrt, unpack_pairs
from monodraft.stages.scope import Step

VALUES = 8
"""Values of a head vector that one lane holds."""


def lanes_of(head: int) -> int:
    """Lanes that share a head vector."""
    return head // VALUES


def lane_values(where: Any, offset: Any, cm: int) -> list[Any]:
    """A lane's 8 values (Float32) of bf16 at byte `offset` of a resource."""
    return unpack_pairs(load_words(where, offset, 16, cm))


def vector_sum(x: Any, lanes: int) -> Any:
    """Sum over the `lanes` (a power of two) neighbouring lanes of a vector, the same bits in all of them."""
    distance = 1
    while distance < lanes:
        x = x + fx.gpu.shuffle_xor(x, distance, 64)
        distance *= 2
    return x


def normed_and_rotated(step: Step, values: Sequence[Any], weights: Sequence[Any], position: Any) -> list[Any]:
    """RMS norm of a head vector, then RoPE at `position`: 8 Float32 a lane, not rounded.

    `values`, `weights`: this lane's 8. Lane i of a vector holds dims 8 i .. 8 i + 7. Products and sums are rounded one
    by one, none but those of the squares are fused.
    """
    config, lanes = step.shape.config, lanes_of(step.shape.head)
    square = values[0] * values[0]
    for value in values[1:]:
        square = fx.fma(value, value, square)
    mean = vector_sum(square, lanes) * fx.Float32(1.0 / step.shape.head)
    rstd = hw_rsqrt(mean + fx.Float32(config.rms_norm_eps))
    if config.norm is Norm.GEMMA:
        weights = [weight + 1.0 for weight in weights]
    return rotated(step, [x * rstd * weight for x, weight in zip(values, weights, strict=True)], position)


def rotated(step: Step, y: Sequence[Any], position: Any) -> list[Any]:
    """RoPE of a head vector at `position` (per lane): dims (i, i + R / 2), i < R / 2, by the table's angles."""
    config, lanes = step.shape.config, lanes_of(step.shape.head)
    half = config.rotary_dim // 2
    lane = fx.thread_idx.x % lanes
    dim = lane * VALUES
    turns = dim < config.rotary_dim
    table = resource(step.weights.at("rope"), step.shape.positions * config.rotary_dim * 4)
    place = (position * config.rotary_dim + dim % half) * 4
    cos, sin = (_eight_floats(table, place + 4 * half * part) for part in (0, 1))
    partner = [fx.gpu.shuffle_xor(value, half // VALUES, 64) for value in y]
    low = [a * c - b * s for a, b, c, s in zip(y, partner, cos, sin, strict=True)]
    high = [b * c + a * s for b, a, c, s in zip(y, partner, cos, sin, strict=True)]
    first = dim < half
    turned = [first.select(a, b) for a, b in zip(low, high, strict=True)]
    return [turns.select(new, old) for new, old in zip(turned, y, strict=True)]


def _eight_floats(where: Any, offset: Any) -> list[Any]:
    return [word.bitcast(fx.Float32) for word in load_words(where, offset, 32, 0)]


def head_words(step: Step, name: str, layer: Any, exists: Any) -> list[Any]:
    """This lane's 8 weights of head norm `name` as 4 bf16-pair words; zeros, and no bytes read, without `exists`."""
    head = step.shape.head
    where = resource(step.weights.at(name, layer), 2 * head)
    place = exists.select(fx.thread_idx.x % lanes_of(head) * (2 * VALUES), fx.Int32(2 * head))
    return load_words(where, place, 16, 0)


__all__ = [
    "VALUES",
    "head_words",
    "lane_values",
    "lanes_of",
    "normed_and_rotated",
    "rotated",
    "vector_sum",
]
