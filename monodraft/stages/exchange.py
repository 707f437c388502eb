"""Hand-offs of the draft step: flags between the CTAs of a rank, tagged pairs between ranks. All go through here, so
that what is traced can be compared with what is planned."""

from __future__ import annotations

from typing import Any

import flydsl.expr as fx

from monodraft.device import words as dw
from monodraft.stages.scope import Step


def wait_stage(step: Step, stage: str, producer: str, layer: Any = 0, of: Any = None) -> None:
    """`stage` waits for the flags of stage `producer` (of layer `of`, or the same); all threads of the CTA call it."""
    region = step.plan.stage(producer).flags
    step.note("wait", stage, region)
    base = step.local.at(region, layer if of is None else of)
    owners = step.plan.stage(producer).owners
    dw.wait_flags(step.geo, base, owners, step.tag, step.bound, step.site(f"{stage}<{producer}", layer))


@dw.traced
def publish_stage(step: Step, stage: str, layer: Any = 0) -> None:
    """An owner of `stage` drains its stores and sets its flag; all threads of the CTA call it."""
    region = step.plan.stage(stage).flags
    step.note("publish", stage, region)
    owners, base = step.plan.stage(stage).owners, step.local.at(region, layer)
    if step.cta < owners:
        dw.publish(base, step.cta, step.tag)


def put_pair(step: Step, stage: str, region: str, layer: Any, index: Any, word: Any, nbytes: int) -> None:
    """The pair (`word`, tag) to pair `index` (per lane) of this rank's part of `region` on every rank.

    `nbytes` is the size of one source rank's part: pairs past it are not stored.
    """
    step.note("put", stage, region)
    pair = fx.Vector.from_elements([word, step.tag], fx.Int32)
    for peer in step.peers:
        part = peer.at(region, layer) + fx.Int64(step.rank) * nbytes
        dw.st(part, index * 2, pair, cm=dw.CM_SYS, nbytes=nbytes)


def sum_rows(step: Step, stage: str, region: str, layer: Any, t: Any) -> list[Any]:
    """A thread's 16 values of row `t` of an all-reduce: waits for all ranks' pairs and adds them in rank order."""
    step.note("poll", stage, region)
    part = step.shape.rows * step.shape.hidden * 4
    first = step.own.at(region, layer)
    partials = [first + part * rank for rank in range(step.shape.ranks)]
    return dw.row_sum4(step.geo, partials, t, step.tag, step.bound, step.site(f"{stage}<{region}", layer))
