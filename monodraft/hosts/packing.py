"""A rank's weights as the bytes that the kernel reads (`plan.layout.weight_block`)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from monodraft.checkpoint.config import DraftConfig, MarkovKind
from monodraft.checkpoint.weights import DraftWeights, LayerWeights, Matrix, Mxfp8Matrix
from monodraft.device.geometry import check_dtype
from monodraft.formats import mxfp8_torch
from monodraft.hosts.arguments import DTYPES
from monodraft.plan.layout import UNLIMITED, Block, weight_block
from monodraft.plan.shape import StepShape
from monodraft.plan.shard import shard


def pack_rank(shape: StepShape, weights: DraftWeights, rank: int) -> np.ndarray:
    """uint8 block of rank `rank` of `shape.ranks`; bf16 layer linears are packed to MXFP8 (RCEIL), as the reference
    numerics `mxfp8` does. Raises InputError where the weights do not divide over the ranks."""
    block = weight_block(shape)
    data = np.zeros(block.nbytes, np.uint8)
    own = shard(shape.config, weights, rank, shape.ranks)
    for index, layer in enumerate(own.layers):
        for name, values in _layer_arrays(layer):
            place(data, block, name, values, index)
    for name, values in _single_arrays(shape, own):
        place(data, block, name, values)
    return data


def place(data: np.ndarray, block: Block, name: str, values: np.ndarray, layer: int = 0) -> None:
    """Copy `values` to their place; rows and columns that they lack stay zero. Raises KernelError for another type."""
    array = block[name]
    check_dtype(name, values.dtype, np.dtype(DTYPES[array.dtype]))
    start = block.offset(name, layer)
    view = data[start : start + array.nbytes].view(values.dtype).reshape(array.shape)
    view[tuple(slice(size) for size in values.shape)] = values


def bf16(tensor: torch.Tensor) -> np.ndarray:
    """bf16 bits, uint16."""
    return tensor.detach().to(torch.bfloat16).contiguous().view(torch.int16).numpy().view(np.uint16)


def _packed(matrix: Matrix) -> Mxfp8Matrix:
    return matrix if isinstance(matrix, Mxfp8Matrix) else Mxfp8Matrix(*mxfp8_torch.encode(matrix))


def _stacked(name: str, *matrices: Matrix) -> Iterator[tuple[str, np.ndarray]]:
    packed = [_packed(matrix) for matrix in matrices]
    yield name, torch.cat([each.elements for each in packed]).numpy()
    yield f"{name}.scales", torch.cat([each.scales for each in packed]).numpy()


def _layer_arrays(layer: LayerWeights) -> Iterator[tuple[str, np.ndarray]]:
    yield from _stacked("qkv", layer.q, layer.k, layer.v)
    yield from _stacked("o", layer.o)
    yield from _stacked("gate_up", layer.gate, layer.up)
    yield from _stacked("down", layer.down)
    for name in ("input_norm", "post_norm", "q_norm", "k_norm"):
        yield name, bf16(getattr(layer, name))


def _single_arrays(shape: StepShape, weights: DraftWeights) -> Iterator[tuple[str, np.ndarray]]:
    config = shape.config
    for name in ("fc", "hidden_norm", "final_norm", "embed", "lm_head", "markov_w1", "markov_w2"):
        yield name, bf16(getattr(weights, name))
    yield "rope", rope_table(config, shape.positions)
    yield "windows", np.array([UNLIMITED if w is None else w for w in config.windows], np.int32)
    yield from _inner_arrays(shape, weights)
    if config.has_confidence:
        assert weights.confidence_weight is not None, "DraftConfig with has_confidence has a confidence head"
        assert weights.confidence_bias is not None
        yield "confidence", bf16(weights.confidence_weight[0])
        yield "confidence_bias", weights.confidence_bias.detach().float().numpy()


def _inner_arrays(shape: StepShape, weights: DraftWeights) -> Iterator[tuple[str, np.ndarray]]:
    """The Markov head's inner linear, its columns for the hidden row apart from those for the serial input.

    Columns as shipped: gate [h; e], joint [s; e; h].
    """
    if not shape.inner_rows:
        return
    gated = shape.config.markov is MarkovKind.GATED
    matrix = weights.markov_gate if gated else weights.markov_joint
    bias = weights.markov_gate_bias if gated else weights.markov_joint_bias
    assert matrix is not None, "DraftConfig with a gated or rnn Markov head has its weights"
    assert bias is not None
    hidden, serial = (shape.hidden, shape.inner_depth) if gated else (shape.inner_depth, shape.hidden)
    first, second = matrix.split([hidden, serial], 1)
    yield "markov_inner_hidden", bf16(first if gated else second)
    yield "markov_inner_serial", bf16(second if gated else first)
    yield "markov_inner_bias", bias.detach().float().numpy()


def rope_table(config: DraftConfig, positions: int) -> np.ndarray:
    """float32 [positions][cos, sin][R / 2]: of the float32 angle position * inv_freq, evaluated in float64."""
    exponent = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32) / config.rotary_dim
    angle = torch.arange(positions).to(torch.float32)[:, None] * (1.0 / config.rope_theta**exponent)
    wide = angle.to(torch.float64)
    return torch.stack([torch.cos(wide), torch.sin(wide)], 1).to(torch.float32).numpy()
