"""The draft step: its stages in order, and the kernel that is launched once on every rank."""

from __future__ import annotations

from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from monodraft.device import words as dw
from monodraft.device.geometry import Geometry
from monodraft.device.health import MARK_BITS
from monodraft.plan.lds import lds_map
from monodraft.plan.shape import StepShape
from monodraft.plan.step import Plan
from monodraft.stages import context, layer, markov
from monodraft.stages.attention import attention
from monodraft.stages.exchange import wait_stage
from monodraft.stages.scope import Lds, Memory, Step, blocks

ARGUMENTS = ("weights", "local", "own", "peers", "keys", "values", "health", "ticks", "rank", "layers")
"""Kernel arguments: Int64 addresses, Int64 ticks, Int32 rank and number of layers."""


def draft_step(step: Step, layers: Any) -> None:
    """The whole step: commit, draft, and the epoch for the next launch."""
    shape = step.shape
    if shape.context_rows:
        context.commit(step)
    if shape.requests:
        layer.embed(step)
        if shape.context_rows:
            wait_stage(step, "context_ready", "pool")
        decoder(step, layers)
        markov.lm_head(step.pinned(layers))
        ahead = markov.chain_ahead(step.pinned(layers), fx.Int32(0))
        if shape.inner_rows:
            wait_stage(step, "inner_ready", "inner")
        confidence_weights = markov.chain(step, ahead)
        if shape.config.has_confidence:
            markov.confidence(step.pinned(layers), confidence_weights)
    finish(step)


@dw.traced
def decoder(step: Step, layers: Any) -> None:
    """All decoder layers: one body, looped over at run time."""
    for index in range(fx.Int32(0), layers, fx.Int32(1)):
        decoder_layer(step, fx.Int32(index))


def decoder_layer(step: Step, index: Any) -> None:
    """One decoder layer."""
    for stage in (
        layer.qkv,
        attention,
        layer.o,
        layer.o_sum,
        layer.post,
        layer.gate_up,
        layer.down,
        layer.down_sum,
        layer.next_input,
    ):
        stage(step.pinned(index), index)


@dw.traced
def finish(step: Step) -> None:
    """CTA 0 moves the epoch. It has heard from every CTA in this launch, so all have read the old one."""
    place = (fx.thread_idx.x == 0).select(fx.Int32(0), fx.Int32(1))
    epoch = step.local.at("epoch")
    if step.cta == 0:
        dw.st(epoch, place, step.epoch, nbytes=4)


def next_epoch(epoch: Any) -> Any:
    """The epoch of this launch from the counter of the last: as `device.health.next_tag`, 2^32 - 1 is followed by 1."""
    return (epoch == -1).select(fx.Int32(1), epoch + 1)


def launch_tag(epoch: Any, mark: Any) -> Any:
    """`device.health.launch_tag` of Int32s: the sum in 64 bits, and what overflows 32 added at the low end."""
    moved = (fx.Int64(epoch) & 0xFFFFFFFF) + (fx.Int64(mark) << (32 - MARK_BITS))
    return fx.Int32(moved) + fx.Int32(moved >> 32)


def committed_rows(shape: StepShape, local: Memory) -> Any:
    """Context rows of this launch, Int32: the mark of its tags, so that ranks that were given other numbers of rows,
    whose pools would differ from then on, do not take each other's partials."""
    if not shape.context_rows:
        return fx.Int32(0)
    return dw.first_lane(dw.ld(local.at("context_count"), fx.Int32(0)))


def uniform64(base: Any, index: int) -> Any:
    """Int64 `index` of an array of addresses, as a scalar."""
    words = dw.ld(base, fx.Int32(2 * index), 2)
    low, high = (dw.first_lane(words[i]) for i in (0, 1))
    return (fx.Int64(high) << 32) | (fx.Int64(low) & 0xFFFFFFFF)


def scope(plan: Plan, record: list[tuple[str, str, str]], **arguments: Any) -> Step:
    """The launch as the stages see it, from the kernel's arguments."""
    shape = plan.shape
    geo = Geometry(hidden=shape.hidden, ranks=shape.ranks, waves=shape.waves)
    weights, local, exchange = blocks(shape)
    own_memory = Memory(arguments["local"], local)
    rank = arguments["rank"]
    epoch = next_epoch(dw.first_lane(dw.ld(own_memory.at("epoch"), fx.Int32(0))))
    return Step(
        plan=plan,
        geo=geo,
        cta=fx.block_idx.x,
        weights=Memory(arguments["weights"], weights),
        local=own_memory,
        own=Memory(arguments["own"], exchange),
        peers=[Memory(uniform64(arguments["peers"], peer), exchange) for peer in range(shape.ranks)],
        rank=rank,
        keys=arguments["keys"],
        values=arguments["values"],
        epoch=epoch,
        tag=launch_tag(epoch, committed_rows(shape, own_memory)),
        bound=dw.Bound.start(arguments["health"], rank, arguments["ticks"]),
        lds=Lds.allocate(lds_map(shape)),
        record=record,
    )


def launcher(plan: Plan, record: list[tuple[str, str, str]] | None = None) -> Any:
    """A fresh `@flyc.jit` launcher of the plan's kernel; its arguments are `ARGUMENTS`, grid and block the plan's.

    `record` receives (kind, stage, region) of every put, poll, publish and wait, in the order in which they are traced.
    """
    shape = plan.shape
    notes: list[tuple[str, str, str]] = [] if record is None else record

    @flyc.kernel
    def draft(
        weights: fx.Int64,
        local: fx.Int64,
        own: fx.Int64,
        peers: fx.Int64,
        keys: fx.Int64,
        values: fx.Int64,
        health: fx.Int64,
        ticks: fx.Int64,
        rank: fx.Int32,
        layers: fx.Int32,
    ):
        step = scope(
            plan,
            notes,
            weights=weights,
            local=local,
            own=own,
            peers=peers,
            keys=keys,
            values=values,
            health=health,
            ticks=ticks,
            rank=rank,
        )
        draft_step(step, layers)

    @flyc.jit
    def launch(
        weights: fx.Int64,
        local: fx.Int64,
        own: fx.Int64,
        peers: fx.Int64,
        keys: fx.Int64,
        values: fx.Int64,
        health: fx.Int64,
        ticks: fx.Int64,
        rank: fx.Int32,
        layers: fx.Int32,
        stream: fx.Stream = fx.Stream(None),  # noqa: B008
    ):
        draft(weights, local, own, peers, keys, values, health, ticks, rank, layers).launch(
            grid=(shape.ctas, 1, 1), block=(shape.waves * 64, 1, 1), stream=stream
        )

    return launch


def placeholders() -> list[Any]:
    """Arguments to trace a launcher with."""
    return [*[fx.Int64(0)] * 8, fx.Int32(0), fx.Int32(1)]
