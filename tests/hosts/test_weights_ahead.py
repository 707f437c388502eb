"""Weights are requested before the wait in front of their stage: seen in every CTA's loads on the executor.

A wait of a CTA ends in one of its barriers, so what a wave loaded before it has passed that barrier was requested
before the wait was over. The pairs of weights and waits come from the plan: an array in none of the tables below fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from monodraft.checkpoint.config import Family, MarkovKind
from monodraft.drafter import Anchor, ContextRows
from monodraft.executor import MemoryModel
from monodraft.executor.wave.global_memory import GlobalMemory
from monodraft.hosts.executor_drafter import ExecutorDrafter
from monodraft.plan.layout import Block, exchange_block, local_block, weight_block
from monodraft.plan.order import Order
from monodraft.plan.step import Plan, Repeat, Stage
from monodraft.testing import random_config, random_weights

pytestmark = pytest.mark.executed

CTAS = 4
FIRST = {"fc": "nothing is waited for before it", "embed": "it follows the pool's own work, and no wait stands between"}
"""Stages in front of which no wait stands, and why."""
BEHIND = {"inner": "lm_head"}
"""Stages without a wait that run directly behind the wait of another: `inner` goes before the tiles of `lm_head`."""


@dataclass(frozen=True)
class Load:
    """One load instruction of a wave: barriers that the wave had passed, the array with its block and layer, and the
    byte in it at which the first lane starts."""

    rank: int
    cta: int
    wave: int
    barriers: int
    block: str
    array: str
    layer: int
    start: int


class Loads:
    """Loads of a drafter's weights, local and exchange memory while `spying`."""

    def __init__(self, drafter: ExecutorDrafter) -> None:
        shape, workspace = drafter.shape, drafter.workspace
        views = {
            "weights": (weight_block(shape), workspace.weights),
            "local": (local_block(shape), [view.region for view in workspace.local]),
            "exchange": (exchange_block(shape), [view.region for view in workspace.exchange]),
        }
        self.places = [
            (region.start, region.end, kind, block) for kind, (block, all_) in views.items() for region in all_
        ]
        self.found: list[Load] = []

    def note(self, wave: GlobalMemory, start: int) -> None:
        for first, end, kind, block in self.places:
            if first <= start < end:
                array, layer, place = array_at(block, start - first)
                where = wave.cta.dispatch.rank, wave.cta.number, wave.number, wave.barriers
                self.found.append(Load(*where, kind, array, layer, place))

    @contextmanager
    def spying(self) -> Iterator[list[Load]]:
        """Notes every load instruction of the reference engine."""
        real = GlobalMemory.load_at

        def load_at(wave: GlobalMemory, start: np.ndarray, *rest: object) -> object:
            self.note(wave, int(start.min()))
            return real(wave, start, *rest)  # type: ignore[arg-type]

        self.found.clear()
        GlobalMemory.load_at = load_at  # type: ignore[method-assign, assignment]
        try:
            yield self.found
        finally:
            GlobalMemory.load_at = real  # type: ignore[method-assign]


def array_at(block: Block, offset: int) -> tuple[str, int, int]:
    """Name, layer and byte of an offset in a block."""
    for array in block.arrays:
        for layer in range(block.layers if array.per_layer else 1):
            place = offset - block.offset(array.name, layer)
            if 0 <= place < array.nbytes:
                return array.name, layer, place
    return "", 0, offset


def launches(markov: MarkovKind, ranks: int) -> list[tuple[Plan, list[Load]]]:
    """Plan and loads of two launches of a small drafter: one that only commits rows, and one that only drafts."""
    config = random_config(Family.QWEN3, markov=markov, vocab_size=1024)
    drafter = ExecutorDrafter(
        config, random_weights(config), ranks=ranks, ctas=CTAS, positions=128, max_requests=2,
        engine="reference", model=MemoryModel.sequential(),
    )  # fmt: skip
    loads, seen = Loads(drafter), []
    drafter.open(0)
    rows = torch.randn(9, config.feature_size, generator=torch.Generator().manual_seed(1)).bfloat16()
    drafter.commit([ContextRows(0, 0, rows)])
    with loads.spying() as found:
        drafter.fork(0, 1, 9)  # rows that wait go first, in a launch of their own
        seen.append((drafter.program(0, 16)[0], list(found)))
    with loads.spying() as found:
        drafter.propose([Anchor(0, 3, 9)])
        seen.append((drafter.program(1, 0)[0], list(found)))
    return seen


NOT_AHEAD = {
    "rope": "angles of positions, not weights",
    "windows": "a word a layer, not weights",
    "embed": "the host gives the ids; no wait stands between them and the rows",
    "markov_w1": "its row is the token that the wait brings",
}
"""Arrays of the weight block that nothing has to request ahead, and why."""
ALSO = {"chain": ("markov_inner_serial", "markov_inner_bias"), "confidence": ("confidence_bias",)}
"""What stages read beside the arrays that carry their bytes in the plan."""


def arrays_of(plan: Plan, stage: Stage, repeat: int = 0) -> tuple[str, ...]:
    """Weight arrays that a run of a stage has to request ahead."""
    named = [name for name in (*stage.weights, *ALSO.get(stage.name, ())) if name not in NOT_AHEAD]
    if stage.name == "input" and repeat == plan.shape.layers - 1:
        named = ["final_norm"]
    return (*named, *(f"{name}.scales" for name in named))


def layer_of(stage: Stage, array: str, repeat: int) -> int | None:
    """Layer of an array that a run of a stage reads; None: of whatever layer its tasks are, or there are no layers."""
    if stage.repeat is not Repeat.LAYER or array.startswith("final_norm"):
        return None
    return repeat + 1 if stage.name == "input" else repeat


def polls(loads: list[Load], region: str, layer: int) -> list[tuple[int, Load]]:
    """Looks at a set of flags or pairs, each with its place in the list."""
    return [
        (i, each) for i, each in enumerate(loads) if (each.block, each.array, each.layer) == ("local", region, layer)
        or (each.block, each.array, each.layer) == ("exchange", region, layer)
    ]  # fmt: skip


def in_time(loads: list[Load], looks: list[tuple[int, Load]]) -> Callable[[int, Load], bool]:
    """Whether a load, by its place in the list, was issued before the wait of which `looks` are the polls: before the
    barrier that ends it, and where its wave polls itself, before its first poll."""
    ends: dict[tuple[int, int], int] = {}
    first_looks: dict[tuple[int, int, int], int] = {}
    for index, look in looks:
        ends.setdefault((look.rank, look.cta), look.barriers)
        first_looks.setdefault((look.rank, look.cta, look.wave), index)

    def before(index: int, each: Load) -> bool:
        first_look = first_looks.get((each.rank, each.cta, each.wave), index)
        return each.barriers <= ends[each.rank, each.cta] and index <= first_look

    return before


def late(loads: list[Load], array: str, layer: int | None, looks: list[tuple[int, Load]]) -> list[Load]:
    """First loads of an array, one a wave, that were issued after the wait of which `looks` are the polls."""
    before, firsts = in_time(loads, looks), {}
    for index, each in enumerate(loads):
        if each.block == "weights" and each.array == array and layer in (None, each.layer):
            firsts.setdefault((each.rank, each.cta, each.wave), (index, each))
    return [each for index, each in firsts.values() if not before(index, each)]


def check_stages(plan: Plan, loads: list[Load]) -> set[str]:
    """Every stage with a wait of its own, or behind that of another (`BEHIND`): the arrays that were looked at."""
    order, seen = Order(plan), set()
    turns = {(turn.stage.name, turn.repeat): turn for turn in order.turns}
    for (name, repeat), turn in turns.items():
        waiting = turns[BEHIND.get(name, name), repeat]
        if turn.stage.repeat is Repeat.SLOT:
            continue
        for wait in waiting.stage.waits:
            (producer,) = order.producers(waiting, wait)
            shift = 1 if producer.stage.name == "input" else 0  # embed takes the set before those of the layers
            looks = polls(loads, wait.region, producer.repeat + shift)
            assert looks, f"{name} does not wait for {wait.region}"
            for array in arrays_of(plan, turn.stage, repeat):
                asked_late = late(loads, array, layer_of(turn.stage, array, repeat), looks)
                assert not asked_late, f"{name} asks for {array} after its wait"
                seen.add(array)
    return seen


def check_slots(plan: Plan, loads: list[Load]) -> set[str]:
    """The chain: what slot j + 1 multiplies first is requested before the wait for slot j's candidates; slot 0's before
    that for the inner linear; the confidence head's weights before the last one."""
    shape = plan.shape
    firsts = {"markov_w2": lambda each: (each.cta + CTAS * each.wave) * 16 * 2 * shape.markov_rank}
    looks = {0: polls(loads, "flags.inner", 0)} if shape.inner_rows else {}
    if shape.inner_rows:
        firsts["markov_inner_serial"] = lambda each: each.wave * 16 * 2 * shape.inner_depth
        firsts["markov_inner_bias"] = lambda each: each.wave * 16 * 4
    slot_bytes = shape.requests * shape.ranks * CTAS * 16
    candidates = polls(loads, "candidates", 0)
    for slot in range(shape.block):
        looks[slot + 1] = [(i, each) for i, each in candidates if each.start // slot_bytes == slot]
    for slot, polled in looks.items():
        assert polled, f"nobody waits before slot {slot}"
        before = in_time(loads, polled)
        for array, first in firsts.items():
            asked: Counter[tuple[int, int, int]] = Counter()
            for index, each in enumerate(loads):
                if each.array == array and each.start == first(each):
                    asked[each.rank, each.cta, each.wave] += before(index, each)
            assert set(asked.values()) == {min(slot + 1, shape.block)}, f"slot {slot} asks for {array} after the wait"
    for array in arrays_of(plan, plan.stage("confidence")):
        assert not late(loads, array, None, looks[shape.block]), f"{array} is asked for after the last wait"
    return {*firsts, *arrays_of(plan, plan.stage("confidence"))}


@pytest.mark.parametrize(
    ("markov", "ranks"),
    [
        (MarkovKind.RNN, 1),
        pytest.param(MarkovKind.VANILLA, 2, marks=pytest.mark.slow),
        pytest.param(MarkovKind.GATED, 2, marks=pytest.mark.slow),
    ],
)
def test_weights_are_requested_before_the_wait_in_front_of_them(markov: MarkovKind, ranks: int) -> None:
    for plan, loads in launches(markov, ranks):
        seen = check_stages(plan, loads)
        if plan.shape.requests:
            seen |= check_slots(plan, loads)
        free = {name for stage in plan.stages if stage.name in FIRST for name in arrays_of(plan, stage)}
        assert all(not plan.stage(name).waits for name in FIRST if name in {stage.name for stage in plan.stages})
        read = {each.array for each in loads if each.block == "weights"}
        assert read <= seen | free | set(NOT_AHEAD), "a weight that no wait was compared with"
