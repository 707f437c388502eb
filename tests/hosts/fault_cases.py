"""The waits of the plans as cases: which hand-off each waits for, how an error must name it, and steps that fail."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from faulty import JUMP, ROWS, TICKS, TOKEN, Fault, FaultyDrafter, Setting, features, hand_offs

import monodraft.executor as ex
from monodraft.checkpoint.config import MarkovKind
from monodraft.drafter import Anchor, ContextRows
from monodraft.errors import StepFailed
from monodraft.plan.order import LOCAL_PAIRS, Order
from monodraft.plan.shape import AllReduce
from monodraft.plan.step import STAGGER, Plan, Wait
from monodraft.reference import ReferenceDrafter

TWO_STAGE = Setting()
BASE = (TWO_STAGE, Setting(AllReduce.ONE_SHOT))
"""All waits of these plans are cases."""
SPLIT = Setting(splits=2)
MORE = (
    SPLIT,
    Setting(markov=MarkovKind.GATED),
    Setting(markov=MarkovKind.RNN),
    Setting(AllReduce.ONE_SHOT, MarkovKind.GATED, 2),
)
"""Of these plans, the waits that no plan of `BASE` has."""
JUST = 50 * JUMP
"""Ticks (1 ms) past a deadline at which the wait has surely seen it: it looks every 64 rounds, and the clock jumps."""
REST = TICKS // 2
"""Ticks that the rest of a step takes at most, once a late producer has come."""
LEAVE = TICKS
"""Ticks in which all CTAs have left after the last deadline: waits look at the record only every 64 rounds."""
SEEDED_TICKS = 10 * TICKS


@cache
def drafter(setting: Setting) -> FaultyDrafter:
    return FaultyDrafter(setting)


@cache
def wanted_tokens(setting: Setting) -> torch.Tensor:
    """What the reference drafts."""
    reference = ReferenceDrafter(setting.config, setting.weights, "mxfp8", ranks=2)
    reference.open(0)
    reference.commit([ContextRows(0, 0, features())])
    return reference.propose([Anchor(0, TOKEN, ROWS)])[0].tokens


def sites(setting: Setting) -> list[int]:
    """Numbers of the waits that are cases."""
    plan = setting.plan()
    known = set() if setting in BASE else {key for base in BASE for key in base.plan().sites}
    return [i for i, (stage, wait, _) in enumerate(plan.waits, 1) if f"{stage.name}<{wait.key}" not in known]


def case(setting: Setting, site: int) -> Any:
    stage, wait, repeat = setting.plan().place(site)
    return pytest.param(setting, site, id=f"{setting}-{stage.name}{repeat}<{wait.key}")


def cases(*settings: Setting) -> list[Any]:
    return [case(setting, site) for setting in settings for site in sites(setting)]


def producer(plan: Plan, site: int) -> int:
    """Number of the hand-off that a wait waits for."""
    stage, wait, repeat = plan.place(site)
    order = Order(plan)
    (turn,) = order.producers(order.turn(stage.name, repeat), wait)
    (found,) = [
        number
        for number, each in enumerate(hand_offs(plan))
        if (each.stage, each.repeat, each.region) == (turn.stage.name, turn.repeat, wait.region)
    ]
    return found


def victims(plan: Plan, site: int) -> Iterator[tuple[int, int]]:
    """(rank, CTA) of producers: the first of rank 1, the last of rank 0."""
    owners = plan.stage(hand_offs(plan)[producer(plan, site)].stage).owners
    yield 1, 0
    yield 0, owners - 1


def within_rank(wait: Wait) -> bool:
    """Whether what a wait waits for comes from CTAs of its own rank."""
    return not wait.poll or wait.region in LOCAL_PAIRS


def place(plan: Plan, site: int, rank: int) -> str:
    """How an error names a wait of a rank."""
    stage, wait, repeat = plan.place(site)
    unit = {"once": "", "layer": f" of layer {repeat}", "slot": f" of slot {repeat}"}[stage.repeat]
    return f"rank {rank}, stage {stage.name}{unit}, region {wait.region}"


def places(plan: Plan, site: int, victim: int) -> set[str]:
    """Where a failure may be said to be: the wait, on the victim's rank or, for what peers put, on any."""
    ranks = [victim] if within_rank(plan.place(site)[1]) else range(plan.shape.ranks)
    return {place(plan, site, rank) for rank in ranks}


def writer(wait: Wait, rank: int, cta: int) -> str:
    """How the failed producer is named."""
    if wait.region == "candidates":
        return f"from rank {rank}, CTA {cta}"
    return f"from CTA {cta} " if within_rank(wait) else f"from rank {rank} "


def failed(
    steps: FaultyDrafter, *faults: Fault, schedule: ex.Schedule | None = None, ticks: int = TICKS
) -> tuple[StepFailed, int]:
    """The error of a step, and the tag that it had."""
    steps._ticks = ticks
    tag = 1 + max(int(view("epoch")[0]) for view in steps.workspace.local)
    launches = steps.launches
    with pytest.raises(StepFailed) as caught:
        steps.turn(*faults, schedule=schedule)
    assert steps.launches == launches + 1
    steps._ticks = TICKS
    return caught.value, tag


def in_time(steps: FaultyDrafter, plan: Plan, bound: int, late: int = 0) -> None:
    """Every CTA of every rank has left: the launch is over, within its bound."""
    assert steps.report is not None
    assert steps.report.ticks <= bound + len(plan.waits) * STAGGER + max(0, late) + LEAVE
