"""The CUDA C++ of the step, executed on a CPU (monodraft.hopper.emulator), with the checks of the device runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from emulated import MARKS, benchmark, check_stages
from hopper_shapes import M31, small

from monodraft.checkpoint import load_drafter
from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.shipped import PAIR, TARGET
from monodraft.checkpoint.weights import DraftWeights
from monodraft.drafter import Anchor, ContextRows
from monodraft.errors import InputError
from monodraft.hopper.drafter import HopperDrafter
from monodraft.hopper.emulator import Emulator
from monodraft.hopper.geometry import Geometry
from monodraft.hopper.step import Form
from monodraft.reference import ReferenceDrafter
from monodraft.testing import random_weights

pytestmark = MARKS
checks, generation = benchmark("checks"), benchmark("generation")
FORMATS = pytest.mark.parametrize("mxfp8", [False, True], ids=["bf16", "w8a16"])
DRAFTERS = pytest.mark.parametrize("name", ["drafter", "drafter-qwen3"])


def shipped(name: str) -> tuple[DraftConfig, DraftWeights]:
    return load_drafter(PAIR / name, TARGET)


def prepared(length: int = 40, *, name: str = "drafter", **options: object) -> tuple[HopperDrafter, list[Anchor]]:
    """A drafter with one request of `length` committed positions, projected already, and where it drafts from."""
    config, weights = shipped(name)
    given = {"max_requests": 2, "max_positions": 512, "emulator": Emulator(8, 1)} | options
    ours = HopperDrafter(config, weights, **given)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(length)
    ours.open(0)
    ours.commit([ContextRows(0, 0, torch.randn(length, config.feature_size, generator=generator).bfloat16())])
    anchors = [Anchor(0, 11, length)]
    ours.propose(anchors)
    return ours, anchors


@FORMATS
@DRAFTERS
def test_every_stage_is_the_references(name: str, mxfp8: bool) -> None:
    check_stages(*shipped(name), mxfp8, [20], emulator=Emulator(8, 1))


@pytest.mark.slow
@FORMATS
@DRAFTERS
@pytest.mark.parametrize(("lengths", "rows"), [([0], 8), ([400], 8), ([130, 33], 16)], ids=str)
def test_every_stage_of_other_contexts(name: str, mxfp8: bool, lengths: list[int], rows: int) -> None:
    check_stages(*shipped(name), mxfp8, lengths, rows=rows, emulator=Emulator(16, 2))


@pytest.mark.slow
@FORMATS
@pytest.mark.parametrize("family", ["minimax-m31", "qwen3", "minicpm5", "gemma4"])
@pytest.mark.parametrize("length", [1, 140])
def test_every_stage_of_random_drafters(family: str, mxfp8: bool, length: int) -> None:
    config = small(family)
    check_stages(config, random_weights(config), mxfp8, [length], emulator=Emulator(8, 3))


@pytest.mark.parametrize(("hidden", "part"), [(3072, 2560), (1536, 1024)])
@FORMATS
def test_sixteen_rows_in_parts_with_sums_in_the_logits(
    hidden: int, part: int, mxfp8: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What M3.1 takes at 16 rows: several parts of every linear, two requests, and the LM head's sums in the buffer of
    the logits; the last row block of the vocabulary is not full, and with the smaller part a pass has idle warps."""
    config = small(hidden_size=hidden, num_layers=1, target_layer_ids=(1,), vocab_size=2056)
    real = Geometry.choose

    def as_m31(*args: object, **options: object) -> Geometry:
        return replace(real(*args, **options), part_size=part, slots=3, keys=96, logit_sums=True)  # type: ignore[arg-type]

    monkeypatch.setattr(Geometry, "choose", as_m31)
    g, m31 = Geometry.choose(config, rows=16, mxfp8=mxfp8), real(M31, rows=16, mxfp8=mxfp8)
    assert (m31.part_size, m31.logit_sums) == (2560, True)
    for name in ("layers.0.qkv", "layers.0.gate_up", "lm_head"):
        ours, theirs = g.linears[name], m31.linears[name]
        assert ours.parts > 1
        assert part < 2560 or (ours.part_chunks, ours.split_log2) == (theirs.part_chunks, theirs.split_log2)
    check_stages(config, random_weights(config), mxfp8, [75, 33], rows=16, emulator=Emulator(16, 2))


def nothing_to_draft(config: DraftConfig) -> DraftWeights:
    """Weights whose logits are NaN for all ids but 5, which has an infinity, of the sign of the row."""
    weights = random_weights(config)
    head = torch.full_like(weights.lm_head, float("nan"))
    head[5], head[5, 0] = 0.0, -float("inf")
    return replace(weights, lm_head=head, markov_w2=torch.zeros_like(weights.markov_w2))


@pytest.mark.parametrize("logits", [False, True], ids=["bounded", "full"])
def test_rows_of_nan_and_infinities_draft_as_the_reference(logits: bool) -> None:
    """NaN counts as -infinity: beside a single -infinity id 0 wins, and a +infinity wins over both."""
    config = small(num_layers=1)
    weights, anchors = nothing_to_draft(config), [Anchor(0, 7, 0)]
    ours = HopperDrafter(config, weights, mxfp8=True, max_requests=1, max_positions=512, emulator=Emulator(8, 1))
    theirs = ReferenceDrafter(config, weights, "w8a16")
    for drafter in (ours, theirs):
        drafter.open(0)
    [wanted] = theirs.propose(anchors)
    [draft] = ours.propose(anchors, logits=logits)
    assert set(wanted.tokens.tolist()) == {0, 5}
    assert draft.tokens.tolist() == wanted.tokens.tolist()


@FORMATS
def test_schedules_forms_and_replays_give_the_same_bytes(mxfp8: bool) -> None:
    emulator = Emulator(8)
    ours, anchors = prepared(mxfp8=mxfp8, emulator=emulator)
    tokens, rows = set(), set()
    for seed, form, logits in (
        (0, Form.ONE_LAUNCH, False),  # the bounded Markov chain
        (0, Form.ONE_LAUNCH, True),  # the full scan
        (1, Form.CHAIN, False),
        (2, Form.CHAIN, True),
        (3, Form.ONE_LAUNCH, False),
    ):
        emulator.seed, ours.step.form = seed, form
        [draft] = ours.propose(anchors, logits=logits)
        assert draft.confidence is not None
        tokens.add((draft.tokens.numpy().tobytes(), draft.confidence.numpy().tobytes()))
        if draft.logits is not None:
            rows.add(draft.logits.numpy().tobytes())
    assert (len(tokens), len(rows)) == (1, 1)
    ours.step.form = Form.ONE_LAUNCH
    assert (
        checks.repeats(ours, anchors, 2) == 0
    )  # the same launches once more, with nothing written by the host between


@pytest.mark.slow
@FORMATS
@DRAFTERS
@pytest.mark.parametrize("rows", [8, 16])
def test_many_schedules_give_the_same_bytes(name: str, mxfp8: bool, rows: int) -> None:
    emulator = Emulator(16)
    ours, anchors = prepared(name=name, mxfp8=mxfp8, rows=rows, emulator=emulator)
    seen = set()
    for seed in range(40):
        emulator.seed = seed
        ours.step.form = Form.CHAIN if seed % 4 == 3 else Form.ONE_LAUNCH
        [draft] = ours.propose(anchors)
        assert draft.confidence is not None
        seen.add((draft.tokens.numpy().tobytes(), draft.confidence.numpy().tobytes()))
    assert len(seen) == 1


@pytest.mark.parametrize(("cta", "stage"), [(5, 2), (0, 11), (7, 38)], ids=str)
def test_a_silent_cta_ends_in_the_bound_by_name(cta: int, stage: int) -> None:
    ours, anchors = prepared(bound_seconds=0.05)
    result = checks.bounded(ours, anchors, cta, stage)
    assert result["named"], result["message"]
    assert result["refused"]
    assert result["right"]


@pytest.mark.slow
def test_a_silent_cta_under_many_schedules() -> None:
    emulator = Emulator(8)
    ours, anchors = prepared(bound_seconds=0.05, emulator=emulator)
    for seed in range(20):
        emulator.seed = seed
        assert checks.bounded(ours, anchors, seed % 8, 2 + 2 * seed)["named"]


def test_whole_generations_draft_as_the_reference() -> None:
    found = generation.shadowed("drafter", True, prompts=1, new_tokens=10, emulator=Emulator(8, 1))
    assert found["drafts"] >= 2
    assert found["refused"] == []


@pytest.mark.slow
@FORMATS
@DRAFTERS
def test_longer_generations_draft_as_the_reference(name: str, mxfp8: bool) -> None:
    found = generation.shadowed(name, mxfp8, prompts=3, new_tokens=64, emulator=Emulator(8, 1))
    assert found["refused"] == []


def test_a_grid_below_the_query_rows_is_refused() -> None:
    with pytest.raises(InputError, match=r"grid: found 4 CTAs a rank, wanted at least 7"):
        prepared(emulator=Emulator(4))
