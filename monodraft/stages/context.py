"""Commit: newly accepted target rows become keys and values of every layer, in the draft pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flydsl.expr as fx
from flydsl.expr import gpu

from monodraft.device import words as dw
from monodraft.device.memory import load_words, resource
from monodraft.device.numbers import pack_pairs, unpack_pairs
from monodraft.plan.layout import pool_bytes
from monodraft.plan.shape import MX_BLOCK, TILE
from monodraft.stages.exchange import publish_stage, wait_stage
from monodraft.stages.heads import VALUES, head_words, lane_values, lanes_of, normed_and_rotated
from monodraft.stages.linear import bf16_tile, quantised_tokens, store_tile, tile_operands, tile_partials
from monodraft.stages.rows import normed_rows, quantised, stored
from monodraft.stages.scope import Step


def commit(step: Step) -> None:
    """All context stages, in order."""
    project(step)
    norm_context(step)
    keys_values(step)
    write_pool(step)


@dw.traced
def project(step: Step) -> None:
    """fc over the target features, bf16: local `features` to `fc_rows`."""
    for tile in range(step.cta, step.shape.hidden // TILE, step.shape.ctas):
        project_tile(step, fx.Int32(tile))
    publish_stage(step, "fc")


def project_tile(step: Step, tile: Any) -> None:
    """One tile of fc."""
    shape = step.shape
    depth = shape.config.feature_size
    weights = step.weights.at("fc") + fx.Int64(tile) * (TILE * depth * 2)
    acc = bf16_tile(step, weights, step.local.at("features"), depth, shape.context_rows, cm=0)
    dw.red_store(step.geo, step.lds.red, 0, acc)
    gpu.barrier()
    store_tile(step, "fc_rows", tile, shape.context_rows, shape.hidden)
    gpu.barrier()


def norm_context(step: Step) -> None:
    """hidden_norm of `fc_rows`, quantised to `context8`."""
    weights = dw.norm_w(step.geo, step.weights.at("hidden_norm"))
    wait_stage(step, "context_norm", "fc")
    source, store = stored(step, "fc_rows"), quantised(step, "context8")
    normed_rows(step, step.shape.context_rows, source, weights, store, add=False)
    publish_stage(step, "context_norm")


@dw.traced
def keys_values(step: Step) -> None:
    """k and v of every layer from the same context rows, to `context_kv` [row][layer][k, v]."""
    shape = step.shape
    tiles = 2 * shape.kv_size // TILE
    held = context_weights(step, fx.Int32(step.cta))
    wait_stage(step, "context_kv", "context_norm")
    for task in range(step.cta, shape.layers * tiles, shape.ctas):
        context_tile(step, fx.Int32(task) // tiles, fx.Int32(task) % tiles, held)
        held = context_weights(step, fx.Int32(task) + shape.ctas)
    publish_stage(step, "context_kv")


def context_weights(step: Step, task: Any) -> list[Any]:
    """`tile_operands` of a task of `keys_values`; nothing is read past the last task."""
    shape = step.shape
    k, tiles = shape.hidden, 2 * shape.kv_size // TILE
    exists = task < shape.layers * tiles
    layer = exists.select(task // tiles, fx.Int32(0))
    tile = exists.select(task % tiles, fx.Int32(tiles))
    first = shape.q_size * k  # k and v stand below q
    elements = step.weights.at("qkv", layer) + first
    scales = step.weights.at("qkv.scales", layer) + first // MX_BLOCK
    return tile_operands(step, [(elements, scales)], tile, tiles, k)


def context_tile(step: Step, layer: Any, tile: Any, held: Sequence[Any]) -> None:
    """One tile of k, v rows of one layer; `held`: its `context_weights`."""
    shape = step.shape
    k, width = shape.hidden, 2 * shape.kv_size
    tokens = quantised_tokens(step, "context8", k, shape.context_rows)
    tile_partials(step, held, [tokens(c) for c in range(step.geo.chunks(k))], 1)
    gpu.barrier()
    store_tile(step, "context_kv", tile + layer * (width // TILE), shape.context_rows, shape.layers * width)
    gpu.barrier()


@dw.traced
def write_pool(step: Step) -> None:
    """Norm and RoPE of the keys; keys [page][kv head][slot][D] and values [page][kv head][D][slot] to the pool."""
    shape = step.shape
    held = key_weights(step, fx.Int32(step.cta))
    wait_stage(step, "pool", "context_kv")
    count = dw.first_lane(dw.ld(step.local.at("context_count"), fx.Int32(0)))
    for task in range(step.cta, shape.layers * shape.kv_heads, shape.ctas):
        layer, head = fx.Int32(task) // shape.kv_heads, fx.Int32(task) % shape.kv_heads
        write_keys(step, layer, head, count, held)
        held = key_weights(step, fx.Int32(task) + shape.ctas)
        write_values(step, layer, head, count)
    publish_stage(step, "pool")


def key_weights(step: Step, task: Any) -> list[Any]:
    """`head_words` of the keys' norm in a task of `write_pool`; nothing is read past the last task."""
    shape = step.shape
    exists = task < shape.layers * shape.kv_heads
    layer = exists.select(task // shape.kv_heads, fx.Int32(0))
    return head_words(step, "k_norm", layer, exists)


def raw_rows(step: Step) -> tuple[Any, int]:
    """Resource of `context_kv` and the bytes of one of its rows."""
    shape = step.shape
    row_bytes = shape.layers * 2 * shape.kv_size * 2
    return resource(step.local.at("context_kv"), shape.context_rows * row_bytes), row_bytes


def slot_of(step: Step, row: Any) -> tuple[Any, Any]:
    """(page, slot in it) where context row `row` (per lane) goes."""
    slots = resource(step.local.at("context_slots"), 4 * TILE)
    place = load_words(slots, row * 4, 4, 0)[0]
    return place // step.shape.page_size, place % step.shape.page_size


def write_keys(step: Step, layer: Any, head: Any, count: Any, held: Sequence[Any]) -> None:
    """Keys of one layer and K/V head: row tid / lanes, 16 bytes a lane. `held`: the task's `key_weights`."""
    shape, lanes = step.shape, lanes_of(step.shape.head)
    row, dim = fx.thread_idx.x // lanes, fx.thread_idx.x % lanes * VALUES
    raw, row_bytes = raw_rows(step)
    column = (layer * 2 * shape.kv_size + head * shape.head + dim) * 2
    values = lane_values(raw, row * row_bytes + column, dw.CM_DEV)
    positions = resource(step.local.at("context_positions"), 4 * TILE)
    position = load_words(positions, row * 4, 4, 0)[0]
    key = normed_and_rotated(step, values, unpack_pairs(held), position)
    page, slot = slot_of(step, row)
    size = pool_bytes(shape)
    place = (((page * shape.kv_heads + head) * shape.page_size + slot) * shape.head + dim) // 2
    words = fx.Vector.from_elements(pack_pairs(key), fx.Int32)
    base = step.keys + fx.Int64(layer) * size
    dw.st(base, (row < count).select(place, fx.Int32(size // 4)), words, cm=dw.CM_DEV, nbytes=size)


def write_values(step: Step, layer: Any, head: Any, count: Any) -> None:
    """Values of one layer and K/V head, transposed: one bf16 a store."""
    shape = step.shape
    _, row_bytes = raw_rows(step)
    size = pool_bytes(shape)
    base = step.values + fx.Int64(layer) * size
    for first in range(0, TILE * shape.head, step.geo.threads):
        item = fx.thread_idx.x + first
        row, dim = item // shape.head, item % shape.head
        column = layer * 2 * shape.kv_size + shape.kv_size + head * shape.head + dim
        value = dw.ldn(
            step.local.at("context_kv"), shape.context_rows * row_bytes, row * (row_bytes // 2) + column, 1, fx.Int16,
            cm=dw.CM_DEV,
        )  # fmt: skip
        page, slot = slot_of(step, row)
        place = ((page * shape.kv_heads + head) * shape.head + dim) * shape.page_size + slot
        dw.st(base, (row < count).select(place, fx.Int32(size // 2)), value, cm=dw.CM_DEV, nbytes=size)
