"""A rank that never starts, and ranks that were given other numbers of rows: the wait that must miss is worked out from
the plans that the ranks ran, and is the one that is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch

pytest.importorskip("flydsl")

from fault_cases import (
    BASE,
    LEAVE,
    MORE,
    SEEDED_TICKS,
    TWO_STAGE,
    drafter,
    failed,
    in_time,
    place,
    wanted_tokens,
    within_rank,
)
from faulty import ROWS, TICKS, FaultyDrafter, Setting

import monodraft.executor as ex
from monodraft.device.health import decode, launch_tag
from monodraft.hosts.failures import failure, last_epoch
from monodraft.plan.order import Order
from monodraft.plan.step import Plan, Stage, Wait

pytestmark = pytest.mark.executed


@dataclass(frozen=True)
class Ran:
    """What a rank launched: its plan, and how many context rows it was given."""

    plan: Plan
    rows: int = ROWS


def put_by(plan: Plan, source: int, target: int, wait: Wait) -> set[int]:
    """Pairs of a region (of one layer; candidates: of all slots) of rank `target` that rank `source` puts."""
    shape = plan.shape
    half = shape.hidden // 2
    width = half // shape.ranks
    if wait.region == "candidates":
        entries, first = shape.ranks * shape.ctas, source * shape.ctas
        turns = range(shape.block * shape.requests)
        return {2 * (turn * entries + first) + i for turn in turns for i in range(2 * shape.ctas)}
    if wait.region.endswith(".sum"):
        return {row * half + source * width + i for row in range(shape.rows) for i in range(width)}
    part = shape.rows * (width if shape.two_stage else half)
    return set(range(source * part, (source + 1) * part))


def watched(plan: Plan, wait: Wait, repeat: int) -> set[int]:
    """Pairs of a region that a wait watches."""
    shape = plan.shape
    if wait.region == "candidates":
        each = 2 * shape.ranks * shape.ctas * shape.requests
        return set(range(repeat * each, (repeat + 1) * each))
    parts = 1 if shape.two_stage else shape.ranks
    return set(range(parts * shape.rows * shape.hidden // 2))


def flags_come(view: Plan, own: Plan, stage: Stage, wait: Wait, repeat: int) -> bool:
    """Whether a rank that ran `own` publishes all flags, or local pairs, that a wait of `view` is for."""
    order = Order(view)
    (turn,) = order.producers(order.turn(stage.name, repeat), wait)
    owners = {each.name: each.owners for each in own.stages}
    return owners.get(turn.stage.name, 0) >= turn.stage.owners


def first_missed(view: Ran, ran: Sequence[Ran], ranks: Sequence[int]) -> tuple[int, int] | None:
    """(rank, site) of the first wait of the plan `view` in the memory of `ranks` that what all ranks `ran` leaves
    without its tag. Pairs of a rank with other context rows carry another tag."""
    for site, (stage, wait, repeat) in enumerate(view.plan.waits, 1):
        for rank in ranks:
            if within_rank(wait):
                own = ran[rank]
                come = own.rows == view.rows and flags_come(view.plan, own.plan, stage, wait, repeat)
            else:
                sources = [(source, each.plan) for source, each in enumerate(ran) if each.rows == view.rows]
                puts = (put_by(plan, source, rank, wait) for source, plan in sources)
                come = watched(view.plan, wait, repeat) <= set().union(*puts)
            if not come:
                return rank, site
    return None


def with_launches(change: Callable[[list[ex.Launch]], list[ex.Launch]]) -> pytest.MonkeyPatch:
    """Launches pass through `change` until the patch is undone."""
    run, patch = ex.run, pytest.MonkeyPatch()
    patch.setattr(ex, "run", lambda launches, **options: run(change(launches), **options))
    return patch


def check_disagreement(steps: FaultyDrafter, host: Ran, ran: Sequence[Ran]) -> None:
    """Every rank runs its own; `host` is what the executor's host takes all of them to have run.

    The host names the wait that the plans say is the first to miss; so does each rank that reads its own memory only
    (one process a rank). Where nothing is missing in what is read, it is the wait on record, the first that its own
    rank's plan says. The next step is right.
    """
    programs = [steps.program(each.plan.shape.requests, each.plan.shape.context_rows)[1] for each in ran]

    def change(launches: list[ex.Launch]) -> list[ex.Launch]:
        for view, each in zip(steps.workspace.local, ran, strict=True):
            view("context_count")[0] = each.rows
        return [ex.Launch(programs[each.rank], each.args, rank=each.rank) for each in launches]

    patch = with_launches(change)
    try:
        error, epoch = failed(steps)
    finally:
        patch.undo()
    (fault,), ranks = error.faults, range(len(ran))
    assert last_epoch(steps.workspace, 0) == last_epoch(steps.workspace, 1) == epoch, "all kernels have ended"
    record = decode(steps.workspace.health_word)
    assert record is not None
    missed = first_missed(host, ran, ranks) or (record.rank, record.site)
    assert fault.where == place(host.plan, missed[1], missed[0])
    assert (record.rank, record.site) == first_missed(ran[record.rank], ran, [record.rank])
    for rank, own in enumerate(ran):
        said = failure(own.plan, steps.workspace, epoch, own.rows, [rank])
        assert said is not None
        mine = first_missed(own, ran, [rank]) or (record.rank, record.site)
        if mine[1] > len(own.plan.waits):
            assert said.faults[0].where == f"rank {mine[0]}, wait {mine[1]} of its step"
        else:
            assert said.faults[0].where == place(own.plan, mine[1], mine[0])
    in_time(steps, host.plan, TICKS + LEAVE)
    assert torch.equal(steps.recovered(), wanted_tokens(TWO_STAGE))


@pytest.mark.parametrize("absent", [0, 1])
@pytest.mark.parametrize(
    "setting",
    [TWO_STAGE, *(pytest.param(each, marks=pytest.mark.slow) for each in (*BASE[1:], *MORE))],
    ids=str,
)
def test_a_rank_that_never_starts(setting: Setting, absent: int) -> None:
    """The first wait for peers is named on the other rank, and the rank whose epoch stands still."""
    plan, steps = setting.plan(), drafter(setting)
    site = next(i for i, (_, wait, _) in enumerate(plan.waits, 1) if not within_rank(wait))
    patch = with_launches(lambda launches: [each for each in launches if each.rank != absent])
    try:
        error, epoch = failed(steps)
    finally:
        patch.undo()
    waiting, missing = error.faults
    assert waiting.where == place(plan, site, 1 - absent)
    assert f"from rank {absent} " in waiting.found
    assert (missing.where, missing.wanted) == (f"rank {absent}, epoch", f"{epoch}: its kernel ends")
    in_time(steps, plan, TICKS)
    assert torch.equal(steps.recovered(), wanted_tokens(setting))


@pytest.mark.parametrize("other", [0, 1])
def test_ranks_that_disagree_about_the_context_rows(other: int) -> None:
    """Only the tags can tell: rows are committed within a rank, and the pools would differ from then on."""
    plan, steps = TWO_STAGE.plan(), drafter(TWO_STAGE)
    ran = [Ran(plan, ROWS - 2 if rank == other else ROWS) for rank in range(2)]
    check_disagreement(steps, Ran(plan), ran)


def test_the_error_says_which_rows_the_other_rank_had() -> None:
    plan, steps = TWO_STAGE.plan(), drafter(TWO_STAGE)

    def change(launches: list[ex.Launch]) -> list[ex.Launch]:
        steps.workspace.local[1]("context_count")[0] = ROWS - 2
        return launches

    patch = with_launches(change)
    try:
        _, epoch = failed(steps)
    finally:
        patch.undo()
    found = []
    for rank, rows in enumerate((ROWS, ROWS - 2)):
        error = failure(plan, steps.workspace, epoch, rows, [rank])
        assert error is not None
        found.append(error.faults[0])
    site = plan.sites["o_sum<pairs.o"][0]
    assert [each.where for each in found] == [place(plan, site, rank) for rank in range(2)]
    assert found[0].found.startswith(f"tag {epoch} of {ROWS - 2} context rows, not {ROWS}, in pair ")
    assert found[1].found.startswith(f"tag {epoch} of {ROWS} context rows, not {ROWS - 2}, in pair ")
    assert "from rank 1 " in found[0].found
    assert torch.equal(steps.recovered(), wanted_tokens(TWO_STAGE))


def test_a_rank_that_drafts_no_rows() -> None:
    """Rank 1 launches a step that only commits: the first that waits in vain is named."""
    plan, steps = TWO_STAGE.plan(), drafter(TWO_STAGE)
    check_disagreement(steps, Ran(plan), [Ran(plan), Ran(TWO_STAGE.plan(0))])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("requests", "context"),
    [
        ((1, 2), (16, 16)),
        ((2, 1), (16, 16)),
        ((0, 2), (16, 16)),
        ((1, 1), (16, 0)),
        ((1, 1), (0, 16)),
        ((2, 1), (0, 16)),
    ],
    ids=str,
)
def test_ranks_that_launch_steps_of_other_rows(requests: tuple[int, int], context: tuple[int, int]) -> None:
    """Requests drafted, and launches with and without context rows, differ between the ranks."""
    setting = Setting(requests=2)
    steps = roomy()
    ran = [Ran(setting.plan(n, rows), ROWS if rows else 0) for n, rows in zip(requests, context, strict=True)]
    check_disagreement(steps, Ran(setting.plan()), ran)


@cache
def roomy() -> FaultyDrafter:
    """A drafter with room for two requests."""
    return FaultyDrafter(Setting(requests=2))


def test_a_launch_is_replayed_without_the_host() -> None:
    """The very same arguments 12 times, nothing written between: the epoch goes on by itself and the bytes stay."""
    steps = drafter(TWO_STAGE)
    assert torch.equal(steps.turn(), wanted_tokens(TWO_STAGE))
    workspace, (_, program) = steps.workspace, steps.program(1, 16)
    launches = [ex.Launch(program, workspace.arguments(rank, SEEDED_TICKS), rank=rank) for rank in range(2)]

    def outputs() -> list[bytes]:
        return [view(name).tobytes() for view in workspace.local for name in ("tokens", "confidence", "final")]

    first, before = outputs(), last_epoch(workspace, 0)
    for replay in range(1, 13):
        ex.run(launches, memory=workspace.memory, schedule=ex.Schedule.random(replay), **steps._run)
        assert workspace.health_word == 0
        assert [last_epoch(workspace, rank) for rank in range(2)] == [before + replay] * 2
        assert outputs() == first


def test_tags_go_on_where_the_counter_starts_again() -> None:
    """Epochs 2^32 - 2, 2^32 - 1, 1, 2: every step is right, and the tags of 5 context rows wrap too."""
    steps = drafter(TWO_STAGE)
    before = [int(view("epoch")[0]) for view in steps.workspace.local]
    for view in steps.workspace.local:
        view("epoch").view(np.uint32)[0] = 2**32 - 3
    for wanted in (2**32 - 2, 2**32 - 1, 1, 2):
        assert torch.equal(steps.turn(), wanted_tokens(TWO_STAGE))
        assert last_epoch(steps.workspace, 1) == wanted
        flags = {int(view("flags.fc").view(np.uint32)[0]) for view in steps.workspace.local}
        assert flags == {launch_tag(wanted, ROWS)}
    for view in steps.workspace.local:
        view("epoch")[0] = max(before) + 8
