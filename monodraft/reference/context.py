"""What becomes of a committed position: its context row, and from it each layer's key and value."""

from __future__ import annotations

import torch

from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.weights import DraftWeights, LayerWeights
from monodraft.reference.norms import RmsNorm
from monodraft.reference.numerics import Numerics
from monodraft.reference.rope import Rope


class ContextProjection:
    """c = hidden_norm(fc(features)): the row that every layer's context K/V are made of (spec 1.2).

    fc is stored (bf16), then normalised and stored again. There is no input norm on c in the layers.
    """

    def __init__(self, config: DraftConfig, weights: DraftWeights, numerics: Numerics, keep: bool) -> None:
        self._numerics = numerics
        self._fc = numerics.linear(weights.fc, keep)
        self._norm = RmsNorm(weights.hidden_norm, config.rms_norm_eps, config.norm)

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        """features [S, m H] (stored first) to c [S, H] in `store`."""
        numerics = self._numerics
        return numerics.stored(self._norm(numerics, self._fc(numerics.stored(features))))


class KeyValueProjection:
    """One layer's keys and values, of context rows and of normed block rows alike (spec 1.3).

    k = bf16(rope(k_norm(bf16(x Wk)))), rounded once after norm and RoPE; v = bf16(x Wv). Gemma4 normalises v per head,
    and takes v from the k projection where the two are shared.
    """

    def __init__(self, config: DraftConfig, weights: LayerWeights, numerics: Numerics, rope: Rope, keep: bool) -> None:
        self._numerics, self._rope = numerics, rope
        self._heads = (config.num_kv_heads, config.head_dim)
        shared = config.shared_kv_projection
        self._linear = numerics.layer_linear([weights.k] if shared else [weights.k, weights.v], keep)
        self._shared = shared
        self._k_norm = RmsNorm(weights.k_norm, config.rms_norm_eps, config.norm)
        self._v_norm = RmsNorm(None, config.rms_norm_eps, config.norm) if config.value_norm else None

    def __call__(self, x: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """x [S, H] in `store` and the RoPE tables of its positions to k, v [S, kv heads, D] in `store`."""
        numerics = self._numerics
        both = self._linear(x)
        raw, v = (both, both) if self._shared else both.chunk(2, -1)
        raw, v = raw.unflatten(-1, self._heads), v.unflatten(-1, self._heads)
        k = numerics.stored(self._rope.rotate(self._k_norm(numerics, raw), tables))
        return k, v if self._v_norm is None else numerics.stored(self._v_norm(numerics, v))
