"""What one launch of the step left in memory, rank by rank, as float64: every stage's own inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from monodraft.checkpoint.weights import DraftWeights, LayerWeights, Matrix
from monodraft.drafter import Anchor
from monodraft.formats import mxfp8_torch
from monodraft.hosts.executor_drafter import ExecutorDrafter
from monodraft.plan.shape import StepShape
from monodraft.plan.shard import shard
from monodraft.reference.matrices import decode, pack


def bf16_values(bits: np.ndarray) -> torch.Tensor:
    """float64 of bf16 bits, the shape kept."""
    return torch.from_numpy(np.ascontiguousarray(bits).view(np.int16).copy()).view(torch.bfloat16).double()


def decoded(matrix: Matrix) -> torch.Tensor:
    """float64 [N, K] of a layer linear as the kernel has it, in MXFP8."""
    return decode(pack(matrix))


@dataclass(frozen=True)
class Launch:
    """A launch that has ended: its drafter, the weights that the drafter was made of, and its anchors."""

    executed: ExecutorDrafter
    weights: DraftWeights
    anchors: Sequence[Anchor]

    @cached_property
    def shape(self) -> StepShape:
        """Sizes of this launch (its workspace may be laid out for more requests)."""
        return self.executed.program(len(self.anchors), 16)[0].shape

    @cached_property
    def shards(self) -> list[DraftWeights]:
        """The weights of every rank."""
        return [shard(self.shape.config, self.weights, rank, self.shape.ranks) for rank in range(self.shape.ranks)]

    def layer(self, rank: int, layer: int = -1) -> LayerWeights:
        """A rank's weights of a layer, by default of the last."""
        return self.shards[rank].layers[layer]

    def array(self, rank: int, name: str, rows: int) -> torch.Tensor:
        """float64 of the first `rows` rows of a local array of bf16 or float32."""
        found = self.executed.workspace.local[rank](name)[:rows]
        return bf16_values(found) if found.dtype == np.uint16 else torch.from_numpy(found.copy()).double()

    def mxfp8(self, rank: int, name: str, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Elements and scales, uint8, of the first `rows` rows of a quantised local array."""
        view = self.executed.workspace.local[rank]
        elements, scales = (torch.from_numpy(view(each)[:rows].copy()) for each in (name, f"{name}.scales"))
        return elements, scales

    @cached_property
    def context(self) -> int:
        """Rows that the launch committed."""
        return int(self.executed.workspace.local[0]("context_count")[0])

    @cached_property
    def context_positions(self) -> torch.Tensor:
        """Positions of these rows."""
        return torch.from_numpy(self.executed.workspace.local[0]("context_positions")[: self.context].astype(np.int64))

    @cached_property
    def positions(self) -> torch.Tensor:
        """Positions of the query rows."""
        steps = torch.arange(self.shape.block)
        return torch.cat([anchor.position + steps for anchor in self.anchors])

    def partials(self, reader: int, linear: str, layer: int) -> torch.Tensor:
        """The ranks' bf16 partials of o or down that rank `reader` was given, [source rank][row][columns]: all columns,
        or in two stages its slice."""
        shape = self.shape
        width = shape.hidden // (shape.ranks if shape.two_stage else 1)
        return self._pairs(reader, f"pairs.{linear}", layer, (shape.ranks, shape.rows, width))

    def sums(self, reader: int, linear: str, layer: int) -> torch.Tensor:
        """Of a two-stage all-reduce: the bf16 sums that rank `reader` was given, [row][column]."""
        return self._pairs(reader, f"pairs.{linear}.sum", layer, (self.shape.rows, self.shape.hidden))

    def _pairs(self, reader: int, region: str, layer: int, sizes: tuple[int, ...]) -> torch.Tensor:
        words = self.executed.workspace.exchange[reader](region, layer).reshape(-1)
        count = int(np.prod(sizes))
        values = words[:count].reshape(-1, 2)[:, 0]
        return bf16_values(np.ascontiguousarray(values).view(np.uint16)).reshape(sizes)

    def pool(self, rank: int, layer: int, request: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [position, K/V head, D] of a request's first `length` positions in a rank's pool."""
        slots = torch.tensor([self.executed._tables.slot(request, at) for at in range(length)], dtype=torch.int64)
        return self.pool_slots(rank, layer, slots)

    def pool_slots(self, rank: int, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [slot, K/V head, D] of some slots."""
        shape, workspace = self.shape, self.executed.workspace
        dims, size, head = (shape.layers, shape.pages, shape.kv_heads), shape.page_size, shape.head
        keys = workspace.keys[rank].array.view(np.uint16).reshape(*dims, size, head)[layer]
        values = workspace.values[rank].array.view(np.uint16).reshape(*dims, head, size)[layer]
        pages, offsets = slots.numpy() // size, slots.numpy() % size
        return bf16_values(keys[pages, :, offsets]), bf16_values(values[pages, :, :, offsets])

    def context_slots(self) -> torch.Tensor:
        """Slots of the pool that the launch's context rows went to."""
        return torch.from_numpy(self.executed.workspace.local[0]("context_slots")[: self.context].astype(np.int64))

    def previous(self) -> torch.Tensor:
        """Ids that the query rows' slots follow, [request, slot]."""
        drafted = self.executed.workspace.local[0]("tokens")[: self.shape.rows].astype(np.int64)
        tokens = torch.from_numpy(drafted).unflatten(0, (-1, self.shape.block))
        firsts = torch.tensor([[anchor.token] for anchor in self.anchors])
        return torch.cat([firsts, tokens[:, :-1]], 1)


def mx_values(stored: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """float64 of elements and scales."""
    return mxfp8_torch.decode(*stored).double()
