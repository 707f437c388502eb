"""Sampled drafts: the reference's tokens for the same seed, executed on a CPU; on a Hopper GPU where there is one."""

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated import MARKS, benchmark
from hopper_shapes import rows, small

from monodraft.checkpoint import load_drafter
from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.shipped import DRAFTER, TARGET
from monodraft.checkpoint.weights import DraftWeights
from monodraft.drafter import Anchor
from monodraft.errors import InputError
from monodraft.hopper.drafter import HopperDrafter
from monodraft.hopper.emulator import Emulator
from monodraft.hopper.emulator.build import shared_library, sources
from monodraft.hopper.emulator.kernel import Grid, Library
from monodraft.hopper.geometry import Geometry
from monodraft.hopper.step import Form
from monodraft.reference import sampling
from monodraft.testing import random_weights

checks, step_checks, generation = benchmark("sampled_checks"), benchmark("checks"), benchmark("generation")
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
PLACES = pytest.mark.parametrize(
    "on_device",
    [
        pytest.param(False, marks=MARKS, id="emulated"),
        pytest.param(
            True,
            marks=[pytest.mark.device, pytest.mark.skipif(not HOPPER, reason="needs an NVIDIA Hopper GPU (sm_90)")],
            id="device",
        ),
    ],
)
FORMATS = pytest.mark.parametrize("mxfp8", [False, True], ids=["bf16", "w8a16"])
TEMPERATURES = (0.7, 1e-5, 9e-6, 2.5, 1e39)
"""Usual ones, the lowest that samples, the highest that does not, and one beyond float32: all ids alike."""


def prepared(
    on_device: bool,
    lengths: Sequence[int],
    config: DraftConfig | None = None,
    weights: DraftWeights | None = None,
    **options: Any,
) -> tuple[HopperDrafter, list[Anchor]]:
    """A drafter, small and random unless said otherwise, with requests of some lengths, and where they draft from."""
    config = config or small()
    ranks, most = options.get("ranks", 1), options.get("rows", 8)
    emulator = None if on_device else Emulator(ctas=most * ranks, seed=1)
    ours = HopperDrafter(
        config,
        weights or random_weights(config),
        **({"max_requests": 16, "max_positions": 512, "emulator": emulator} | options),
    )
    for request, length in enumerate(lengths):
        ours.open(request)
        ours.commit([rows(config, request, 0, length)])
    return ours, [Anchor(request, 9 + request, length) for request, length in enumerate(lengths)]


class Given(ctypes.Structure):
    """`struct Given` of emulated_sampling.cu."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("words", "logits", "noise", "scores")),
        *((name, ctypes.c_uint32) for name in ("ids", "count", "low", "high", "position")),
        ("temperature", ctypes.c_float),
    )


@pytest.mark.executed
@MARKS[1]
def test_noise_and_scores_are_the_references_bit_for_bit() -> None:
    """Two logarithms in float64 each, rounded once; over all places of a Philox block, both words of the seed, and the
    words at the ends and around 1/2. Quotients, not products with a reciprocal."""
    geometry = replace(Geometry.choose(small(), rows=8, mxfp8=True, max_positions=256), sampled=True)
    source = (Path(__file__).parent / "emulated_sampling.cu").read_text()
    library = Library(shared_library(sources(source), geometry.options, "the draws", quiet=True))
    words, count = torch.tensor([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF]), 1 << 15
    given, logits = words.to(torch.int32), torch.randn(count, generator=torch.Generator().manual_seed(2)) * 8
    logits[:6] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 3e38, -3e38])
    for seed, position, temperature in ((0, 0, 0.7), (0xFEDCBA9876543210, 4095, 1.3), (5, 6, 0.0)):
        noise, scores = torch.zeros(count + len(words)), torch.zeros(count)
        addresses = [array.data_ptr() for array in (given, logits, noise, scores)]
        block = Given(*addresses, count, len(words), seed & 0xFFFFFFFF, seed >> 32, position, temperature)
        library.run([Grid(ctypes.addressof(block), 1, 32, 4096, -1)])
        assert torch.equal(noise[:count], sampling.gumbel(seed, position, count, torch.device("cpu")))
        u = (words.double() + 0.5) * 2.0**-32
        assert torch.equal(noise[count:], (-torch.log(-torch.log(u))).float())
        assert torch.equal(scores, sampling.scores(logits, temperature, seed, position))


@PLACES
@FORMATS
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_ids_are_the_references_choice_of_the_kernels_logits(on_device: bool, mxfp8: bool, ranks: int) -> None:
    config = small(vocab_size=514) if ranks == 1 else small()  # a block of Philox that ends outside of the vocabulary
    ours, anchors = prepared(on_device, [20], config, mxfp8=mxfp8, ranks=ranks)
    count = 100 if on_device else 5
    found = checks.choices(ours, anchors, count, TEMPERATURES)
    assert (found["drafts"], found["differing"]) == (count, 0)
    assert found["texts"] >= 4  # below 1e-5 all are the same


@pytest.mark.slow
@PLACES
@pytest.mark.parametrize("family", ["qwen3", "minicpm5", "gemma4"])
def test_other_families_draw_alike(on_device: bool, family: str) -> None:
    ours, anchors = prepared(on_device, [20], small(family))
    assert checks.choices(ours, anchors, 5)["differing"] == 0


@PLACES
@pytest.mark.parametrize(("block", "requests"), [(7, 2), (3, 5), (1, 16)])
def test_requests_that_share_a_launch_draw_each_by_its_own_seed(on_device: bool, block: int, requests: int) -> None:
    ours, anchors = prepared(on_device, range(1, 1 + requests), small(block_size=block), rows=16)
    found = checks.choices(ours, anchors, 20 if on_device else 2, (1.3,))
    assert found["differing"] == 0
    assert found["texts"] > requests if block > 1 else found["texts"] > 4
    assert checks.companions(ours, anchors) == {"greedy": True, "sampled": True}


@PLACES
def test_requests_of_several_launches_keep_their_own_logits(on_device: bool) -> None:
    ours, anchors = prepared(on_device, [20, 9, 1])
    assert ours.geometry.requests == 1
    assert checks.choices(ours, anchors, 1)["differing"] == 0


def strange(name: str, weights: DraftWeights) -> DraftWeights:
    """Weights that make logits which are no numbers: NaN in all or all but one, infinities of either sign."""
    head = weights.lm_head.clone()
    if name != "infinities":
        head[:] = float("nan")
    if name != "all NaN":
        head[300:303] = 0.0
        head[301, 0], head[302, 0] = float("inf"), float("-inf")
    if name == "-inf or inf beside NaN":
        head[300], head[302] = float("nan"), float("nan")
    return replace(weights, lm_head=head)


@PLACES
@pytest.mark.parametrize("name", ["all NaN", "infinities", "numbers beside NaN", "-inf or inf beside NaN"])
def test_strange_logits_give_the_references_ids(on_device: bool, name: str) -> None:
    ours, anchors = prepared(on_device, [20], small(), strange(name, random_weights(small())))
    found = checks.choices(ours, anchors, 3, (0.7, 1e-5))
    assert found["differing"] == 0


@PLACES
@FORMATS
def test_forms_repeats_and_builds_in_turn_give_the_same_bytes(on_device: bool, mxfp8: bool) -> None:
    """Greedy and sampled launches of one workspace in turn: they share epoch, counters and K/V."""
    ours, anchors = prepared(on_device, [100], mxfp8=mxfp8)
    warm, seen = checks.drawn(anchors, 0.7, 3), {}
    for turn in range(20 if on_device else 3):
        for form in (Form.ONE_LAUNCH, Form.CHAIN):
            ours.step.form = form
            if not on_device:
                ours.step.kernel.emulator.seed = turn  # type: ignore[union-attr]
            for name, given, logits in (("greedy", anchors, False), ("sampled", warm, False), ("kept", anchors, True)):
                seen.setdefault(name, set()).add(checks.bytes_of(ours.propose(given, logits=logits)[0]))
    assert {name: len(found) for name, found in seen.items()} == {"greedy": 1, "sampled": 1, "kept": 1}
    ours.step.form = Form.ONE_LAUNCH
    assert step_checks.repeats(ours, warm, 100 if on_device else 2) == 0
    assert step_checks.forms_agree(ours, warm)


@PLACES
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_rank_groups_draw_the_same_on_every_rank(on_device: bool, ranks: int) -> None:
    config = small(vocab_size=2048, num_heads=8, num_kv_heads=4)
    ours, anchors = prepared(on_device, [30], config, ranks=ranks, mxfp8=True)
    warm = checks.drawn(anchors, 0.7, 2)
    found = set()
    for form in (Form.ONE_LAUNCH, Form.CHAIN):
        ours.step.form = form
        [draft] = ours.propose(warm)  # which compares the ranks' tokens
        found.add(checks.bytes_of(draft))
        assert draft.tokens.tolist() == checks.chosen(draft, warm[0])
    assert len(found) == 1


@PLACES
def test_a_silent_cta_of_a_sampled_launch_is_named_and_reset_mends_it(on_device: bool) -> None:
    ours, anchors = prepared(on_device, [20], bound_seconds=0.05)
    warm = checks.drawn(anchors, 0.7, 1)
    stage = [each.name for each in ours.step.plan].index("markov.3")
    result = step_checks.bounded(ours, warm, 5, stage)
    assert result["named"], result["message"]
    assert result["refused"]
    assert result["right"]


@pytest.mark.slow
@pytest.mark.executed
@MARKS[1]
def test_nothing_of_a_sampled_launch_races() -> None:
    ours, anchors = prepared(False, [20, 9], rows=16, mxfp8=True, emulator=Emulator(16, 1, races=True))
    ours.propose(checks.drawn(anchors, 0.7, 1))
    ours.step.form = Form.CHAIN
    ours.propose(checks.drawn(anchors, 0.7, 1))


@pytest.mark.executed
@MARKS[1]
@pytest.mark.parametrize(
    ("temperature", "seed", "says"),
    [
        (float("nan"), 0, r"anchors\[0\]\.temperature: found nan, wanted finite, at least 0"),
        (-0.1, 0, r"anchors\[0\]\.temperature: found -0\.1, wanted finite, at least 0"),
        (0.7, -1, r"anchors\[0\]\.seed: found -1, wanted 0\.\.2\^64 - 1"),
    ],
)
def test_what_cannot_be_drawn_by_is_refused(temperature: float, seed: int, says: str) -> None:
    ours, [anchor] = prepared(False, [20])
    with pytest.raises(InputError, match=says):
        ours.propose([replace(anchor, temperature=temperature, seed=seed)])


@PLACES
def test_a_sampled_generation_drafts_as_the_reference(on_device: bool) -> None:
    given: dict[str, Any] = {"new_tokens": 64} if on_device else {"new_tokens": 10, "emulator": Emulator(8, 1)}
    found = generation.shadowed("drafter", True, prompts=1, temperature=0.7, **given)
    assert found["drafts"] >= 2
    assert found["refused"] == []


@pytest.mark.slow
@pytest.mark.executed
@MARKS[1]
@FORMATS
@pytest.mark.parametrize("name", ["drafter", "drafter-qwen3"])
def test_longer_sampled_generations_draft_as_the_reference(name: str, mxfp8: bool) -> None:
    found = generation.shadowed(name, mxfp8, prompts=3, new_tokens=48, temperature=0.7, emulator=Emulator(8, 1))
    assert found["refused"] == []


@pytest.mark.slow
@pytest.mark.executed
@MARKS[1]
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_sampled_generations_on_rank_groups_draft_as_the_reference(ranks: int) -> None:
    emulator = Emulator(8 * ranks, 1)
    found = generation.shadowed(
        "drafter", True, prompts=1, new_tokens=24, temperature=0.7, ranks=ranks, emulator=emulator
    )
    assert found["refused"] == []


@pytest.mark.slow
@pytest.mark.executed
@MARKS[1]
@FORMATS
def test_many_schedules_of_a_sampled_launch_give_the_same_bytes(mxfp8: bool) -> None:
    config, weights = load_drafter(DRAFTER, TARGET)
    ours, anchors = prepared(False, [40, 33], config, weights, rows=16, mxfp8=mxfp8)
    warm, seen = checks.drawn(anchors, 0.7, 1), set()
    for seed in range(40):
        ours.step.kernel.emulator.seed = seed  # type: ignore[union-attr]
        ours.step.form = Form.CHAIN if seed % 4 == 3 else Form.ONE_LAUNCH
        seen.add(tuple(checks.bytes_of(draft) for draft in ours.propose(warm)))
    assert len(seen) == 1
