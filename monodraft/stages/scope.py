"""What every stage function gets: the plan's sizes, the bases of this launch, LDS, and the record of hand-offs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import flydsl.expr as fx

from monodraft.device import words as dw
from monodraft.device.geometry import Geometry
from monodraft.device.scalars import pinned
from monodraft.plan.layout import Block, exchange_block, local_block, weight_block
from monodraft.plan.lds import LdsMap
from monodraft.plan.shape import StepShape
from monodraft.plan.step import STAGGER, Plan


@dataclass(frozen=True)
class Lds:
    """LDS arrays of a CTA, as the plan's `LdsMap` sizes them."""

    red: Any
    residual: Any
    norm: Any
    vectors: Any
    values: Any
    picks: Any
    chosen: Any
    inner: Any
    serial: Any
    bias_input: Any

    @staticmethod
    def allocate(sizes: LdsMap) -> Lds:
        """Allocate all arrays; once a kernel."""
        allocator = fx.SharedAllocator()

        def array(dtype: Any, count: int) -> Any:
            return allocator.allocate(fx.Array[dtype, count, 16]).peek().ptr

        return Lds(
            red=array(fx.Float32, sizes.red),
            residual=array(fx.Int32, sizes.residual),
            norm=array(fx.Float32, sizes.norm),
            vectors=array(fx.Int32, sizes.vectors),
            values=array(fx.Int32, sizes.values),
            picks=array(fx.Int32, sizes.picks),
            chosen=array(fx.Int32, sizes.chosen),
            inner=array(fx.Float32, sizes.inner),
            serial=array(fx.Int32, sizes.serial),
            bias_input=array(fx.Int32, sizes.bias_input),
        )


class Memory:
    """An address block of the plan behind a uniform Int64 base."""

    def __init__(self, base: Any, block: Block) -> None:
        self._base, self._block = base, block

    def pinned(self, turn: Any) -> Memory:
        """The same block, its base pinned (`device.scalars.pinned`)."""
        return Memory(pinned(self._base, turn), self._block)

    def at(self, name: str, layer: Any = 0) -> Any:
        """Int64 address of an array; `layer` (an int, or a uniform Int32) picks one of a layered array."""
        array = self._block[name]
        address = self._base + array.offset
        if isinstance(layer, int):
            return address + layer * self._block.layer_bytes if layer else address
        return address + fx.Int64(layer) * self._block.layer_bytes


@dataclass(frozen=True)
class Step:
    """One launch as its stages see it. `epoch` counts launches; hand-offs of this one carry `tag`.

    `record` notes (kind, stage, region) of every hand-off while the kernel is traced.
    """

    plan: Plan
    geo: Geometry
    cta: Any
    weights: Memory
    local: Memory
    own: Memory
    peers: Sequence[Memory]
    rank: Any
    keys: Any
    values: Any
    epoch: Any
    tag: Any
    bound: dw.Bound
    lds: Lds
    record: list[tuple[str, str, str]]

    @property
    def shape(self) -> StepShape:
        return self.plan.shape

    def pinned(self, turn: Any) -> Step:
        """The same launch with all bases pinned: for one stage, so that addresses do not outlive it."""
        return replace(
            self,
            weights=self.weights.pinned(turn),
            local=self.local.pinned(turn),
            own=self.own.pinned(turn),
            peers=[peer.pinned(turn) for peer in self.peers],
            keys=pinned(self.keys, turn),
            values=pinned(self.values, turn),
        )

    def site(self, stage: str, layer: Any = 0) -> Any:
        """Number of a stage's wait, as `Plan.sites` gives it: an int, or Int32 for a traced layer."""
        first, stride = self.plan.sites[stage]
        return first + layer * stride if isinstance(layer, int) else layer * stride + first

    def limits(self, stage: str, layer: Any = 0) -> tuple[dw.Bound, Any]:
        """Bound and number of a stage's wait. Later waits of a launch have later deadlines, `STAGGER` ticks each: of
        all CTAs that a fault holds up, those that wait for the fault itself expire first and say so."""
        site = self.site(stage, layer)
        return replace(self.bound, deadline=self.bound.deadline + fx.Int64(site) * STAGGER), site

    def note(self, kind: str, stage: str, region: str) -> None:
        """Record a put, poll, publish or wait."""
        self.record.append((kind, stage, region))


def blocks(shape: StepShape) -> tuple[Block, Block, Block]:
    """Weights, local workspace and exchange workspace of a rank."""
    return weight_block(shape), local_block(shape), exchange_block(shape)
