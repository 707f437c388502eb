"""What a step costs on paper: bytes and hand-offs of each stage on a rank, and a projected time with its assumptions.

Nothing here is measured on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from monodraft.plan.gpus import Gpu
from monodraft.plan.layout import SIZES, weight_block
from monodraft.plan.order import turns
from monodraft.plan.step import Plan, Repeat, Stage

HAND_OFF_US = (2.0, 5.0)
"""Assumed time of one hand-off, least and most: what published kernels report on this class of machine."""


@dataclass(frozen=True)
class StageCost:
    """One stage over all its runs in a launch: weight and K/V bytes that a rank reads, and hand-offs (waits)."""

    stage: str
    runs: int
    weight_bytes: int
    kv_bytes: int
    hand_offs: int


@dataclass(frozen=True)
class Projection:
    """Sums of a step, and its time if bytes move at `tb_s` and every hand-off takes 2 to 5 us with nothing hidden."""

    weight_bytes: int
    kv_bytes: int
    hand_offs: int
    tb_s: float
    bytes_us: float
    least_us: float
    most_us: float


def stage_costs(plan: Plan, context: int) -> list[StageCost]:
    """Costs of every stage, for requests of `context` committed positions each."""
    runs: dict[str, int] = {}
    for turn in turns(plan):
        runs[turn.stage.name] = runs.get(turn.stage.name, 0) + 1
    return [
        StageCost(
            stage.name,
            runs[stage.name],
            runs[stage.name] * _weight_bytes(plan, stage),
            _kv_bytes(plan, context) if stage.name == "attention" else 0,
            runs[stage.name] * len(stage.waits),
        )
        for stage in plan.stages
    ]


def _weight_bytes(plan: Plan, stage: Stage) -> int:
    """Weight bytes of one run; rows of tables (embedding, markov_w1) and norm weights count once a row that is read."""
    shape, block = plan.shape, weight_block(plan.shape)
    if stage.name == "embed":
        return shape.rows * shape.hidden * 2
    total = 0
    for name in stage.weights:
        size = block[name].nbytes
        scales = prod(block[f"{name}.scales"].shape) if f"{name}.scales" in {a.name for a in block.arrays} else 0
        if name == "qkv" and stage.name == "context_kv":
            part = 2 * shape.kv_size / shape.qkv_size
            total += int((size + scales) * part) * shape.layers
        else:
            total += size + scales
    return total


def _kv_bytes(plan: Plan, context: int) -> int:
    """Keys twice (once a walk) and values once, of what each layer's window leaves of the context, all requests."""
    shape = plan.shape
    rows = sum(context if window is None else min(context, window - 1) for window in shape.config.windows)
    return shape.requests * rows * shape.kv_size * SIZES["bfloat16"] * 3


def projection(plan: Plan, context: int, gpu: Gpu) -> Projection:
    """The step on `gpu`, at its measured bandwidth where one is known."""
    return _project(stage_costs(plan, context), gpu)


def layer_projection(plan: Plan, context: int, gpu: Gpu) -> Projection:
    """The mean layer of the step: its stages' bytes and hand-offs, without commit, LM head and chain."""
    layers = plan.shape.layers
    layered = {stage.name for stage in plan.stages if stage.repeat is Repeat.LAYER}
    costs = [
        replace(
            cost,
            runs=1,
            weight_bytes=cost.weight_bytes // layers,
            kv_bytes=cost.kv_bytes // layers,
            hand_offs=cost.hand_offs // layers,
        )
        for cost in stage_costs(plan, context)
        if cost.stage in layered
    ]
    return _project(costs, gpu)


def _project(costs: list[StageCost], gpu: Gpu) -> Projection:
    weight, kv = sum(cost.weight_bytes for cost in costs), sum(cost.kv_bytes for cost in costs)
    hand_offs = sum(cost.hand_offs for cost in costs)
    speed = gpu.measured_tb_s or gpu.spec_tb_s
    floor = (weight + kv) / speed / 1e6
    least, most = (floor + hand_offs * each for each in HAND_OFF_US)
    return Projection(weight, kv, hand_offs, speed, floor, least, most)
