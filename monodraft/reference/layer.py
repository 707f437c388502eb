"""One decoder layer over the block rows of all requests of a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.weights import LayerWeights
from monodraft.reference.attention import Keys, attend
from monodraft.reference.context import KeyValueProjection
from monodraft.reference.ffn import gated
from monodraft.reference.norms import RmsNorm
from monodraft.reference.numerics import Numerics
from monodraft.reference.rope import Rope

Note = Callable[[str, torch.Tensor], None]
"""Receives each named intermediate, for stage-by-stage comparison with a kernel."""


class DraftLayer:
    """Attention and FFN with the residual stream of `norms`: what is added to is bf16(s), what is normed is s.

    With `ranks` > 1, o and down are row-parallel (`Numerics.row_parallel`); column-parallel linears and replicated KV
    heads do not change a bit.
    """

    def __init__(
        self, config: DraftConfig, weights: LayerWeights, numerics: Numerics, rope: Rope, ranks: int, keep: bool
    ) -> None:
        def norm(weight: torch.Tensor | None) -> RmsNorm:
            return RmsNorm(weight, config.rms_norm_eps, config.norm)

        self._config, self._numerics, self._rope = config, numerics, rope
        self._input_norm, self._post_norm, self._q_norm = (
            norm(weights.input_norm),
            norm(weights.post_norm),
            norm(weights.q_norm),
        )
        self._q = numerics.layer_linear([weights.q], keep)
        self.keys_values = KeyValueProjection(config, weights, numerics, rope, keep)
        self._o = numerics.row_parallel(weights.o, ranks, keep)
        self._gate_up = numerics.layer_linear([weights.gate, weights.up], keep)
        self._down = numerics.row_parallel(weights.down, ranks, keep)
        self._attention_output_norm = norm(weights.attention_output_norm) if config.sandwich_norms else None
        self._ffn_output_norm = norm(weights.ffn_output_norm) if config.sandwich_norms else None
        self._scalar = weights.layer_scalar if config.layer_scalars else None

    def __call__(
        self,
        s: torch.Tensor,
        contexts: Sequence[Keys],
        starts: Sequence[int],
        window: int | None,
        tables: tuple[torch.Tensor, torch.Tensor],
        note: Note,
    ) -> torch.Tensor:
        """Unrounded stream s [B g, H] in `work` to the next one; request b's rows stand at starts[b] and on."""
        numerics, config = self._numerics, self._config
        h = numerics.stored(self._input_norm(numerics, s))
        note("input_norm", h)
        heads = self._q(h).unflatten(-1, (config.num_heads, config.head_dim))
        note("q_linear", heads)
        q = numerics.stored(self._rope.rotate(self._q_norm(numerics, heads), tables))
        k, v = self.keys_values(h, tables)
        note("q", q)
        note("k", k)
        note("v", v)
        g = config.block_size
        attended = [
            attend(numerics, q_b, context, Keys(start, k_b, v_b), window, config.score_scale)
            for q_b, k_b, v_b, context, start in zip(q.split(g), k.split(g), v.split(g), contexts, starts, strict=True)
        ]
        attention = torch.cat(attended)
        note("attention", attention)
        s = self._joined(s, self._o(attention), self._attention_output_norm, "o", note)
        h = numerics.stored(self._post_norm(numerics, s))
        note("post_norm", h)
        gate, up = self._gate_up(h).chunk(2, -1)
        note("gate", gate)
        note("up", up)
        hidden = gated(numerics, config, gate, up)
        note("ffn", hidden)
        s = self._joined(s, self._down(hidden), self._ffn_output_norm, "down", note)
        return s if self._scalar is None else s * numerics.widened(self._scalar)

    def _joined(
        self, s: torch.Tensor, delta: torch.Tensor, norm: RmsNorm | None, name: str, note: Note
    ) -> torch.Tensor:
        """bf16(s) + delta, unrounded; delta is normed and stored before where the layer has sandwich norms."""
        numerics = self._numerics
        note(name, delta)
        if norm is not None:
            delta = numerics.stored(norm(numerics, delta))
        joined = numerics.widened(numerics.stored(s)) + numerics.widened(delta)
        note(f"{name}.residual", joined)
        return joined
