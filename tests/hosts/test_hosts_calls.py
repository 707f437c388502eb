"""Calls that break the contract are refused with the reason, before anything changes; page tables; live launches."""

from __future__ import annotations

import pytest
import torch

import monodraft.executor as ex
from monodraft.drafter import Anchor, ContextRows, Drafter
from monodraft.errors import InputError, KernelError
from monodraft.hosts.executor_drafter import ExecutorDrafter
from monodraft.hosts.pages import PageTables
from monodraft.plan.shape import StepShape
from monodraft.plan.step import Plan
from monodraft.testing import random_config, random_weights

pytestmark = pytest.mark.numbers

CONFIG = random_config(vocab_size=64)
WEIGHTS = random_weights(CONFIG)


@pytest.fixture
def drafter() -> ExecutorDrafter:
    """Requests 0 (with 20 queued rows) and 1 open; nothing is traced until a launch is needed."""
    made = ExecutorDrafter(CONFIG, WEIGHTS, ctas=2, positions=64, page_size=32, max_requests=2)
    made.open(0)
    made.open(1)
    made.commit([rows(0, 0, 20)])
    return made


def rows(request: int, start: int, count: int, width: int = CONFIG.feature_size) -> ContextRows:
    return ContextRows(request, start, torch.zeros(count, width, dtype=torch.bfloat16))


def test_stands_behind_the_protocol(drafter: ExecutorDrafter) -> None:
    assert isinstance(drafter, Drafter)
    assert drafter.config is CONFIG


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (rows(7, 0, 1), "an open request"),
        (rows(0, 19, 1), "20, where the context"),
        (rows(0, 21, 1), "20, where the context"),
        (rows(0, 20, 1, width=8), "features"),
        (ContextRows(0, 20, torch.zeros(1, CONFIG.feature_size, dtype=torch.int32)), "floating point"),
        (rows(0, 20, 50), "at most 64 positions"),
    ],
)
def test_bad_rows_are_refused_and_change_nothing(drafter: ExecutorDrafter, bad: ContextRows, named: str) -> None:
    with pytest.raises(InputError, match=named):
        drafter.commit([rows(1, 0, 3), bad])
    assert drafter._tables[1].length == 0
    drafter.commit([rows(0, 20, 1), rows(1, 0, 3)])


@pytest.mark.parametrize(
    ("anchor", "named"),
    [
        (Anchor(5, 1, 20), "an open request"),
        (Anchor(0, 1, 19), "20: positions 0..19"),
        (Anchor(0, 64, 20), "0..63"),
        (Anchor(0, -1, 20), "0..63"),
        (Anchor(0, 1, 20, float("nan")), "temperature"),
        (Anchor(0, 1, 20, 0.5, -1), "seed"),
    ],
)
def test_bad_anchors_are_refused(drafter: ExecutorDrafter, anchor: Anchor, named: str) -> None:
    with pytest.raises(InputError, match=named):
        drafter.propose([anchor])
    assert drafter.launches == 0


def test_a_block_must_end_within_the_pool(drafter: ExecutorDrafter) -> None:
    drafter.commit([rows(0, 20, 40)])
    with pytest.raises(InputError, match="block of 7 must end within the pool"):
        drafter.propose([Anchor(0, 1, 60)])


def test_requests_cannot_be_opened_or_closed_twice(drafter: ExecutorDrafter) -> None:
    with pytest.raises(InputError, match="not open yet"):
        drafter.open(0)
    with pytest.raises(InputError, match="fewer than 2"):
        drafter.open(2)
    drafter.close(0)
    assert not drafter._queue
    with pytest.raises(InputError, match="an open request"):
        drafter.close(0)
    with pytest.raises(InputError, match="source"):
        drafter.fork(0, 2, 0)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"numerics": "bf16"}, "mxfp8"),
        ({"ranks": 3}, "ranks"),
        ({"device": "cuda"}, "cpu"),
        ({"positions": 64, "page_size": 40}, "page_size"),
        ({"gpu": ex.Gpu.mi355x(cus=2), "ctas": 4}, "compute units"),
    ],
)
def test_options_that_it_cannot_honour(options: dict, named: str) -> None:
    with pytest.raises(InputError, match=named):
        ExecutorDrafter(CONFIG, WEIGHTS, **options)


def test_one_launch_a_workspace_and_no_other_plan(drafter: ExecutorDrafter) -> None:
    workspace, shape = drafter.workspace, drafter.shape
    workspace.busy = True
    with pytest.raises(KernelError, match="one launch a workspace"):
        workspace.launch(Plan(shape), None, 1)  # type: ignore[arg-type]
    workspace.busy = False
    other = Plan(StepShape(CONFIG, ctas=4, requests=2, capacity=2, pages=4, page_size=32, positions=64))
    with pytest.raises(KernelError, match="built for another plan") as error:
        workspace.launch(other, None, 1)  # type: ignore[arg-type]
    assert {fault.where for fault in error.value.faults} == {"ctas"}


def test_pages_are_shared_copied_and_given_back() -> None:
    tables = PageTables(pages=4, page_size=32, max_requests=3)
    tables.open(0)
    tables.extend(0, 70)
    assert tables.free_pages == 1
    with pytest.raises(InputError, match="0\\.\\.70"):
        tables.fork(0, 1, 71)
    source, copy = tables.fork(0, 1, 40) or (0, 0)
    assert source == tables[0].pages[1]
    assert tables[1].pages == [tables[0].pages[0], copy]
    assert tables.slot(1, 33) == copy * 32 + 1
    with pytest.raises(InputError, match="1 more pages"):
        tables.check_room({1: 40})
    with pytest.raises(InputError, match="one page to copy"):
        tables.fork(0, 2, 10)
    tables.close(0)
    assert tables.free_pages == 2
    tables.close(1)
    assert tables.free_pages == 4
