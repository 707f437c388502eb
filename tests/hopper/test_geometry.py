"""What a build is specialised by, what it refuses, and what a step must read."""

import re
from pathlib import Path

import pytest
from hopper_shapes import GEMMA4_12B, M31, QWEN3_8B, small

from monodraft.checkpoint.config import DraftConfig, Family, MarkovKind
from monodraft.errors import InputError, UnsupportedCheckpoint
from monodraft.hopper import geometry as sizes
from monodraft.hopper import health, plan
from monodraft.hopper.bench import shapes
from monodraft.hopper.geometry import Geometry
from monodraft.testing import random_config

pytestmark = pytest.mark.numbers

SOURCES = Path(sizes.__file__).parent


@pytest.mark.parametrize("rows", [8, 16])
@pytest.mark.parametrize("mxfp8", [False, True])
@pytest.mark.parametrize(
    "config",
    [QWEN3_8B, M31, GEMMA4_12B, small(), small("qwen3"), small("minicpm5"), small("gemma4")],
    ids=lambda c: c.family.value,
)
def test_every_linear_is_covered_and_shared_memory_fits(config: DraftConfig, mxfp8: bool, rows: int) -> None:
    g = Geometry.choose(config, rows=rows, mxfp8=mxfp8)
    assert g.shared_bytes <= sizes.SHARED_LIMIT
    for linear in g.linears.values():
        chunk = 256 if linear.mxfp8 else 128
        assert linear.chunks * chunk >= linear.k
        assert (linear.parts - 1) * linear.part_chunks < linear.chunks <= linear.parts * linear.part_chunks
        room = g.part_size if linear.parts == 1 else g.part_size // 2
        if not linear.name.startswith("markov"):
            assert linear.part_chunks * chunk <= room
        per_cta = -(-linear.row_blocks // g.grid)
        assert linear.parts == 1 or per_cta <= g.sum_slots or (g.logit_sums and linear.name == "lm_head")


def test_bytes_of_a_step_are_those_of_the_released_drafters() -> None:
    m31 = plan.step_bytes(Geometry.choose(M31, rows=8, mxfp8=True), context=1024, new_rows=7)
    assert m31["layers"] == 5 * (333_447_168 + 10_420_224)  # elements and scales of spec 3.1
    assert m31["lm_head"] == 200064 * 6144 * 2
    assert m31["markov"] == 7 * 200064 * 256 * 2
    assert m31["kv"] == 5 * 1024 * 2 * 4 * 128 * 2
    assert m31["context"] == 6144 * 30720 * 2 + 5120 * 6144 * 33 // 32
    scan = plan.step_bytes(Geometry.choose(M31, rows=8, mxfp8=True), context=1024, bounded=True)
    assert scan["markov"] == 7 * 200064 * 256 * 33 // 32
    far = plan.step_bytes(Geometry.choose(M31, rows=8, mxfp8=True, max_positions=65536), context=60000)
    assert far["kv"] == 5 * 4095 * 2 * 4 * 128 * 2  # the window


def test_stages_stand_in_order() -> None:
    g = Geometry.choose(small(), rows=8, mxfp8=True)
    for bounded in (False, True):
        stages = plan.stages(g, bounded=bounded)
        assert len(stages) == g.stages
        names = [stage.name for stage in stages]
        assert names[:5] == ["context.fc", "context.kv", "prepare", "layers.0.qkv", "layers.0.attend"]
        assert names[-9:] == ["lm_head", *(f"markov.{j}" for j in range(7)), "finish"]
        assert {s.kind for s in stages if s.name.startswith("markov")} == {
            plan.Kind.MARKOV_BOUNDED if bounded else plan.Kind.MARKOV
        }


def enumeration(name: str, file: str) -> list[str]:
    body = re.search(rf"enum {name} : u32 \{{([^}}]*)\}}", (SOURCES / file).read_text())
    assert body
    return [word.strip().partition("_")[2].lower() for word in body.group(1).split(",")]


def test_names_shared_with_the_source_agree() -> None:
    assert enumeration("Kind", "stages/plan.cuh") == [kind.name.lower() for kind in sorted(plan.Kind)]
    assert enumeration("Out", "stages/plan.cuh") == [out.name.lower() for out in sorted(plan.Out)]
    assert enumeration("Region", "device/waits.cuh") == ["none", *(health.REGIONS[i] for i in sorted(health.REGIONS))]


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (random_config(Family.QWEN3), "head_dim"),
        (small(markov=MarkovKind.GATED), "markov head"),
        (small(markov=MarkovKind.RNN), "markov head"),
        (small("gemma4", layer_scalars=False), "layer_scalars"),
        (small("qwen3", head_dim=512, rotary_dim=128), "rotary"),
        (small(block_size=17), "block_size"),
        (small(num_layers=7), "num_layers"),
    ],
)
def test_drafters_without_kernels_are_refused_with_the_field(config: DraftConfig, field: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=rf"\n  {field}: found "):
        Geometry.choose(config, rows=16, mxfp8=True)


@pytest.mark.parametrize("name", shapes.NAMES)
def test_every_released_shape_has_a_build_for_8_and_16_rows_and_all_numbers_of_ranks(name: str) -> None:
    for ranks in (1, 2, 4, 8):
        for rows in (8, 16):
            g = Geometry.choose(shapes.config_of(name), rows=rows, mxfp8=True, ranks=ranks, max_positions=4096)
            assert g.shared_bytes <= sizes.SHARED_LIMIT


ADDITIONS = {"HEAD", "ROTARY_APART", "LOGIT_SOFTCAP", "SHARED_KV", "VALUE_NORM", "JOINS"}


def test_what_gemma4_adds_is_asked_for_only_where_it_is() -> None:
    def asked(config: DraftConfig) -> dict[str, str]:
        options = Geometry.choose(config, rows=8, mxfp8=True).options
        pairs = (option.removeprefix("-D").split("=") for option in options)
        return {name: value for name, value in pairs if name in ADDITIONS}

    for family in ("minimax-m31", "qwen3", "minicpm5"):
        assert asked(small(family)) == {}
    shared = {"SHARED_KV": "1", "VALUE_NORM": "1", "JOINS": "1", "LOGIT_SOFTCAP": "30.0f"}
    assert asked(small("gemma4")) == shared | {"ROTARY_APART": "64"}
    assert asked(GEMMA4_12B) == shared | {"HEAD": "512", "ROTARY_APART": "256"}
    assert asked(small("gemma4", shared_kv_projection=False, logit_softcap=None)).keys() == {
        "VALUE_NORM",
        "JOINS",
        "ROTARY_APART",
    }
    assert asked(small("qwen3", head_dim=256)) == {"HEAD": "256", "ROTARY_APART": "128"}


def test_o_and_down_are_joined_in_stages_of_their_own() -> None:
    for ranks in (1, 2):
        g = Geometry.choose(small("gemma4"), rows=8, mxfp8=True, ranks=ranks)
        plan_of = plan.stages(g)
        assert len(plan_of) == g.stages
        joins = [i for i, stage in enumerate(plan_of) if stage.kind is plan.Kind.JOIN]
        assert len(joins) == 2 * g.config.num_layers
        for i in joins:
            before, join = plan_of[i - 1], plan_of[i]
            assert (before.out, before.output) == (plan.Out.DELTA, "delta")
            assert (join.out, join.input, join.normed) == (plan.Out.RESIDUAL, "delta", "delta")
            assert before.kind is (plan.Kind.LINEAR if ranks == 1 else plan.Kind.SUM)


def test_rows_and_positions_are_refused_with_the_limit() -> None:
    with pytest.raises(InputError, match=r"rows: found 17, wanted 1\.\.16"):
        Geometry.choose(small(), rows=17, mxfp8=True)
    with pytest.raises(InputError, match="rows: found 3, wanted at least the block size 7"):
        Geometry.choose(small(), rows=3, mxfp8=True)
    with pytest.raises(InputError, match="max_positions: found 4090, wanted at most 4089"):
        Geometry.choose(small(max_positions=4096), rows=8, mxfp8=True, max_positions=4090)
    with pytest.raises(UnsupportedCheckpoint, match="16 rows of hidden size 256"):
        Geometry.choose(small(block_size=1, vocab_size=600_000), rows=16, mxfp8=True)  # bounds of the Markov scan


def test_sums_of_the_lm_head_leave_shared_memory_only_where_nothing_fits_otherwise() -> None:
    for config in (QWEN3_8B, M31, small()):
        for mxfp8 in (False, True):
            eight, sixteen = (Geometry.choose(config, rows=rows, mxfp8=mxfp8) for rows in (8, 16))
            assert not eight.logit_sums
            assert not [option for option in eight.options if "LOGIT_SUMS" in option]
            assert sixteen.logit_sums == (config is M31)
            assert ("-DLOGIT_SUMS=1" in sixteen.options) == (config is M31)
