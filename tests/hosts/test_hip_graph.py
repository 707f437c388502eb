"""Capture and replay of the step on the stand-in for the HIP library: order of calls, errors, what is freed. It has not
run on a GPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from fake_hip import CAPTURE_UNSUPPORTED, INVALID, FakeHip, words
from test_hip_host import CONFIG, NOTHING_LEFT, healthy, make, propose, together

from monodraft.drafter import Anchor, ContextRows
from monodraft.errors import KernelError, StepFailed
from monodraft.hosts import hip_drafter
from monodraft.hosts.consensus import Refused
from monodraft.hosts.hip_drafter import HipDrafter
from monodraft.hosts.hip_graph import Graph
from monodraft.hosts.hip_library import HipError
from monodraft.plan.layout import local_block
from monodraft.plan.step import Plan

pytestmark = pytest.mark.numbers

CAPTURE = ["hipStreamBeginCapture", "hipModuleLaunchKernel", "hipStreamEndCapture", "hipGraphInstantiate"]


def started(fake: FakeHip, **options: Any) -> HipDrafter:
    drafter = make(fake, graphs=True, **options)
    fake.on_launch = healthy(drafter, [7, 9])
    drafter.open(0)
    drafter.commit([ContextRows(0, 0, torch.ones(3, CONFIG.feature_size))])
    return drafter


def graph_of(drafter: HipDrafter) -> Graph:
    graph = drafter.program(1, 16)[1]
    assert isinstance(graph, Graph)
    return graph


def test_a_launch_is_captured_once_and_replayed() -> None:
    fake = FakeHip()
    drafter = started(fake)
    first = fake.calls.index(CAPTURE[0])
    assert fake.calls[first : first + 4] == CAPTURE
    assert fake.grid == [4, 1, 1, 512, 1, 1, 0]
    fake.calls.clear()
    assert propose(drafter).tolist() == [7, 9]
    launch = fake.calls.index("hipGraphLaunch")
    assert set(fake.calls[:launch]) == {"hipMemcpy"}, "inputs go up before"
    assert fake.calls[launch + 1] == "hipStreamSynchronize"
    assert not set(fake.calls) & set(CAPTURE)
    block = local_block(drafter.shape)
    assert words(drafter.workspace.local[0].address + block.offset("context_count"), 1)[0] == 3


def test_what_is_replayed_is_what_a_launch_without_graphs_is_given() -> None:
    """Arguments and all: bound, rank, layers, every address."""
    seen: list[list[int]] = []
    for graphs in (False, True):
        fake = FakeHip()
        drafter = make(fake, graphs=graphs, ticks=12345)
        kernel = healthy(drafter, [7, 9])
        fake.on_launch = lambda arguments, kernel=kernel: (seen.append(arguments), kernel(arguments))
        drafter.open(0)
        drafter.commit([ContextRows(0, 0, torch.ones(3, CONFIG.feature_size))])
        propose(drafter)
        own = drafter.workspace
        assert seen[-1][:2] == [own.weights, own.local[0].address]
        assert seen[-1][7:] == [12345, 0, CONFIG.num_layers]
    assert len(seen) == 2


def test_replays_without_the_host_move_the_epoch() -> None:
    """Nothing but hipGraphLaunch five times; the next step of the host goes on from there."""
    fake = FakeHip()
    drafter = started(fake)
    propose(drafter)
    graph = graph_of(drafter)
    fake.calls.clear()
    for _ in range(5):
        graph.replay()
    assert fake.calls == ["hipGraphLaunch"] * 5
    drafter.commit([ContextRows(0, 3, torch.ones(1, CONFIG.feature_size))])
    assert propose(drafter).tolist() == [7, 9]
    assert int(drafter.workspace.local[0]("epoch")[0]) == 7


def test_other_rows_are_other_graphs() -> None:
    fake = FakeHip()
    drafter = started(fake)
    graphs = [drafter.program(1, 16)[1], drafter.program(1, 0)[1], drafter.program(1, 16, True)[1]]
    assert len({id(graph) for graph in graphs}) == 3
    assert fake.calls.count("hipGraphInstantiate") == 3
    propose(drafter)
    propose(drafter)  # no rows wait
    drafter.propose([Anchor(0, 3, 3, 0.8, 1)])
    assert fake.calls.count("hipGraphInstantiate") == 4  # sampled without context rows
    assert fake.calls.count("hipGraphLaunch") == 3
    assert fake.calls.count("hipModuleLaunchKernel") == 4
    drafter.close_device()
    assert fake.left == NOTHING_LEFT


def test_a_graph_is_refused_for_another_launch() -> None:
    drafter = started(FakeHip())
    graph, workspace, ticks = graph_of(drafter), drafter.workspace, hip_drafter.DEFAULT_TICKS
    other = Plan(replace(drafter.shape, context_rows=0))
    with pytest.raises(KernelError, match="context_rows: found 0, wanted 16, as captured"):
        workspace.launch(other, graph, ticks)
    with pytest.raises(KernelError, match="sampled: found True, wanted False, as captured"):
        workspace.launch(Plan(replace(drafter.shape, sampled=True)), graph, ticks)
    with pytest.raises(KernelError, match=f"ticks: found 5, wanted {ticks}, as captured"):
        workspace.launch(graph.plan, graph, 5)
    with pytest.raises(KernelError, match="built for another plan"):
        workspace.capture(Plan(replace(drafter.shape, positions=32)), hip_drafter.Kernel(1, "draft_0"), ticks)
    graph.close()
    with pytest.raises(KernelError, match="graph: found closed"):
        workspace.launch(graph.plan, graph, ticks)
    assert not workspace.busy


@pytest.mark.parametrize("name", CAPTURE)
def test_a_capture_that_fails_names_its_call_and_leaves_nothing(name: str) -> None:
    fake = FakeHip(**{name: INVALID})
    with pytest.raises(HipError, match=rf"{name}: found 1 \(hipErrorInvalidValue\)"):
        make(fake, graphs=True)
    assert fake.left == NOTHING_LEFT
    assert fake.recorded is None, "the stream is out of capture"
    assert fake.calls.count("hipStreamEndCapture") == (0 if name == CAPTURE[0] else 1)


def test_the_first_error_of_a_capture_is_told_even_where_ending_it_fails() -> None:
    fake = FakeHip(hipModuleLaunchKernel=INVALID, hipStreamEndCapture=901)
    with pytest.raises(HipError, match="hipModuleLaunchKernel: found 1"):
        make(fake, graphs=True)
    assert fake.left == NOTHING_LEFT


def test_a_capture_of_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that answers success without a graph."""
    fake = FakeHip()
    monkeypatch.setattr(FakeHip, "_hipStreamEndCapture", lambda self, stream, graph: setattr(self, "recorded", None))
    with pytest.raises(HipError, match="hipStreamEndCapture: found a null graph"):
        make(fake, graphs=True)
    assert fake.left == NOTHING_LEFT


def test_nothing_else_may_run_in_a_capture() -> None:
    """A copy inside is refused by the runtime, and named."""
    fake = FakeHip()
    drafter = started(fake)
    workspace = drafter.workspace
    with pytest.raises(HipError, match=rf"hipMemcpy: found {CAPTURE_UNSUPPORTED} \(hipErrorStreamCaptureUnsupported\)"):
        Graph(drafter._hip, graph_of(drafter).plan, 1, workspace.stream, partial(workspace.local[0].upload, "anchors"))
    assert fake.recorded is None
    assert propose(drafter).tolist() == [7, 9]


def test_a_replay_that_fails_leaves_the_workspace_usable() -> None:
    fake = FakeHip()
    drafter = started(fake)
    fake.fail["hipGraphLaunch"] = INVALID
    with pytest.raises(HipError, match="hipGraphLaunch: found 1"):
        propose(drafter)
    del fake.fail["hipGraphLaunch"]
    assert propose(drafter).tolist() == [7, 9]


def test_health_is_read_after_a_replay_and_the_graph_lives_on_after_reset() -> None:
    fake = FakeHip()
    drafter = started(fake)
    kernel, (plan, _) = fake.on_launch, drafter.program(1, 16)
    site = plan.sites["context_kv<context_norm"][0]

    def failing(arguments: list[int]) -> None:
        kernel(arguments)
        words(arguments[6], 2)[:] = 1, site

    fake.on_launch = failing
    with pytest.raises(StepFailed, match="rank 0, stage "):
        propose(drafter)
    replays = fake.calls.count("hipGraphLaunch")
    with pytest.raises(StepFailed):
        propose(drafter)
    assert fake.calls.count("hipGraphLaunch") == replays
    fake.on_launch = kernel
    drafter.reset()
    assert propose(drafter).tolist() == [7, 9]
    assert fake.calls.count("hipGraphInstantiate") == 1


def test_graphs_are_freed_before_the_kernels_that_they_launch() -> None:
    fake = FakeHip()
    drafter = started(fake)
    fake.calls.clear()
    drafter.close_device()
    assert fake.calls[:3] == ["hipGraphExecDestroy", "hipGraphDestroy", "hipModuleUnload"]
    assert fake.left == NOTHING_LEFT
    drafter.close_device()


def test_one_rank_that_cannot_capture_makes_all_refuse() -> None:
    fakes = [FakeHip(), FakeHip(hipGraphInstantiate=INVALID)]
    _, raised = together(fakes, graphs=True)
    assert isinstance(raised[0], Refused)
    assert "hipGraphInstantiate: found 1" in str(raised[0])
    assert isinstance(raised[1], HipError)
    assert [fake.left for fake in fakes] == [NOTHING_LEFT, NOTHING_LEFT]
