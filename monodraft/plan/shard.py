"""`shard`: the weights of one tensor-parallel rank."""

from __future__ import annotations

from dataclasses import replace

import torch

from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.weights import DraftWeights, LayerWeights, Matrix, Mxfp8Matrix
from monodraft.plan.ranks import MX_BLOCK, RankSlice, rank_slice


def rows(matrix: Matrix, part: range) -> Matrix:
    """Rows `part` of a linear [N, K] (a view)."""
    if isinstance(matrix, Mxfp8Matrix):
        return Mxfp8Matrix(matrix.elements[part.start : part.stop], matrix.scales[part.start : part.stop])
    return matrix[part.start : part.stop]


def columns(matrix: Matrix, part: range) -> Matrix:
    """Columns `part` of a linear [N, K], contiguous; for MXFP8 `part` falls on blocks of 32 (`rank_slice` checks)."""
    if isinstance(matrix, Mxfp8Matrix):
        assert part.start % MX_BLOCK == 0
        assert part.stop % MX_BLOCK == 0
        blocks = slice(part.start // MX_BLOCK, part.stop // MX_BLOCK)
        elements = matrix.elements[:, part.start : part.stop].contiguous()
        return Mxfp8Matrix(elements, matrix.scales[:, blocks].contiguous())
    return matrix[:, part.start : part.stop].contiguous()


def _heads(part: range, head_dim: int) -> range:
    return range(part.start * head_dim, part.stop * head_dim)


def _layer(layer: LayerWeights, own: RankSlice, head_dim: int) -> LayerWeights:
    queries, keys = _heads(own.heads, head_dim), _heads(own.kv_heads, head_dim)
    k = rows(layer.k, keys)
    return replace(
        layer,
        q=rows(layer.q, queries),
        k=k,
        v=k if layer.v is layer.k else rows(layer.v, keys),
        o=columns(layer.o, queries),
        gate=rows(layer.gate, own.ffn),
        up=rows(layer.up, own.ffn),
        down=columns(layer.down, own.ffn),
    )


def shard(config: DraftConfig, weights: DraftWeights, rank: int, ranks: int) -> DraftWeights:
    """The weights of `rank` of `ranks` (1, 2, 4 or 8): its query and K/V heads (q, k, v rows; o columns), FFN columns
    (gate, up rows; down columns) and vocabulary rows (lm_head, markov_w2). The rest is shared, not copied.

    Partial sums of o and down over the ranks give the whole layer's; concatenated logits give the whole vocabulary's.
    Raises InputError where the config does not divide (`rank_slice`).
    """
    own = rank_slice(config, rank, ranks)
    vocab = slice(own.vocab.start, own.vocab.stop)
    layers = tuple(_layer(layer, own, config.head_dim) for layer in weights.layers)
    lm_head: torch.Tensor = weights.lm_head[vocab]
    return replace(weights, layers=layers, lm_head=lm_head, markov_w2=weights.markov_w2[vocab])
