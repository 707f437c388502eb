"""A second drafter, written differently: NumPy float64, one pass over a whole sequence with several blocks at once.

As in training: the context K/V of all positions, and for each anchor a block of query rows that sees the context before
its anchor and its own block, by an explicit mask. Nothing here comes from `monodraft.reference`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch

from monodraft.checkpoint.config import Activation, DraftConfig, MarkovKind, Norm, Rotary
from monodraft.checkpoint.weights import DraftWeights, LayerWeights, Mxfp8Matrix

Array = np.ndarray[Any, np.dtype[np.float64]]


def array(value: torch.Tensor | Mxfp8Matrix | None) -> Array:
    """float64 values of a weight, MXFP8 decoded by ml_dtypes."""
    if isinstance(value, Mxfp8Matrix):
        elements = value.elements.numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float64)
        scales = 2.0 ** (value.scales.numpy().astype(np.float64) - 127.0)
        return elements * np.repeat(scales, 32, axis=1)
    assert value is not None, "a tensor that the config promises"
    return value.double().numpy()


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rms(x: Array, weight: torch.Tensor | None, config: DraftConfig) -> Array:
    y = x / np.sqrt(np.mean(x**2, -1, keepdims=True) + config.rms_norm_eps)
    if weight is None:
        return y
    return y * (array(weight) + 1.0) if config.norm is Norm.GEMMA else y * array(weight)


def rope(x: Array, positions: Array, config: DraftConfig) -> Array:
    """x [rows, heads, D]: each pair is a complex number that is turned by its angle."""
    r, d = config.rotary_dim, config.head_dim
    base = r if config.rotary is Rotary.LEADING else d
    frequency = 1.0 / config.rope_theta ** (torch.arange(0, r, 2).float() / base)
    angle = torch.tensor(positions, dtype=torch.float32)[:, None] * frequency
    y = x.copy()
    for i in range(r // 2):
        j = i + base // 2
        turned = (x[:, :, i] + 1j * x[:, :, j]) * np.exp(1j * angle[:, i].double().numpy())[:, None]
        y[:, :, i], y[:, :, j] = turned.real, turned.imag
    return y


def activation(gate: Array, up: Array, config: DraftConfig) -> Array:
    if config.activation is Activation.SWIGLU_OAI:
        oai = config.swiglu
        assert oai is not None
        gate, up = np.minimum(gate, oai.limit), np.clip(up, -oai.limit, oai.limit)
        return gate * sigmoid(oai.alpha * gate) * (up + oai.beta)
    if config.activation is Activation.SILU:
        return gate * sigmoid(gate) * up
    inner = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
    return 0.5 * gate * (1 + np.tanh(inner)) * up


def heads(x: Array, count: int) -> Array:
    return x.reshape(len(x), count, -1)


def layer(x: Array, c: Array, where: Mask, index: int, w: LayerWeights, config: DraftConfig) -> Array:
    """One decoder layer over all block rows x [A g, H] and all context rows c [T, H]."""
    h = rms(x, w.input_norm, config)
    q = rope(rms(heads(h @ array(w.q).T, config.num_heads), w.q_norm, config), where.queries, config)
    rows, places = np.concatenate([c, h]), where.keys
    raw_k = heads(rows @ array(w.k).T, config.num_kv_heads)
    v = raw_k if config.shared_kv_projection else heads(rows @ array(w.v).T, config.num_kv_heads)
    k = rope(rms(raw_k, w.k_norm, config), places, config)
    v = rms(v, None, config) if config.value_norm else v
    group = config.num_heads // config.num_kv_heads
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scale = config.head_dim**-0.5 if config.attention_scale is None else config.attention_scale
    scores = np.einsum("qhd,khd->hqk", q, k) * scale
    p = softmax(np.where(where.seen(config.windows[index])[None], scores, -np.inf))
    o = np.einsum("hqk,khd->qhd", p, v).reshape(len(x), -1) @ array(w.o).T
    x = x + (rms(o, w.attention_output_norm, config) if config.sandwich_norms else o)
    h = rms(x, w.post_norm, config)
    f = activation(h @ array(w.gate).T, h @ array(w.up).T, config) @ array(w.down).T
    x = x + (rms(f, w.ffn_output_norm, config) if config.sandwich_norms else f)
    return x * array(w.layer_scalar) if w.layer_scalar is not None else x


@dataclass(frozen=True)
class Mask:
    """Who sees whom: `anchors` are positions, context keys 0..length-1 come first, then the blocks."""

    anchors: list[int]
    length: int
    block: int

    @property
    def queries(self) -> Array:
        return np.concatenate([np.arange(a, a + self.block) for a in self.anchors])

    @property
    def keys(self) -> Array:
        return np.concatenate([np.arange(self.length), self.queries])

    def seen(self, window: int | None) -> Any:
        mask = np.zeros((len(self.queries), len(self.keys)), dtype=bool)
        for row, query in enumerate(self.queries):
            owner = row // self.block
            for column, key in enumerate(self.keys):
                in_context = column < self.length
                mine = key < self.anchors[owner] if in_context else (column - self.length) // self.block == owner
                mask[row, column] = mine and (window is None or -window < query - key < window)
        return mask


@dataclass(frozen=True)
class Answer:
    """Per anchor: final rows [A, g, H], corrected logits [A, g, V], tokens [A, g], confidence logits [A, g]."""

    final: Array
    logits: Array
    tokens: Array
    confidence: Array


def draft(
    config: DraftConfig, weights: DraftWeights, features: torch.Tensor, anchors: list[int], tokens: list[int]
) -> Answer:
    """Greedy blocks at the positions `anchors`, whose tokens are `tokens`; features [T, m H] of positions 0..T-1."""
    g, count = config.block_size, len(anchors)
    c = rms(array(features) @ array(weights.fc).T, weights.hidden_norm, config)
    embed = array(weights.embed) * float(torch.tensor(config.embed_scale).bfloat16())
    x = embed[np.array([[token] + [config.mask_token_id] * (g - 1) for token in tokens])].reshape(count * g, -1)
    where = Mask(anchors, len(features), g)
    for index, layer_weights in enumerate(weights.layers):
        x = layer(x, c, where, index, layer_weights, config)
    final = rms(x, weights.final_norm, config).reshape(count, g, -1)
    base = final @ array(weights.lm_head).T
    if config.logit_softcap is not None:
        base = config.logit_softcap * np.tanh(base / config.logit_softcap)
    answers = [chain(config, weights, final[i], base[i], token) for i, token in enumerate(tokens)]
    return Answer(final, *(np.stack(parts) for parts in zip(*answers, strict=True)))


def chain(config: DraftConfig, weights: DraftWeights, h: Array, base: Array, token: int) -> tuple[Array, Array, Array]:
    """The serial Markov chain of one block: corrected logits [g, V], tokens [g], confidence logits [g]."""
    w1, w2 = array(weights.markov_w1), array(weights.markov_w2)
    state = np.zeros(config.markov_rank)
    logits, tokens, confidence = [], [], []
    for row, plain in zip(h, base, strict=True):
        e = w1[token]
        u = np.concatenate([row, e]) if config.confidence_with_markov else row
        confidence.append((array(weights.confidence_weight) @ u + array(weights.confidence_bias))[0])
        if config.markov is MarkovKind.VANILLA:
            through = e
        elif config.markov is MarkovKind.GATED:
            joined = np.concatenate([row, e])
            through = sigmoid(array(weights.markov_gate) @ joined + array(weights.markov_gate_bias)) * e
        else:
            joined = np.concatenate([state, e, row])
            gate, candidate, out = np.split(array(weights.markov_joint) @ joined + array(weights.markov_joint_bias), 3)
            state = sigmoid(gate) * state + (1 - sigmoid(gate)) * np.tanh(candidate)
            through = np.tanh(out)
        logits.append(plain + w2 @ through)
        token = int(np.argmax(logits[-1]))
        tokens.append(token)
    return np.stack(logits), np.array(tokens), np.array(confidence)
