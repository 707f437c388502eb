"""Rounding points bit for bit: each stage replayed from its recorded inputs in NumPy, rounded where the contract says.

A bound cannot see a rounding that is missing; this can. Sums of float64 stand for exact sums: on these few values they
round to the same bits.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from monodraft.checkpoint.config import DraftConfig, Family, Norm
from monodraft.drafter import Anchor
from monodraft.reference import ReferenceDrafter
from monodraft.reference.numerics import select
from monodraft.testing import random_weights
from reference.cases import SIXTEEN_BIT, random_features, small_config, start

pytestmark = pytest.mark.numbers

LENGTH = 9
F32, F64 = np.float32, np.float64
Floats = np.ndarray[Any, Any]


def wide(tensor: torch.Tensor) -> Floats:
    """float32 of a recorded bf16 or float32 tensor."""
    return tensor.float().numpy()


def bf16(x: Floats) -> Floats:
    """float32 rounded to bf16, as float32."""
    assert x.dtype == F32
    return x.astype(ml_dtypes.bfloat16).astype(F32)


def once(function: Any, x: Floats) -> Floats:
    """A function in float64, rounded to float32."""
    result: Floats = function(x.astype(F64)).astype(F32)
    return result


def normed(x: Floats, weight: torch.Tensor, config: DraftConfig) -> Floats:
    mean = np.square(x.astype(F64)).sum(-1).astype(F32) / F32(x.shape[-1])
    rstd = once(lambda v: 1 / np.sqrt(v), mean + F32(config.rms_norm_eps))
    shipped = bf16(wide(weight))
    factor = shipped + F32(1) if config.norm is Norm.GEMMA else shipped
    return x * rstd[..., None] * factor


def rotated(x: Floats, positions: Floats, config: DraftConfig) -> Floats:
    """Leading halves, float32 products and sums, no fma."""
    half = config.rotary_dim // 2
    power = torch.tensor(config.rope_theta) ** (torch.arange(0, config.rotary_dim, 2) / config.rotary_dim)
    angle = positions.astype(F32)[:, None] * (1.0 / power).numpy()
    cos, sin = once(np.cos, angle)[:, None], once(np.sin, angle)[:, None]
    a, b = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], -1)


def attended(q: Floats, k: Floats, v: Floats, window: int | None, config: DraftConfig) -> Floats:
    """One query row and head at a time, over the keys that it sees and no others."""
    out = np.empty_like(q)
    group = config.num_heads // config.num_kv_heads
    for row in range(config.block_size):
        seen = [p for p in range(len(k)) if window is None or abs(LENGTH + row - p) < window]
        for head in range(config.num_heads):
            keys, values = (x[seen, head // group].astype(F64) for x in (k, v))
            scores = (keys @ q[row, head].astype(F64)).astype(F32) * F32(config.score_scale)
            p = once(np.exp, scores - scores.max())
            o = (bf16(p).astype(F64) @ values).astype(F32)
            out[row, head] = bf16(o / p.astype(F64).sum().astype(F32))
    return out.reshape(config.block_size, -1)


@pytest.mark.parametrize("numerics", SIXTEEN_BIT)
@pytest.mark.parametrize("family", [Family.MINIMAX_M31, Family.QWEN3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "float32"])
def test_stages_round_where_the_contract_says(family: Family, numerics: str, dtype: torch.dtype) -> None:
    """Also of weights shipped in float32, as nvidia's are: all are bf16 (or MXFP8) before anything is multiplied."""
    config = small_config(family, windows=(6, None))
    weights = random_weights(config, seed=7, mxfp8=False, dtype=dtype)
    drafter = ReferenceDrafter(config, weights, numerics)
    with drafter.recording() as record:
        start(drafter, 0, random_features(config, LENGTH))
        drafter.propose([Anchor(0, 5, LENGTH)])
    block = np.arange(LENGTH, LENGTH + config.block_size)
    stream = wide(record["embedding"])
    for index, w in enumerate(weights.layers):
        at = f"layer{index}."

        def check(name: str, wanted: Floats, at: str = at) -> None:
            np.testing.assert_array_equal(wide(record[at + name]), wanted, err_msg=at + name)

        def heads(x: torch.Tensor) -> Floats:
            return wide(x).reshape(len(x), -1, config.head_dim)

        check("input_norm", bf16(normed(stream, w.input_norm, config)))
        check("q", bf16(rotated(normed(wide(record[at + "q_linear"]), w.q_norm, config), block, config)))
        linear = select(numerics).layer_linear([w.k], True)
        for prefix, x, positions in (("", "layer{}.input_norm", block), ("context.", "context", np.arange(LENGTH))):
            raw = heads(linear(record[x.format(index)]))
            wanted = bf16(rotated(normed(raw, w.k_norm, config), positions, config))
            check("k", wanted, prefix + at)
        k, v = (np.concatenate([wide(record[f"context.{at}{n}"]), wide(record[at + n])]) for n in ("k", "v"))
        check("attention", attended(wide(record[at + "q"]), k, v, config.windows[index], config))
        check("o.residual", bf16(stream) + wide(record[at + "o"]))
        check("post_norm", bf16(normed(wide(record[at + "o.residual"]), w.post_norm, config)))
        gate, up = wide(record[at + "gate"]), wide(record[at + "up"])
        if config.swiglu is None:
            check("ffn", bf16(gate * once(sigmoid, gate) * up))
        else:
            gate = np.minimum(gate, F32(7))
            activated = gate * once(sigmoid, gate * F32(1.702))
            check("ffn", bf16(activated * (np.clip(up, F32(-7), F32(7)) + F32(1))))
        stream = bf16(wide(record[at + "o.residual"])) + wide(record[at + "down"])
        check("down.residual", stream)
    np.testing.assert_array_equal(wide(record["final"]), bf16(normed(stream, weights.final_norm, config)))


def sigmoid(x: Floats) -> Floats:
    result: Floats = 1 / (1 + np.exp(-x))
    return result


@pytest.mark.parametrize("numerics", SIXTEEN_BIT)
def test_ranks_are_added_in_order_in_float32(numerics: str) -> None:
    """2^24 + 1 + 1 - 2^24 is 0 in this order in float32, 2 in the reverse one."""
    x = torch.zeros(1, 128)
    x[0, 0], x[0, 32], x[0, 64], x[0, 96] = 2.0**24, 1.0, 1.0, -(2.0**24)
    linear = select(numerics).row_parallel(torch.ones(2, 128).bfloat16(), 4, True)
    assert linear(x.bfloat16()).tolist() == [[0.0, 0.0]]
    x = x.view(1, 4, 32).flip(1).view(1, 128)
    assert linear(x.bfloat16()).tolist() == [[2.0, 2.0]]
