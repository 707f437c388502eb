"""What Gemma4 adds to a layer, executed on a CPU: every stage, forms, races, and each addition broken once."""

from __future__ import annotations

import pytest
import torch
from emulated import MARKS, benchmark, check_stages
from hopper_shapes import small

from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.weights import DraftWeights
from monodraft.hopper import weights as packing
from monodraft.hopper import workspace
from monodraft.hopper.drafter import HopperDrafter
from monodraft.hopper.emulator import Emulator, EmulatorError, build
from monodraft.hopper.step import Form
from monodraft.testing import random_weights

pytestmark = MARKS
checks = benchmark("checks")
FORMATS = pytest.mark.parametrize("mxfp8", [False, True], ids=["bf16", "w8a16"])

GEMMAS = {
    "heads of 128": {"logit_softcap": 2.0},  # logits are of order 1: one of 30 hardly shows
    "heads of 512, one of keys": {"head_dim": 512, "num_heads": 16, "num_kv_heads": 1},
    "heads of 256, values of their own, no cap": {
        "head_dim": 256,
        "num_kv_heads": 2,
        "shared_kv_projection": False,
        "logit_softcap": None,
    },
}
"""Random Gemma4 drafters by what the kernels take otherwise."""


def gemma(name: str) -> tuple[DraftConfig, DraftWeights]:
    config = small("gemma4", **GEMMAS[name])
    return config, random_weights(config)


@pytest.mark.parametrize(
    ("name", "mxfp8", "lengths"),
    [
        ("heads of 128", False, [75]),
        ("heads of 128", True, [33, 20]),
        ("heads of 512, one of keys", False, [33, 20]),
        ("heads of 512, one of keys", True, [75]),
        ("heads of 256, values of their own, no cap", True, [75]),
    ],
    ids=str,
)
def test_every_stage_of_gemma4(name: str, mxfp8: bool, lengths: list[int]) -> None:
    check_stages(*gemma(name), mxfp8, lengths, rows=8 * len(lengths), emulator=Emulator(16, 2))


@pytest.mark.slow
@FORMATS
@pytest.mark.parametrize("name", GEMMAS)
@pytest.mark.parametrize(("lengths", "rows"), [([0], 8), ([400], 8), ([130, 33], 16)], ids=str)
def test_every_stage_of_gemma4_at_other_contexts(name: str, mxfp8: bool, lengths: list[int], rows: int) -> None:
    check_stages(*gemma(name), mxfp8, lengths, rows=rows, emulator=Emulator(20, 3))


@FORMATS
def test_gemma4_in_schedules_and_forms(mxfp8: bool) -> None:
    config, weights = gemma("heads of 512, one of keys")
    emulator, seen = Emulator(8), set()
    ours = HopperDrafter(config, weights, mxfp8=mxfp8, max_requests=2, max_positions=512, emulator=emulator)
    anchors = checks.committed(ours, [40], "cpu")
    for seed, form, logits in ((0, Form.ONE_LAUNCH, False), (1, Form.CHAIN, False), (2, Form.ONE_LAUNCH, True)):
        emulator.seed, ours.step.form = seed, form
        [draft] = ours.propose(anchors, logits=logits)
        assert draft.confidence is not None
        seen.add((draft.tokens.numpy().tobytes(), draft.confidence.numpy().tobytes()))
    assert len(seen) == 1


@pytest.mark.slow
@FORMATS
@pytest.mark.parametrize("name", GEMMAS)
def test_gemma4_has_no_race(name: str, mxfp8: bool) -> None:
    config, weights = gemma(name)
    emulator = Emulator(8, races=True)
    ours = HopperDrafter(config, weights, mxfp8=mxfp8, max_requests=2, max_positions=256, emulator=emulator)
    anchors = checks.committed(ours, [20], "cpu")
    for emulator.seed in range(4):
        ours.step.form = Form.CHAIN if emulator.seed % 2 else Form.ONE_LAUNCH
        ours.propose(anchors)


BROKEN = [
    ("heads of 128", "prepare.cuh", "packed(normed(v))", "v"),
    ("heads of 128", "attention.cuh", "if (!query) store_head", "if (false) store_head"),
    ("heads of 128", "attention.cuh", "values = (KV_PARTS - 1) * KV_HEADS", "values = KV_HEADS"),
    ("heads of 128", "heads.cuh", "APART = ROTARY_APART / 4", "APART = ROTARY_PAIRS / 4"),
    ("heads of 128", "linear.cuh", "round_bf16(LOGIT_SOFTCAP * tanhf(round_bf16(x) / LOGIT_SOFTCAP))", "round_bf16(x)"),
    ("heads of 128", "linear.cuh", "low_bf16(delta) * factor[row] * weight.x", "low_bf16(delta) * weight.x"),
    ("heads of 128", "linear.cuh", "high_bf16(delta) * factor[row] * weight.y", "high_bf16(delta) * factor[row]"),
    ("heads of 128", "linear.cuh", "low *= scalar, high *= scalar", "low *= scalar"),
    ("heads of 128", "linear.cuh", "a.squares[(ROWS + row)", "a.squares[(row)"),
    ("heads of 512, one of keys", "heads_wide.cuh", "rotate4(two, one, turns + i, false)", "two"),
    ("heads of 512, one of keys", "heads_wide.cuh", "sum += square4(x.at[j])", "sum += square4(x.at[0])"),
    ("heads of 512, one of keys", "attention.cuh", "piece < PIECES; piece++", "piece < PIECES - 1; piece++"),
    ("heads of 512, one of keys", "attention.cuh", "HEAD + piece * 128 + lane * 4);", "HEAD + lane * 4);"),
    ("heads of 512, one of keys", "attention.cuh", "KEY_STRIDE + warp * (HEAD / 4)", "KEY_STRIDE + warp * 32"),
]
"""An addition broken: drafter, file of stages/, text, what stands there instead."""


def replaced(file: str, old: str, new: str) -> dict[str, str]:
    files = sources()
    assert files[f"stages/{file}"].count(old) == 1, f"{file}: {old!r} is not there once"
    return files | {f"stages/{file}": files[f"stages/{file}"].replace(old, new)}


sources = build.sources


@pytest.mark.slow
@pytest.mark.parametrize(("name", "file", "old", "new"), BROKEN, ids=lambda value: str(value)[:40])
def test_a_broken_addition_is_seen(name: str, file: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "sources", lambda step=None: replaced(file, old, new))
    with pytest.raises((AssertionError, EmulatorError)) as seen:
        check_stages(*gemma(name), False, [75], emulator=Emulator(16, 2))
    assert "is not there once" not in str(seen.value)


@pytest.mark.slow
def test_an_addition_that_the_host_leaves_out_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(packing, "_embedding", lambda config, embed, device: embed.bfloat16())
        with pytest.raises(AssertionError, match="embedding"):
            check_stages(*gemma("heads of 128"), False, [75], emulator=Emulator(16, 2))
    real = workspace.rope_table

    def of_the_rotated_dims(geometry: workspace.Geometry, positions: int) -> torch.Tensor:
        return real(workspace.Geometry.choose(small(rotary_dim=32), rows=8, mxfp8=False), positions)

    monkeypatch.setattr(workspace, "rope_table", of_the_rotated_dims)
    with pytest.raises(AssertionError, match="q_linear"):
        check_stages(*gemma("heads of 128"), False, [75], emulator=Emulator(16, 2))


@pytest.mark.slow
def test_a_join_before_the_rows_factors_are_there_is_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    old = "  row_factors(s.squares, factor, thread);\n  epilogue_sync();\n"
    monkeypatch.setattr(
        build, "sources", lambda step=None: replaced("linear.cuh", old, old.replace("  epilogue_sync();\n", ""))
    )
    config, weights = gemma("heads of 128")
    emulator = Emulator(8, races=True)
    ours = HopperDrafter(config, weights, max_requests=2, max_positions=256, emulator=emulator)
    anchors = checks.committed(ours, [20], "cpu")
    with pytest.raises(EmulatorError, match="race"):
        ours.propose(anchors)
