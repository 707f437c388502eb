"""The host's side of a step, without a GPU: pages, key ranges, input checks, stage table, health, the scan's bound."""

import math
import struct

import numpy as np
import pytest
import torch
from hopper_shapes import small
from hypothesis import given, settings
from hypothesis import strategies as st

from monodraft.checkpoint.loading import assemble, disassemble
from monodraft.checkpoint.weights import Mxfp8Matrix
from monodraft.errors import InputError, StepFailed, UnsupportedCheckpoint
from monodraft.formats import mxfp8_torch
from monodraft.hopper import health
from monodraft.hopper.build import ToolkitMissing
from monodraft.hopper.drafter import HopperDrafter
from monodraft.hopper.geometry import Geometry
from monodraft.hopper.pages import PageTable
from monodraft.hopper.plan import stages
from monodraft.hopper.step import Step, stage_records
from monodraft.hopper.weights import pack_weights, scan_slack
from monodraft.hopper.workspace import StepInput, Workspace, key_splits, split_keys
from monodraft.testing import random_weights

pytestmark = pytest.mark.numbers


@given(st.integers(0, 20000), st.sampled_from([None, 64, 4096]), st.integers(1, 16), st.integers(1, 66))
def test_key_ranges_cover_what_a_block_sees(position: int, window: int | None, block: int, splits: int) -> None:
    low, per, ranges = split_keys(position, window, block, splits)
    total = position - low + block
    assert per % 16 == 0
    assert (ranges - 1) * per < total <= ranges * per
    assert ranges <= splits
    seen = [p for p in (low - 1, low) if 0 <= p < position and (window is None or position - p < window)]
    assert seen == ([low] if low < position else [])  # row 0 sees low and not the key before it


def test_ranges_leave_no_cta_with_two() -> None:
    g = Geometry.choose(small(), rows=16, mxfp8=True)
    for requests in (1, 2):
        assert requests * g.config.num_kv_heads * g.m_groups * key_splits(g, requests) <= g.grid


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("ocfx"), st.integers(0, 3), st.integers(0, 200)), max_size=40))
def test_pages_belong_to_one_request_or_to_a_shared_prefix(moves: list[tuple[str, int, int]]) -> None:
    table, lengths = PageTable(12, 4, 4), {}
    for move, request, size in moves:
        free = table.free
        try:
            if move == "o":
                table.open(request)
                lengths[request] = 0
            elif request not in table:
                continue
            elif move == "c":
                table.close(request)
                del lengths[request]
            elif move == "x":
                table.check_room({request: size})
                table.extend(request, size)
                lengths[request] += size
            else:
                new = (request + 1) % 4
                table.fork(request, new, min(size, lengths[request]))
                lengths[new] = min(size, lengths[request])
        except InputError:
            assert table.free == free
        used = [page for r in lengths for page in table.pages(r)]
        assert table.free == 12 - len(set(used))
        for r, length in lengths.items():
            assert table.length(r) == length
            assert len(table.pages(r)) == -(-length // 64)
            last = table.pages(r)[length // 64 :]  # what will still be written is nobody else's
            assert all(used.count(page) == 1 for page in last)


def test_a_shared_prefix_outlives_its_source() -> None:
    table = PageTable(6, 4, 4)
    table.open(0)
    table.extend(0, 150)
    shared = table.pages(0)[:2]
    assert table.fork(0, 1, 130) == (table.pages(0)[2], table.pages(1)[2])
    assert table.fork(0, 2, 128) is None
    table.close(0)
    assert table.pages(1)[:2] == table.pages(2) == shared
    table.open(3)
    table.extend(3, 2 * 64)
    assert not set(table.pages(3)) & set(shared)
    table.close(1)
    table.close(2)
    assert table.free == 4


@pytest.fixture(scope="module")
def workspace() -> Workspace:
    return Workspace(Geometry.choose(small(), rows=8, mxfp8=True, max_positions=256), pages=4, device="cpu")


@pytest.mark.parametrize(
    ("step", "fault"),
    [
        (
            StepInput([(5, 10), (5, 10)], [[0], [1]], []),
            "rows: found 2 requests of 7 query rows, wanted at most 8 rows",
        ),
        (StepInput([(512, 10)], [[0]], []), r"anchors\[0\]\.token: found 512, wanted 0\.\.511"),
        (StepInput([(5, 400)], [[0]], []), r"anchors\[0\]\.position: found 400, wanted 0\.\.313"),
        (StepInput([(5, 100)], [[0]], []), r"pages\[0\]: found 1 pages, wanted pages for 100 positions"),
        (
            StepInput([(5, 10)], [[0]], [], [(float("nan"), 0)]),
            r"draws\[0\]\.temperature: found nan, wanted finite, at least 0",
        ),
        (
            StepInput([(5, 10)], [[0]], [], [(0.7, 2**64)]),
            r"draws\[0\]\.seed: found 18446744073709551616, wanted 0\.\.",
        ),
        (StepInput([], [[0]], [], [(0.7, 1)]), "draws: found 1 requests, wanted none or 0"),
        (StepInput([(5, 10)], [[4]], []), r"pages\[0\]: found page 4, wanted 0\.\.3"),
        (StepInput([], [[0]], [(0, 64)]), r"context\[0\]: found request 0, position 64, wanted a position with a page"),
        (StepInput([], [[0]], [(0, i) for i in range(9)]), "context rows: found 9, wanted at most 8"),
    ],
)
def test_input_is_refused_before_it_is_copied(workspace: Workspace, step: StepInput, fault: str) -> None:
    before = workspace.buffers["step"].clone()
    with pytest.raises(InputError, match=fault):
        workspace.load(step)
    assert torch.equal(workspace.buffers["step"], before)


def test_input_words_are_where_the_kernel_reads_them(workspace: Workspace) -> None:
    workspace.load(StepInput([(7, 100)], [[2, 3]], [(0, 99)]))
    words, g = workspace.buffers["step"].tolist(), workspace.geometry
    assert words[:3] == [1, 1, key_splits(g, 1)]
    assert (words[16], words[32], words[48], words[64]) == (7, 100, 0, 99)
    assert tuple(words[80:83]) == split_keys(100, 64, 7, key_splits(g, 1))
    assert words[g.step_words : g.step_words + 2] == [2, 3]
    assert not workspace.sampled


@pytest.mark.parametrize(
    ("temperature", "wanted"),
    [
        (0.7, struct.unpack("<i", struct.pack("<f", 0.7))[0]),
        (1e39, 0x7F800000),
        (1e-5, struct.unpack("<i", struct.pack("<f", 1e-5))[0]),
        (math.nextafter(1e-5, 0), 0),  # the same float32, but greedy
        (0, 0),
    ],
)
def test_draws_lie_behind_the_page_tables(workspace: Workspace, temperature: float, wanted: int) -> None:
    workspace.load(StepInput([(7, 100)], [[2, 3]], [], [(temperature, 0xFEDCBA9876543210)]))
    words, g = workspace.buffers["step"].tolist(), workspace.geometry
    draws = words[g.step_words + g.rows * g.max_pages :]
    assert len(draws) == 4 * g.rows
    assert [draws[0], *(word & 0xFFFFFFFF for word in draws[1:4])] == [wanted, 0x76543210, 0xFEDCBA98, 0]
    assert workspace.sampled == bool(wanted)
    workspace.load(StepInput([(7, 100)], [[2, 3]], []))
    assert not workspace.sampled
    assert not any(workspace.buffers["step"].tolist()[-4 * g.rows :])


def test_workspace_of_another_plan_and_a_failed_one_are_refused(workspace: Workspace) -> None:
    other = Geometry.choose(small(), rows=8, mxfp8=False, max_positions=256)
    with pytest.raises(InputError, match="workspace: found made for 8 rows, mxfp8 True"):
        workspace.check_usable(other)
    workspace.buffers["result"][32:40] = torch.tensor([1, 5, 4, 17, 0x305, 0x304, 9, 131], dtype=torch.int32)
    with pytest.raises(
        StepFailed, match=r"stage layers\.0\.combine, wait on grid, CTA 17: found tag 0x304, wanted tag 0x305"
    ):
        workspace.results()
    with pytest.raises(StepFailed, match="reset"):
        workspace.check_usable(workspace.geometry)
    workspace.buffers["result"].zero_()
    workspace.failed = False


def test_a_sampled_step_takes_the_full_scan_and_the_build_that_draws(workspace: Workspace) -> None:
    class Builds:
        geometry, sampled = workspace.geometry, object()

    step = Step(pack_weights(workspace.geometry, random_weights(small()), "cpu"), workspace, kernel=Builds())  # type: ignore[arg-type]
    tables = []
    for temperature in (0.0, 0.7):
        workspace.load(StepInput([(7, 100)], [[2, 3]], [], [(temperature, 1)]))
        tables.append(step.arguments(0, 1).stages)
        assert step.launcher is (Builds.sampled if temperature else step.kernel)
    assert tables == [table.data_ptr() for table in reversed(step._tables)]
    workspace.load(StepInput([(7, 100)], [[2, 3]], []))


def test_logits_are_kept_only_where_asked_for(workspace: Workspace) -> None:
    kept = workspace.keep_logits()
    assert workspace.corrected is kept
    workspace.drop_logits()
    assert workspace.corrected is None
    assert workspace.keep_logits() is kept  # one buffer for good
    workspace.drop_logits()


def test_health_names_who_is_missing() -> None:
    assert health.failure([0] * 16, []) is None
    error = health.failure([1, 0, 4, 3, 2, 1, 77, 131, *[0] * 8], ["prepare"])
    assert "CTA 77: found not arrived (131 arrivals counted)" in str(error)
    alone = health.failure([1, 0, 1, 3, 1, 0, -1, 0, *[0] * 8], ["prepare"])
    assert "wait on weights" in str(alone)
    assert len(alone.faults) == 1


def test_stage_table_points_into_weights_and_buffers(workspace: Workspace) -> None:
    g = workspace.geometry
    packed = pack_weights(g, random_weights(g.config), "cpu")
    for bounded in (False, True):
        plan = stages(g, bounded=bounded)
        for stage, record in zip(plan, stage_records(plan, packed, workspace), strict=True):
            assert record.kind == stage.kind
            if stage.linear:
                assert record.weights == packed.packed[stage.linear.name].data_ptr()
                assert record.rotation < g.grid
                assert stage.name != "lm_head" or record.rotation == 0
    assert packed.bytes > 0


def test_float32_weights_are_packed_as_their_bf16(workspace: Workspace) -> None:
    """nvidia/MiniMax-M3-DSpark ships float32; biases alone stay what they are."""
    g = Geometry.choose(workspace.geometry.config, rows=16, mxfp8=False)
    roles = disassemble(random_weights(g.config, mxfp8=False, dtype=torch.float32))
    rounded = {role: value if role.endswith("bias") else value.bfloat16() for role, value in roles.items()}
    ours, wanted = (pack_weights(g, assemble(g.config, each), "cpu") for each in (roles, rounded))
    for name, value in wanted.packed.items():
        assert torch.equal(ours.packed[name], value), name
    for name, value in wanted.norms.items():
        assert torch.equal(ours.norms[name], value), name
    for field in ("head_norms", "confidence", "embed", "w1", "w1_lengths"):
        assert torch.equal(getattr(ours, field), getattr(wanted, field)), field


@pytest.mark.parametrize("skew", ["gauss", "one large", "tiny", "same"])
def test_the_scan_stays_within_its_bound(skew: str) -> None:
    """The error formula of stages/markov_bounded.cuh, on exact bias and on the bias of the MXFP8 rows, in float64."""
    generator = np.random.default_rng(3)
    w2 = generator.standard_normal((512, 256))
    w2[:, 3] *= {"gauss": 1, "one large": 300, "tiny": 1, "same": 1}[skew]
    w2 *= {"tiny": 2.0**-60}.get(skew, 1)
    if skew == "same":
        w2[:] = w2[0]
    weights = torch.from_numpy(w2).bfloat16()
    scanned = Mxfp8Matrix(*mxfp8_torch.encode(weights))
    slack = scan_slack(weights, scanned).double()
    q = mxfp8_torch.decode(scanned.elements, scanned.scales).double()
    worst = 0.0
    missed = weights.double() - q  # vectors along these make the scan as wrong as it can be
    along = [missed[v] / missed[v].norm().clamp_min(1e-300) * 16 for v in range(0, 512, 37)]
    for vector in [*torch.from_numpy(generator.standard_normal((20, 256))), *along]:
        e = vector.bfloat16().double()
        exact = (weights.double() @ e).float().bfloat16().double()
        scan = q @ e
        reach = slack * (e.norm() * (1 + 2.0**-12) + 2.0**-8)
        error = reach + 0.00392 * (scan.abs() + reach) + 1e-6 * scan.abs() + 1e-30
        worst = max(worst, float(((exact - scan).abs() / error).max()))
    assert worst <= 1.0
    assert worst > 0.5  # and the bound is not idle


def test_drafter_without_a_gpu_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    config = small()
    with pytest.raises(ToolkitMissing, match="GPU: found none"):
        HopperDrafter(config, random_weights(config))
    narrow = small(head_dim=32)
    with pytest.raises(UnsupportedCheckpoint, match="does not run this drafter"):
        HopperDrafter(narrow, random_weights(narrow))
