"""A drafter's weights on the GPU as the kernels read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from monodraft.checkpoint.config import DraftConfig, Norm
from monodraft.checkpoint.weights import DraftWeights, LayerWeights, Matrix, Mxfp8Matrix
from monodraft.formats import mxfp8_torch
from monodraft.hopper import pack
from monodraft.hopper.geometry import Geometry


@dataclass(frozen=True)
class PackedWeights:
    """`packed`: uint8 chunks by the names of `Geometry.linears`. `norms` float32 [hidden padded], the factor itself
    (1 + w for Gemma); `head_norms` float32 [layers, 2, head]; `confidence` float32 [hidden padded + rank padded + 1].
    embed and w1 stay row-major bf16. `w1_lengths` float32 [vocab]: norms of w1's rows,
    rounded up. `slack` float32 [vocab padded]: how far a row of `markov_scan` (w2 in MXFP8) may be from w2's, see
    `scan_slack`. `joins` float32 [hidden padded + 1] by the names of the join stages: the norm's factor and what the
    residual is multiplied by. `embed` carries `DraftConfig.embed_scale`."""

    geometry: Geometry
    packed: dict[str, torch.Tensor]
    norms: dict[str, torch.Tensor]
    head_norms: torch.Tensor
    confidence: torch.Tensor
    embed: torch.Tensor
    w1: torch.Tensor
    w1_lengths: torch.Tensor
    slack: torch.Tensor
    joins: dict[str, torch.Tensor]

    @property
    def bytes(self) -> int:
        tensors = [
            *self.packed.values(),
            *self.norms.values(),
            *self.joins.values(),
            self.head_norms,
            self.confidence,
            self.embed,
            self.w1,
            self.w1_lengths,
            self.slack,
        ]
        return sum(tensor.nbytes for tensor in tensors)


def _moved(matrix: Matrix, device: torch.device) -> Matrix:
    if isinstance(matrix, Mxfp8Matrix):
        return Mxfp8Matrix(matrix.elements.to(device), matrix.scales.to(device))
    return matrix.to(device)


def _factor(config: DraftConfig, weight: torch.Tensor, size: int, device: torch.device) -> torch.Tensor:
    """What a norm multiplies by, of a weight in bf16: one shipped in float32 is rounded, as all weights but biases."""
    factor = weight.to(device, torch.bfloat16).float()
    factor = 1.0 + factor if config.norm is Norm.GEMMA else factor
    return torch.nn.functional.pad(factor, (0, size - len(factor)))


def _join(config: DraftConfig, norm: torch.Tensor, scalar: torch.Tensor, size: int) -> torch.Tensor:
    """A join's table: the factor of the norm [size], then the scalar."""
    return torch.cat([_factor(config, norm, size, scalar.device), scalar.float().view(1)])


def _joins(
    config: DraftConfig, layers: Sequence[LayerWeights], size: int, device: torch.device
) -> dict[str, torch.Tensor]:
    """`PackedWeights.joins`; nothing without sandwich norms."""
    found = {}
    for i, layer in enumerate(layers):
        if layer.attention_output_norm is None or layer.ffn_output_norm is None or layer.layer_scalar is None:
            continue
        one, scalar = torch.ones(1, device=device), layer.layer_scalar.to(device)
        found[f"layers.{i}.o_join"] = _join(config, layer.attention_output_norm, one, size)
        found[f"layers.{i}.down_join"] = _join(config, layer.ffn_output_norm, scalar, size)
    return found


def _embedding(config: DraftConfig, embed: torch.Tensor, device: torch.device) -> torch.Tensor:
    """bf16 [V, H], times the factor on embeddings, which is rounded to the table's type: the products as the reference
    rounds them."""
    table = embed.to(device, torch.bfloat16)
    if config.embed_scale == 1.0:
        return table
    factor = torch.tensor(config.embed_scale, dtype=embed.dtype).float()
    scaled = torch.empty_like(table)
    for start in range(0, len(table), 1 << 14):
        scaled[start : start + (1 << 14)] = table[start : start + (1 << 14)].float() * factor
    return scaled


def scan_slack(w2: torch.Tensor, scanned: Mxfp8Matrix) -> torch.Tensor:
    """float32 [V]: ||w2_v - q_v|| + 2^-12 ||w2_v||, rounded up; q the MXFP8 values.

    Times ||e|| it bounds what the scan's product may miss of the exact one: Cauchy-Schwarz, and the float32 sums of
    both (K <= 512 terms; every addition loses at most 2^-22 of ||w2_v|| ||e||, two sums of K / 16 steps each).
    """
    out = torch.empty(len(w2), dtype=torch.float32, device=w2.device)
    for start in range(0, len(w2), 1 << 14):
        rows = slice(start, start + (1 << 14))
        exact = w2[rows].double()
        error = exact - mxfp8_torch.decode(scanned.elements[rows], scanned.scales[rows]).double()
        bound = error.norm(dim=1) + 2.0**-12 * exact.norm(dim=1)
        out[rows] = (bound * (1 + 2.0**-20)).float()
    return out


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous and on 16 bytes, which rows are read by: a tensor of a mapped file may lie anywhere."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def pack_weights(geometry: Geometry, weights: DraftWeights, device: torch.device | str = "cuda") -> PackedWeights:
    """Packs on `device`, one matrix at a time. UnsupportedCheckpoint for what MXFP8 chunks cannot hold."""
    c, device, mxfp8 = geometry.config, torch.device(device), geometry.mxfp8
    kv = ("k",) if c.shared_kv_projection else ("k", "v")

    def layer_matrices(layer: LayerWeights) -> dict[str, Matrix]:
        at = {name: _moved(getattr(layer, name), device) for name in ("q", "k", "v", "o", "gate", "up", "down")}
        return {
            "qkv": pack.stacked(at["q"], *(at[name] for name in kv)),
            "o": at["o"],
            "gate_up": pack.gate_up(at["gate"], at["up"]),
            "down": at["down"],
        }

    k = {name: linear.chunks * (256 if linear.mxfp8 else 128) for name, linear in geometry.linears.items()}
    packed = {
        "fc": pack.pack_outer(weights.fc.to(device), k["fc"]),
        "lm_head": pack.pack_outer(weights.lm_head.to(device), k["lm_head"]),
        "markov": pack.pack_outer(weights.markov_w2.to(device), k["markov"]),
    }
    w2 = weights.markov_w2.to(device, torch.bfloat16)
    w2 = pack.pad(w2, geometry.vocab_padded, pack.multiple(w2.shape[1], 32))
    scanned = Mxfp8Matrix(*mxfp8_torch.encode(w2))
    packed["markov_scan"] = pack.pack_mxfp8(scanned, "markov_w2")
    slack = scan_slack(w2, scanned)
    # Rounded up: the squares are exact in float32 for bf16, their sum and the root lose less than 2^-16.
    lengths = weights.markov_w1.to(device, torch.bfloat16).float().norm(dim=1) * (1 + 2.0**-12)
    context = [_moved(getattr(layer, name), device) for layer in weights.layers for name in kv]
    packed["context_kv"] = pack.pack_linear(pack.stacked(*context), mxfp8=mxfp8, name="k and v of all layers")
    norms = {"hidden": weights.hidden_norm, "final": weights.final_norm}
    heads = []
    for i, layer in enumerate(weights.layers):
        for name, matrix in layer_matrices(layer).items():
            packed[f"layers.{i}.{name}"] = pack.pack_linear(matrix, mxfp8=mxfp8, name=f"layers.{i}.{name}")
        norms |= {f"layers.{i}.input": layer.input_norm, f"layers.{i}.post": layer.post_norm}
        heads += [_factor(c, layer.q_norm, c.head_dim, device), _factor(c, layer.k_norm, c.head_dim, device)]
    confidence = torch.zeros(geometry.hidden_padded + geometry.rank_padded + 1, dtype=torch.float32, device=device)
    if weights.confidence_weight is not None and weights.confidence_bias is not None:
        row = weights.confidence_weight.to(device, torch.bfloat16).float()[0]
        confidence[: c.hidden_size] = row[: c.hidden_size]
        if c.confidence_with_markov:
            confidence[geometry.hidden_padded :][: c.markov_rank] = row[c.hidden_size :]
        confidence[-1] = weights.confidence_bias.to(device, torch.float32)[0]
    return PackedWeights(
        geometry,
        packed,
        {name: _factor(c, weight, geometry.hidden_padded, device) for name, weight in norms.items()},
        torch.cat(heads).view(c.num_layers, 2, c.head_dim),
        confidence,
        _aligned(_embedding(c, weights.embed, device)),
        _aligned(weights.markov_w1.to(device, torch.bfloat16)),
        lengths,
        slack,
        _joins(c, weights.layers, geometry.hidden_padded, device),
    )
