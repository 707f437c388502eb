"""Hand-offs of the draft step: flags between the CTAs of a rank, tagged pairs between ranks. All go through here, so
that what is traced can be compared with what is planned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import flydsl.expr as fx

from monodraft.device import words as dw
from monodraft.device.numbers import pack_pairs, unpack_pairs
from monodraft.stages.scope import Step


def wait_stage(step: Step, stage: str, producer: str, layer: Any = 0, of: Any = None) -> None:
    """`stage` waits for the flags of stage `producer` (of layer `of`, or the same); all threads of the CTA call it."""
    region = step.plan.stage(producer).flags
    step.note("wait", stage, region)
    base = step.local.at(region, layer if of is None else of)
    owners = step.plan.stage(producer).owners
    dw.wait_flags(step.geo, base, owners, step.tag, *step.limits(f"{stage}<{producer}", layer))


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


def put_to_owner(
    step: Step, stage: str, region: str, layer: Any, index: Any, word: Any, owner: Any, nbytes: int
) -> None:
    """`put_pair` to one rank only, the uniform `owner`."""
    step.note("put", stage, region)
    pair = fx.Vector.from_elements([word, step.tag], fx.Int32)
    base = step.peers[0].at(region, layer)
    for rank, peer in enumerate(step.peers[1:], 1):
        base = (owner == rank).select(peer.at(region, layer), base)
    dw.st(base + fx.Int64(step.rank) * nbytes, index * 2, pair, cm=dw.CM_SYS, nbytes=nbytes)


def sum_slice(step: Step, stage: str, source: str, target: str, layer: Any, t: Any) -> None:
    """Row `t` of this rank's slice: waits for all ranks' pairs, adds them in rank order, puts the bf16 sums to all."""
    shape = step.shape
    width = shape.hidden // shape.ranks
    row_bytes = 4 * width
    step.note("poll", stage, source)
    first = step.own.at(source, layer) + fx.Int64(t) * row_bytes
    bases = [first + shape.rows * row_bytes * rank for rank in range(shape.ranks)]
    limits = step.limits(f"{stage}<{source}", layer)
    words = dw.poll_rows(bases, fx.thread_idx.x * 8, 8, step.tag, *limits, nbytes=row_bytes)
    total = unpack_pairs(words[0])
    for part in words[1:]:
        total = [a + b for a, b in zip(total, unpack_pairs(part), strict=True)]
    step.note("put", stage, target)
    pairs = [word for value in pack_pairs(total) for word in (value, step.tag)]
    for peer in step.peers:
        place = peer.at(target, layer) + fx.Int64(t) * (4 * shape.hidden) + fx.Int64(step.rank) * row_bytes
        dw.st(place, fx.thread_idx.x * 16, fx.Vector.from_elements(pairs, fx.Int32), cm=dw.CM_SYS, nbytes=row_bytes)


def sum_rows(step: Step, stage: str, region: str, layer: Any, t: Any) -> list[Any]:
    """A thread's 16 values of row `t` of an all-reduce: waits for all ranks' pairs and adds them in rank order, or for
    the sums of a two-stage one."""
    step.note("poll", stage, region)
    part = step.shape.rows * step.shape.hidden * 4
    first, limits = step.own.at(region, layer), step.limits(f"{stage}<{region}", layer)
    if step.shape.two_stage:
        whole = replace(step.geo, ranks=1)
        return dw.row_sum4(whole, [first], t, step.tag, *limits)
    partials = [first + part * rank for rank in range(step.shape.ranks)]
    return dw.row_sum4(step.geo, partials, t, step.tag, *limits)
