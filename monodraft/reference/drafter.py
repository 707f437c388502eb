"""The reference drafter: the whole draft step in plain PyTorch (docs/reference.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.weights import DraftWeights, LayerWeights, Matrix, Mxfp8Matrix
from monodraft.drafter import Anchor, ContextRows, Draft
from monodraft.reference import checks, sampling
from monodraft.reference.attention import Keys
from monodraft.reference.context import ContextProjection
from monodraft.reference.heads import Chain, Heads
from monodraft.reference.layer import DraftLayer
from monodraft.reference.norms import RmsNorm
from monodraft.reference.numerics import Numerics, select
from monodraft.reference.pool import KvPool
from monodraft.reference.rope import Rope

KEPT_BYTES = 3 << 30
"""Weights that take more than this in float64 are decoded tile by tile at each use instead of being kept."""

DEFAULT_POSITIONS = 8192
"""Positions per request that the default pool has pages for."""

_CONTEXT_ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class MarginDraft:
    """A draft and, per slot, float32 [g], how much the chosen id's score led the next best one.

    Scores are the corrected logits, for a sampled draft tempered and with noise (`sampling.scores`). A tie is 0.
    """

    draft: Draft
    margins: torch.Tensor


class ReferenceDrafter:
    """A `monodraft.drafter.Drafter`. In the 16-bit numerics the result of a request has the same bits whatever else
    is in the call, however its context was cut into commits, and on any number of threads.

    `numerics`: `exact`, `bf16`, `w8a16`, `mxfp8` (`monodraft.reference.numerics`) or an instance of one. `ranks`
    simulates the all-reduces of tensor parallelism. `pages` of `page_size` positions are shared by `max_requests`
    requests (default: room for `positions` each, untouched pages cost nothing on a CPU); `windowed` drops what
    no later block can see, after which a fork to an earlier length may be refused. `kept_bytes` limits what decoded
    weights may hold.

    Raises InputError for numerics, ranks or a pool that cannot be.
    """

    def __init__(
        self,
        config: DraftConfig,
        weights: DraftWeights,
        numerics: str | Numerics = "bf16",
        *,
        ranks: int = 1,
        device: torch.device | str = "cpu",
        max_requests: int = 16,
        positions: int = DEFAULT_POSITIONS,
        pages: int | None = None,
        page_size: int = 64,
        windowed: bool = False,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self._config, self._numerics = config, select(numerics)
        checks.check_ranks(config, self._numerics, ranks)
        self._device = torch.device(device)
        if pages is None:
            pages = max_requests * -(-min(config.max_positions, positions) // max(1, page_size))
        self.pool = KvPool(
            config,
            pages=pages,
            page_size=page_size,
            max_requests=max_requests,
            dtype=self._numerics.store,
            device=self._device,
            windowed=windowed,
        )
        weights = _on_device(weights, self._device)
        keep = 8 * _linear_elements(weights) <= kept_bytes
        self._embed = weights.embed
        self._rope = Rope(config, self._device)
        self._context = ContextProjection(config, weights, self._numerics, keep)
        self._layers = [DraftLayer(config, layer, self._numerics, self._rope, ranks, keep) for layer in weights.layers]
        self._final_norm = RmsNorm(weights.final_norm, config.rms_norm_eps, config.norm)
        self._heads = Heads(config, weights, self._numerics, keep)
        self._record: dict[str, torch.Tensor] | None = None

    @property
    def config(self) -> DraftConfig:
        return self._config

    @property
    def numerics(self) -> Numerics:
        """The numerics in use."""
        return self._numerics

    def open(self, request: int) -> None:
        """Start a request with an empty context. InputError where it is open or too many are."""
        self.pool.open(request)

    def close(self, request: int) -> None:
        """Forget a request and free its pages. InputError where it is not open."""
        checks.check_open(self.pool, request)
        self.pool.close(request)

    def fork(self, source: int, request: int, length: int) -> None:
        """Open `request` with the first `length` positions of `source`; whole pages are shared, the last one copied."""
        checks.check_open(self.pool, source, "source")
        self.pool.fork(source, request, length)

    @torch.no_grad()
    def commit(self, rows: Sequence[ContextRows]) -> None:
        """Project context rows and store each layer's K/V. InputError, and no change, where one is wrong."""
        added = checks.check_commit(self.pool, self._config, rows)
        for request, count in added.items():
            start = self.pool.length(request)
            features = torch.cat([row.features.to(self._device) for row in rows if row.request == request])
            self.pool.extend(request, count)
            first = max(start, self.pool.first_kept(start + count))
            # Extended pages may begin before `first`; what no block can see is not projected.
            for begin in range(first, start + count, _CONTEXT_ROWS_AT_ONCE):
                self._store(request, begin, features[begin - start :][:_CONTEXT_ROWS_AT_ONCE])

    def propose(self, anchors: Sequence[Anchor], *, logits: bool = False) -> list[Draft]:
        """Draft one block per anchor, in order; the pool is not changed. InputError where an anchor cannot be."""
        return [proposal.draft for proposal in self.propose_with_margins(anchors, logits=logits)]

    @torch.no_grad()
    def propose_with_margins(self, anchors: Sequence[Anchor], *, logits: bool = False) -> list[MarginDraft]:
        """`propose`, with the lead of every chosen id: near ties are where two right drafters may differ."""
        checks.check_anchors(self.pool, self._config, anchors)
        if not anchors:
            return []
        hidden = self._block(anchors)
        margins: list[torch.Tensor] = []

        def choose(slot: int, corrected: torch.Tensor) -> torch.Tensor:
            scores = torch.stack(
                [
                    sampling.scores(row, anchor.temperature, anchor.seed, anchor.position + slot)
                    for row, anchor in zip(corrected, anchors, strict=True)
                ]
            )
            best = scores.topk(2, -1).values if scores.shape[-1] > 1 else scores.expand(-1, 2)
            margins.append(torch.where(best[:, 0] == best[:, 1], 0.0, best[:, 0] - best[:, 1]))
            return sampling.lowest_argmax(scores)

        tokens = torch.tensor([anchor.token for anchor in anchors], dtype=torch.int64, device=self._device)
        chain = self._heads(hidden, tokens, choose, self._note)
        leads = torch.stack(margins, 1)
        return [MarginDraft(_draft(chain, index, anchor, logits), leads[index]) for index, anchor in enumerate(anchors)]

    @contextmanager
    def recording(self) -> Iterator[dict[str, torch.Tensor]]:
        """Collect the named intermediates of the calls inside, for stage-by-stage comparison (docs/reference.md).

        Rows of all requests of a call stand one after another; the last call wins. Not re-entrant.
        """
        record: dict[str, torch.Tensor] = {}
        self._record = record
        try:
            yield record
        finally:
            self._record = None

    def _note(self, name: str, tensor: torch.Tensor) -> None:
        if self._record is not None:
            self._record[name] = tensor

    def _store(self, request: int, start: int, features: torch.Tensor) -> None:
        """Context K/V of consecutive rows of one request, into pages that exist."""
        positions = torch.arange(start, start + len(features), device=self._device)
        tables = self._rope.tables(self._numerics, positions)
        context = self._context(features)
        self._note("context", context)
        for index, layer in enumerate(self._layers):
            keys = Keys(start, *layer.keys_values(context, tables))
            self._note(f"context.layer{index}.k", keys.keys)
            self._note(f"context.layer{index}.v", keys.values)
            self.pool.write(request, index, keys)

    def _block(self, anchors: Sequence[Anchor]) -> torch.Tensor:
        """Final rows [B, g, H] in `store`: row 0 embeds the anchor, rows 1..g-1 the mask token, at L..L + g - 1."""
        config, numerics = self._config, self._numerics
        ids = torch.full((len(anchors), config.block_size), config.mask_token_id, device=self._device)
        ids[:, 0] = torch.tensor([anchor.token for anchor in anchors], device=self._device)
        starts = torch.tensor([anchor.position for anchor in anchors], device=self._device)
        positions = starts[:, None] + torch.arange(config.block_size, device=self._device)
        tables = self._rope.tables(numerics, positions.flatten())
        s = self._embedded(ids.flatten())
        self._note("embedding", s)
        for index, (layer, window) in enumerate(zip(self._layers, config.windows, strict=True)):
            contexts = [self._visible_context(anchor, index, window) for anchor in anchors]

            def note(name: str, tensor: torch.Tensor, index: int = index) -> None:
                self._note(f"layer{index}.{name}", tensor)

            s = layer(s, contexts, [anchor.position for anchor in anchors], window, tables, note)
            note("stream", s)
        final = numerics.stored(self._final_norm(numerics, s))
        self._note("final", final)
        return final.unflatten(0, ids.shape)

    def _visible_context(self, anchor: Anchor, layer: int, window: int | None) -> Keys:
        """Context keys that row 0 sees; later rows see fewer of them."""
        first = 0 if window is None else max(0, anchor.position - (window - 1))
        return self.pool.read(anchor.request, layer, first)

    def _embedded(self, ids: torch.Tensor) -> torch.Tensor:
        """Embedding rows [M, H] in `work`; Gemma4's factor is rounded to the table's type and the product stored."""
        numerics = self._numerics
        rows = numerics.widened(numerics.stored(self._embed[ids]))
        if self._config.embed_scale == 1.0:
            return rows
        factor = torch.tensor(self._config.embed_scale, dtype=self._embed.dtype, device=self._device)
        return numerics.widened(numerics.stored(rows * numerics.widened(factor)))


def _draft(chain: Chain, index: int, anchor: Anchor, logits: bool) -> Draft:
    """The draft of one request of a call."""
    wanted = logits or anchor.temperature >= sampling.GREEDY_BELOW
    confidence = None if chain.confidence is None else chain.confidence[index]
    return Draft(anchor.request, chain.tokens[index], chain.logits[index] if wanted else None, confidence)


def _matrices(weights: DraftWeights) -> Iterator[Matrix]:
    yield from (weights.fc, weights.lm_head, weights.markov_w2)
    yield from (matrix for matrix in (weights.markov_gate, weights.markov_joint) if matrix is not None)
    for layer in weights.layers:
        yield from (layer.q, layer.k, layer.v, layer.o, layer.gate, layer.up, layer.down)


def _linear_elements(weights: DraftWeights) -> int:
    """Elements of all matrices that a linear multiplies by."""
    return sum(matrix.shape[0] * matrix.shape[1] for matrix in _matrices(weights))


def _on_device(weights: DraftWeights, device: torch.device) -> DraftWeights:
    """The same weights on `device`; tensors that are there already are not copied."""

    def moved(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(device)
        if isinstance(value, Mxfp8Matrix):
            return Mxfp8Matrix(value.elements.to(device), value.scales.to(device))
        if isinstance(value, tuple):
            return tuple(moved(item) for item in value)
        if isinstance(value, LayerWeights):
            return replace(value, **{f.name: moved(getattr(value, f.name)) for f in fields(value)})
        return value

    return replace(weights, **{f.name: moved(getattr(weights, f.name)) for f in fields(weights)})
