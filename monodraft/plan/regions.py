"""All memory that a step writes: who writes it, who reads it, how new is told from old, why reuse is safe."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from monodraft.plan.layout import Array, exchange_block, local_block, pool_bytes
from monodraft.plan.order import LOCAL_PAIRS
from monodraft.plan.step import Plan


class Scope(StrEnum):
    """Who sees a region's stores: other CTAs of the rank, other ranks, or the writing CTA alone (then the host)."""

    CTA = "cta"
    DEVICE = "device"
    SYSTEM = "system"


@dataclass(frozen=True)
class Region:
    """Memory that a stage writes. `owners` are the stages that write, `readers` those that read it in the kernel.

    `words`: words of 4 bytes of one set; `sets`: sets (one a layer or slot, or 1). `epoch`: what tells new from old.
    `reuse`: why nobody overwrites what somebody still reads; `plan.order.check_order` proves it for the plan's sizes.
    """

    name: str
    owners: tuple[str, ...]
    readers: tuple[str, ...]
    words: int
    sets: int
    scope: Scope
    epoch: str
    reuse: str


_EPOCH = {
    "flags": "flag word = the launch's tag",
    "pairs": "tag word of every 8-byte pair = the launch's tag",
    "data": "none of its own: read after the owner's flags",
    "own": "none: the CTA reads back what it wrote, after its own drain and barrier",
}
_REUSE = {
    "flags": "a set a layer; the next launch on the rank starts when all CTAs have ended",
    "pairs": "a set a layer; a rank puts again only after every peer's pairs of this launch, put after its reads",
    "data": "the next writer comes after the all-reduce or flags that follow every read",
    "own": "one CTA writes and reads, in program order",
}


def regions(plan: Plan) -> list[Region]:
    """All regions of a plan, in the order of their first writers."""
    arrays = {
        array.name: array for block in (local_block(plan.shape), exchange_block(plan.shape)) for array in block.arrays
    }
    names: dict[str, None] = {}
    for stage in plan.stages:
        names |= dict.fromkeys(stage.writes)
        if stage.flags:
            names[stage.flags] = None
    return [_region(plan, name, arrays.get(name)) for name in names]


def _region(plan: Plan, name: str, array: Array | None) -> Region:
    shape = plan.shape
    kind = "flags" if name.startswith("flags.") else "pairs" if name.startswith(("pairs.", "candidates")) else "data"
    if name in ("base", "logits", "tokens", "confidence"):
        kind = "own"
    owners = tuple(stage.name for stage in plan.stages if name in stage.writes or stage.flags == name)
    readers = tuple(
        stage.name for stage in plan.stages if name in stage.reads or any(wait.region == name for wait in stage.waits)
    )
    words = pool_bytes(shape) // 2 if array is None else array.nbytes // 4
    sets = shape.layers if array is None or array.per_layer else 1
    if name == "flags.input":
        sets = shape.layers + 1
    if name in LOCAL_PAIRS:
        return Region(
            name, owners, tuple(dict.fromkeys(readers)), words, sets, Scope.DEVICE, _EPOCH[kind], _REUSE["flags"]
        )
    scope = {"pairs": Scope.SYSTEM, "own": Scope.CTA}.get(kind, Scope.DEVICE)
    return Region(name, owners, tuple(dict.fromkeys(readers)), words, sets, scope, _EPOCH[kind], _REUSE[kind])
