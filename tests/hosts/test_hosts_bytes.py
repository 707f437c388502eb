"""The plan's bytes and hand-offs against the executor's counters: every byte of every weight, every set of flags."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from drafts import Case, Conversation, drafters

from monodraft.checkpoint.config import Family, MarkovKind
from monodraft.hosts.executor_drafter import ExecutorDrafter
from monodraft.hosts.workspace import View
from monodraft.plan.cost import stage_costs
from monodraft.plan.layout import Block, weight_block
from monodraft.plan.order import Order
from monodraft.plan.shape import AllReduce
from monodraft.plan.step import Plan, Repeat

pytestmark = pytest.mark.executed

MAIN = Case(ranks=2, requests=2, overrides=(("windows", (12, 64)),))
OTHERS = [
    Case(Family.QWEN3, 1, 2),
    Case(Family.QWEN3, 4, 1, MarkovKind.GATED),
    Case(Family.QWEN3, 1, 1, MarkovKind.RNN),
    Case(ranks=4, requests=1, all_reduce=AllReduce.TWO_STAGE),
    Case(Family.QWEN3, 4, 2, splits=2),
]
CASES = [MAIN, *(pytest.param(case, marks=pytest.mark.slow) for case in OTHERS)]
ROW_STAGES = ("embed", "context_norm", "pool", "attention", "post", "input", "confidence")
"""Stages whose owners each read the same norm weights, or rows of a table: a few KB, counted apart."""


def counted(case: Case) -> tuple[ExecutorDrafter, Plan]:
    """A drafter after one step with context rows whose loads from weights, local and exchange memory were counted."""
    executed, _ = drafters(case)
    workspace = executed.workspace
    blocks = [view.region for view in (*workspace.local, *workspace.exchange)]
    conversation = Conversation((executed,), case.requests)
    try:
        conversation.turn()
        for region in (*workspace.weights, *blocks):
            region.count_loads()
        conversation.turn()
    finally:
        conversation.close()
    return executed, executed.program(case.requests, 16)[0]


def stop_counting(executed: ExecutorDrafter) -> None:
    workspace = executed.workspace
    for region in (*workspace.weights, *(view.region for view in (*workspace.local, *workspace.exchange))):
        region.loads = None


def names(block: Block, *prefixes: str) -> list[str]:
    """Arrays of these names, with their scales, or of these groups (`flags.`)."""
    return [a.name for a in block.arrays if any(a.name == p or a.name.startswith(f"{p}.") for p in prefixes)]


def loads_of(executed: ExecutorDrafter, rank: int, name: str, layer: int = 0) -> np.ndarray:
    """Loads of every byte of a weight array, row by row."""
    region, block = executed.workspace.weights[rank], weight_block(executed.shape)
    assert region.loads is not None
    start, array = block.offset(name, layer), block[name]
    return region.loads[start : start + array.nbytes].reshape(array.shape[0], -1)


def wanted_runs(plan: Plan) -> Counter[tuple[str, int]]:
    """How often a launch reads each (weight array, layer) of the tile stages."""
    runs: Counter[tuple[str, int]] = Counter()
    for stage in plan.stages:
        if stage.name in (*ROW_STAGES, "context_kv"):
            continue
        for name in stage.weights:
            for repeat in range(plan.repeats(stage)):
                runs[name, repeat if stage.repeat is Repeat.LAYER else 0] += 1
    return runs


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_weight_byte_is_read_as_often_as_the_plan_says(case: Case) -> None:
    executed, plan = counted(case)
    try:
        total = 0
        for rank in range(case.ranks):
            for (name, layer), times in wanted_runs(plan).items():
                for each in names(weight_block(executed.shape), name):
                    loads = loads_of(executed, rank, each, layer)
                    wanted = np.full_like(loads, times)
                    if name == "qkv":  # once more for the context rows
                        wanted[plan.shape.q_size :] += 1
                    np.testing.assert_array_equal(loads, wanted, f"{each} of layer {layer}, rank {rank}")
                    total += int(loads.sum())
        costs = stage_costs(plan, 0)
        assert total == case.ranks * sum(cost.weight_bytes for cost in costs if cost.stage not in ROW_STAGES)
    finally:
        stop_counting(executed)


def polled(view: View, arrays: list[str]) -> set[tuple[str, int]]:
    """(region, layer) of what was looked at; `candidates` counts by slot and request."""
    loads, found = view.region.loads, set()
    assert loads is not None
    for name in arrays:
        array = view.block[name]
        for layer in range(view.block.layers if array.per_layer else 1):
            start = view.block.offset(name, layer)
            part = loads[start : start + array.nbytes]
            sets = part.reshape(array.shape[0] * array.shape[1] if name == "candidates" else 1, -1)
            found |= {(name, layer + slot) for slot, each in enumerate(sets) if each.any()}
    return found


def planned(plan: Plan) -> set[tuple[str, int]]:
    """(region, layer) of every wait; `candidates` by slot and request."""
    order, requests = Order(plan), plan.shape.requests
    found = {("candidates", number) for number in range(plan.shape.block * requests)}
    for turn in order.turns:
        for wait in turn.stage.waits:
            (producer,) = order.producers(turn, wait)
            # `embed` takes the set before those of the layers' `input`.
            shift = 1 if producer.stage.name == "input" else 0
            if wait.region != "candidates":
                found.add((wait.region, producer.repeat + shift))
    return found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_hand_offs_are_those_of_the_plan(case: Case) -> None:
    """Sets of flags and pairs that a launch looks at: those of the plan's waits, no other, on every rank."""
    executed, plan = counted(case)
    try:
        assert sum(cost.hand_offs for cost in stage_costs(plan, 0)) == len(plan.waits)
        for local, exchange in zip(executed.workspace.local, executed.workspace.exchange, strict=True):
            seen = {
                place
                for view in (local, exchange)
                for place in polled(view, names(view.block, "flags", "pairs", "candidates"))
            }
            assert seen == planned(plan)
    finally:
        stop_counting(executed)
