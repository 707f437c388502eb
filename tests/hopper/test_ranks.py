"""Rank groups without a GPU: sizes and refusals, stage tables, records, builds, and what the host makes of results."""

import ctypes

import pytest
import torch
from hopper_shapes import M31, QWEN3_8B, small

from monodraft.checkpoint.config import DraftConfig
from monodraft.errors import InputError, StepFailed, UnsupportedCheckpoint
from monodraft.hopper import build, launch
from monodraft.hopper.drafter import HopperDrafter
from monodraft.hopper.geometry import SHARED_LIMIT, Geometry, rank_config
from monodraft.hopper.plan import Kind, Out, stages
from monodraft.hopper.ranks import RankGroups
from monodraft.hopper.resources import resources
from monodraft.hopper.step import stage_records
from monodraft.hopper.weights import pack_weights
from monodraft.hopper.workspace import StepInput
from monodraft.plan.shard import shard
from monodraft.testing import random_weights

TWO = Geometry.choose(small(), rows=8, mxfp8=True, max_positions=256, ranks=2)


@pytest.mark.numbers
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("config", [QWEN3_8B, M31], ids=lambda c: c.family.value)
def test_a_rank_has_its_share_of_the_drafter_and_of_the_gpu(config: DraftConfig, ranks: int) -> None:
    g = Geometry.choose(config, rows=8, mxfp8=True, ranks=ranks)
    assert g.grid == 132 // ranks
    assert g.shared_bytes <= SHARED_LIMIT
    assert (g.config.num_heads, g.config.ffn_size) == (config.num_heads // ranks, config.ffn_size // ranks)
    assert g.config.num_kv_heads == max(1, config.num_kv_heads // ranks)
    assert g.vocabulary == config.vocab_size
    assert g.linears["layers.0.o"].k == config.q_size // ranks
    assert g.linears["lm_head"].n == -(-config.vocab_size // ranks // 16) * 16
    assert len(stages(g)) == g.stages


@pytest.mark.numbers
def test_one_rank_is_built_as_ever() -> None:
    one = Geometry.choose(small(), rows=8, mxfp8=True, ranks=1)
    assert one == Geometry.choose(small(), rows=8, mxfp8=True)
    assert not [option for option in one.options if "RANKS" in option]
    assert "-DRANKS=2" in TWO.options


@pytest.mark.numbers
def test_what_does_not_divide_is_refused() -> None:
    with pytest.raises(InputError, match=r"ranks: found 3, wanted one of \(1, 2, 4, 8\)"):
        rank_config(small(), 3)
    with pytest.raises(InputError, match="num_heads: found 6, wanted a multiple of 4, for 4 ranks"):
        Geometry.choose(small(num_heads=6), rows=8, mxfp8=False, ranks=4)
    with pytest.raises(UnsupportedCheckpoint, match="vocab_size: found 128, wanted at least 256"):
        HopperDrafter(small(), random_weights(small()), ranks=4, max_positions=256)


@pytest.mark.numbers
def test_every_sum_follows_its_partials() -> None:
    plan = stages(TWO)
    partials = [i for i, stage in enumerate(plan) if stage.out is Out.PARTIAL]
    assert [plan[i].name for i in partials[:2]] == ["layers.0.o", "layers.0.down"]
    assert len(partials) == 2 * TWO.config.num_layers
    for i in partials:
        total = plan[i + 1]
        assert (total.name, total.kind, total.out) == (f"{plan[i].name}_sum", Kind.SUM, Out.RESIDUAL)
        assert total.step == plan[i].step == int(plan[i].name.endswith("down"))


@pytest.fixture(scope="module")
def groups() -> RankGroups:
    return RankGroups(TWO, pages=4, device="cpu")


@pytest.mark.numbers
def test_sums_write_where_a_single_rank_s_linear_does(groups: RankGroups) -> None:
    config = small()
    weights = [pack_weights(TWO, shard(config, random_weights(config), rank, 2), "cpu") for rank in range(2)]
    for packed, workspace in zip(weights, groups.ranks, strict=True):
        records = stage_records(stages(TWO), packed, workspace)
        for stage, record in zip(stages(TWO), records, strict=True):
            if stage.kind is Kind.SUM:
                assert record.output == workspace.buffers["hidden"].data_ptr()
                last = stage.name == f"layers.{config.num_layers - 1}.down_sum"
                norm = "final" if last else f"layers.{stage.layer + int('down' in stage.name)}."
                norm += "" if last else ("input" if "down" in stage.name else "post")
                assert record.next_norm == packed.norms[norm].data_ptr()
                assert bool(record.next_mxfp8) is not last


@pytest.mark.numbers
def test_input_goes_to_all_ranks_and_ids_are_those_of_the_whole_vocabulary(groups: RankGroups) -> None:
    groups.load(StepInput([(511, 10)], [[3]], []))
    assert [int(workspace.buffers["step"][16]) for workspace in groups.ranks] == [511, 511]
    with pytest.raises(InputError, match=r"anchors\[0\]\.token: found 512, wanted 0\.\.511"):
        groups.load(StepInput([(512, 10)], [[3]], []))


def record(stage: int, region: int, cta: int, missing: int) -> torch.Tensor:
    return torch.tensor([1, stage, region, cta, 0x305, 0x304, missing, 1], dtype=torch.int32)


@pytest.mark.numbers
def test_the_rank_whose_own_cta_was_late_is_named(groups: RankGroups) -> None:
    first, second = groups.ranks
    first.buffers["result"][32:40] = record(7, 5, 3, 1)
    second.buffers["result"][32:40] = record(6, 4, 17, 9)
    with pytest.raises(StepFailed, match=r"rank 1.*\n.*stage layers\.0\.o, wait on grid, CTA 17.*\n.*CTA 9"):
        groups.results()
    second.buffers["result"].zero_()
    second.failed = first.failed = False
    with pytest.raises(
        StepFailed, match=r"rank 0.*\n.*layers\.0\.o_sum, wait on peers, CTA 3.*\n.*rank 1: .*not arrived"
    ):
        groups.results()
    assert first.failed
    assert second.failed
    first.buffers["result"].zero_()
    first.failed = second.failed = False
    second.buffers["result"][:7] = 5
    with pytest.raises(StepFailed, match="ranks differ"):
        groups.results()
    second.buffers["result"].zero_()


@pytest.mark.compile_only
def test_records_of_several_ranks_have_the_layout_of_the_source(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings and nvidia-cuda-nvrtc (the hopper extra)")
    monkeypatch.setenv("MONODRAFT_CACHE", str(tmp_path))
    for ranks in (2, 8):
        kind = launch.rank_arguments(ranks)
        lines = ['#include "stages/ranks.cuh"', f"static_assert(sizeof(Args) == {ctypes.sizeof(kind)});"]
        for field in ("stages", "fault_stage", "peers", "rank"):
            lines.append(f"static_assert(__builtin_offsetof(Args, {field}) == {getattr(kind, field).offset});")
        geometry = Geometry.choose(small(vocab_size=2048), rows=8, mxfp8=True, ranks=ranks)
        lines.append(f"static_assert(BEST_AT + 2ull * ROWS * RANKS * GRID * 8 == {geometry.exchange_bytes});")
        lines.append(f"static_assert({ranks} * sizeof(Args) <= 4096);")  # kernel parameters
        build.compile_source(geometry.options, "\n".join(lines))


@pytest.mark.compile_only
@pytest.mark.parametrize(("config", "ranks"), [(QWEN3_8B, 2), (M31, 4)], ids=["qwen3-8b x 2", "m3.1 x 4"])
def test_released_shapes_build_for_several_ranks(config, ranks: int, monkeypatch, tmp_path) -> None:
    """Registers as for one rank; at most two scalars spilled."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings and nvidia-cuda-nvrtc (the hopper extra)")
    monkeypatch.setenv("MONODRAFT_CACHE", str(tmp_path))
    used = resources(build.build(Geometry.choose(config, rows=8, mxfp8=True, ranks=ranks), quiet=True))
    assert used.registers == 96
    assert used.instructions["STL"] <= 2
