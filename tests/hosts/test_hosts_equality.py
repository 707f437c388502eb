"""The one-launch kernel against the reference: tokens, logits, intermediates, over schedules, placements and junk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from both import Both
from checkpoints import Release, released
from drafts import CTAS, Case, Conversation, compare, drafters, outputs

import monodraft.executor as ex
from monodraft.checkpoint.config import Family, MarkovKind
from monodraft.drafter import Anchor, ContextRows
from monodraft.hosts.executor_drafter import ExecutorDrafter
from monodraft.plan.shape import AllReduce
from monodraft.reference import ReferenceDrafter
from monodraft.testing import random_weights

pytestmark = pytest.mark.executed

MAIN = Case(ranks=2, requests=2, overrides=(("windows", (12, 64)),))
"""14 query rows of two requests, M3.1's layer, a window that bites, on 2 ranks: what most tests here share."""

EVERY = [
    *(Case(Family.MINIMAX_M31, ranks, 2) for ranks in (1, 2, 4, 8)),
    *(Case(Family.QWEN3, ranks, 2) for ranks in (1, 2, 4, 8)),
    *(Case(Family.MINICPM5, ranks, 2) for ranks in (1, 2, 4, 8)),
    *(Case(Family.QWEN3, ranks, 1, kind) for kind in (MarkovKind.GATED, MarkovKind.RNN) for ranks in (1, 4)),
    *(Case(ranks=ranks, requests=1, all_reduce=AllReduce.TWO_STAGE) for ranks in (2, 4, 8)),
    Case(ranks=4, requests=1, splits=2),
    Case(Family.QWEN3, 4, 2, splits=2),
    Case(ranks=2, requests=2, overrides=(("head_dim", 128), ("num_heads", 4), ("num_kv_heads", 2))),
    Case(ranks=1, requests=1, overrides=(("windows", (5, None)),)),
    Case(ranks=1, requests=5, overrides=(("block_size", 3),)),
    Case(ranks=1, requests=1, overrides=(("block_size", 16), ("head_dim", 64))),
    Case(ranks=2, requests=16, overrides=(("block_size", 1),)),
    Case(Family.QWEN3, 2, 1, overrides=(("mxfp8_linears", False), ("has_confidence", False))),
]  # fmt: skip


def test_drafts_are_the_reference_s() -> None:
    outcome = compare(MAIN, rounds=4)
    assert outcome.compared == 4 * 2 * 7
    assert not outcome.near_ties


@pytest.mark.slow
@pytest.mark.parametrize("case", EVERY, ids=str)
def test_drafts_of_every_family_and_rank_count(case: Case) -> None:
    outcome = compare(case, rounds=6)
    print(f"{case}: {outcome.compared} compared, near ties {outcome.near_ties}, error {outcome.error:.1e}")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("release", list(Release))
def test_drafts_of_every_release_as_its_vendor_writes_it(release: Release, ranks: int, tmp_path: Path) -> None:
    """Config, names and dtypes of the vendor's own folder, nvidia's float32 among them."""
    config, weights = released(release, tmp_path)
    executed = ExecutorDrafter(config, weights, ranks=ranks, ctas=CTAS, positions=512, schedule=ex.Schedule.random)
    both = Both(executed, ReferenceDrafter(config, weights, "mxfp8", ranks=ranks), weights)
    conversation = Conversation((both,), executed.shape.requests)
    for _ in range(4):
        conversation.turn()
    print(f"{release} on {ranks} ranks: {both.outcome}")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_sampled_drafts_are_the_reference_s(ranks: int) -> None:
    compare(Case(ranks=ranks), rounds=6, temperature=0.8)


BF16_ROUNDING = 2.0**-8
"""Relative error of one rounding to bf16: what a few turned roundings stay below in the root mean square."""


def close(ours: np.ndarray, wanted: torch.Tensor, name: str) -> None:
    """bf16 arrays that differ by less than a rounding in the root mean square."""
    values = torch.from_numpy(ours.view(np.int16).copy()).view(torch.bfloat16).double()
    assert float((values - wanted.double()).norm()) <= BF16_ROUNDING * float(wanted.double().norm()), name


def test_intermediates_are_the_reference_s() -> None:
    """Keys and values of every layer in the pool, attention and FFN of the last layer, final rows."""
    executed, reference = drafters(MAIN)
    conversation = Conversation((executed, reference), MAIN.requests, seed=5)
    try:
        conversation.turn()
        with reference.recording() as record:
            conversation.turn()
        wanted = dict(record)
        shape, views = executed.shape, executed.workspace.local
        last = f"layer{shape.layers - 1}"
        for name, columns, key in (("attention", shape.q_size, "attention"), ("act", shape.ffn, "ffn")):
            ours = np.concatenate([view(name)[:, :columns] for view in views], 1)
            close(ours, wanted[f"{last}.{key}"], name)
        close(views[0]("final"), wanted["final"], "final")
        for request in range(MAIN.requests):
            check_pool(executed, reference, request, conversation.positions[request])
    finally:
        conversation.close()


def check_pool(executed: ExecutorDrafter, reference: object, request: int, length: int) -> None:
    """Committed keys and values of a request, of all layers and ranks."""
    shape, heads = executed.shape, executed.shape.kv_heads
    slots = [executed._tables.slot(request, position) for position in range(length)]
    for layer in range(shape.layers):
        wanted = reference.pool.read(request, layer, 0)  # type: ignore[attr-defined]
        for rank in range(shape.ranks):
            part = slice(rank * heads, (rank + 1) * heads)
            dims = (shape.layers, shape.pages, heads)
            size, head = shape.page_size, shape.head
            keys = executed.workspace.keys[rank].array.view(np.uint16).reshape(*dims, size, head)
            values = executed.workspace.values[rank].array.view(np.uint16).reshape(*dims, head, size)
            places = [divmod(slot, size) for slot in slots]
            ours = np.stack([keys[layer, page, :, offset] for page, offset in places])
            close(ours, wanted.keys[:, part], f"keys of layer {layer}")
            ours = np.stack([values[layer, page, :, :, offset] for page, offset in places])
            close(ours, wanted.values[:, part], f"values of layer {layer}")


def junk(executed: ExecutorDrafter, byte: int) -> None:
    """Fill scratch, flags, exchange memory and unused pages; leave what the host writes, and the counter."""
    kept = ("epoch", "anchors", "starts", "page_table", "context_count", "context_positions", "context_slots",
            "features", "temperatures", "seeds", "attention", "act")  # fmt: skip
    for rank, view in enumerate(executed.workspace.local):
        for array in view.block.arrays:
            layers = view.block.layers if array.per_layer else 1
            if array.name not in kept:
                for layer in range(layers):
                    view(array.name, layer).view(np.uint8)[...] = byte
        executed.workspace.exchange[rank].region.array[...] = byte
        free = executed._tables._free
        for region in (executed.workspace.keys[rank], executed.workspace.values[rank]):
            region.array.reshape(executed.shape.layers, executed.shape.pages, -1)[:, free] = byte
        view("features")[int(view("context_count")[0]) :] = 0x7FC0


def test_bytes_do_not_depend_on_schedule_delayed_ranks_or_junk() -> None:
    """The same launch again and again: 100 seeds, one rank starved in each, memory filled with junk before."""
    executed, _ = drafters(MAIN)
    conversation = Conversation((executed,), MAIN.requests, seed=9)
    try:
        conversation.turn()
        rows = conversation.rows(7)
        anchors = [Anchor(request, 3 + request, at) for request, at in enumerate(conversation.positions)]
        executed.commit(rows)
        executed.propose(anchors)
        first = outputs(executed)
        plan, program = executed.program(MAIN.requests, 16)
        options = {"engine": "fast", "gpu": ex.Gpu.mi355x(cus=CTAS), "model": ex.MemoryModel.harsh().without("races")}
        for seed in range(100):
            junk(executed, (0xA5, 0xFF)[seed % 2])
            schedule = ex.Schedule.adversarial(seed, starve="rank")
            executed.workspace.launch(plan, program, 10**10, schedule=schedule, **options)
            assert executed.workspace.health_word == 0, seed
            assert outputs(executed) == first, seed
    finally:
        conversation.close()


@pytest.mark.parametrize("boundary", [31, 32])
def test_memory_on_both_sides_of_a_boundary_gives_the_same_bytes(boundary: int) -> None:
    """Weights, workspace and pool placed so that they straddle 2^31 and 2^32 bytes."""
    executed, reference = drafters(MAIN)
    config = executed.config
    memory = ex.Memory(ranks=2)
    memory.array(0, "below", np.zeros(4096, np.uint8), address=2**boundary - 1_500_000)
    other = ExecutorDrafter(
        config, random_weights(config), ranks=2, ctas=CTAS, positions=512, max_requests=2, memory=memory
    )  # fmt: skip
    regions = [*other.workspace.weights, *other.workspace.keys, *(view.region for view in other.workspace.local)]
    assert any(region.start < 2**boundary < region.end for region in regions) or {
        region.start < 2**boundary for region in regions
    } == {True, False}
    other._programs = executed._programs
    conversation = Conversation((other, reference), MAIN.requests, seed=2)
    try:
        for _ in range(2):
            for ours, wanted in conversation.turn():
                assert ours.tokens.tolist() == wanted.draft.tokens.tolist()
    finally:
        conversation.close()


def test_long_prompts_go_first_and_forks_share_pages() -> None:
    """A prompt of three pages is committed in launches of 16 rows; a fork drafts what its source did at that length."""
    executed, reference = drafters(MAIN)
    generator = torch.Generator().manual_seed(8)
    features = torch.randn(150, executed.config.feature_size, generator=generator).bfloat16()
    both = (executed, reference)
    for drafter in both:
        drafter.open(0)
        drafter.commit([ContextRows(0, 0, features)])
    launches = executed.launches
    drafts = [drafter.propose([Anchor(0, 7, 150)])[0].tokens.tolist() for drafter in both]
    assert drafts[0] == drafts[1]
    assert executed.launches - launches == 10  # 9 that only commit, and the step with the last 6 rows
    for drafter in both:
        drafter.fork(0, 1, 100)
        drafter.close(0)
    drafts = [drafter.propose([Anchor(1, 9, 100)])[0].tokens.tolist() for drafter in both]
    assert drafts[0] == drafts[1]
    for drafter in both:
        drafter.close(1)
    assert executed._tables.free_pages == executed.shape.pages
