"""The kernel as it is compiled: its hand-offs are the plan's, its loops keep their polls, it fits a compute unit."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

import monodraft.executor as ex
from monodraft.checkpoint.config import DraftConfig, Family, MarkovKind
from monodraft.cli.app import app
from monodraft.device.isa import Instruction, Kernel, parse
from monodraft.device.lint import WAIT_MARK, lint
from monodraft.errors import KernelError
from monodraft.plan.shape import AllReduce, StepShape
from monodraft.plan.step import Plan
from monodraft.stages.compile import check_record, compile_plan, resources
from monodraft.stages.step import launcher, placeholders
from monodraft.testing import random_config

pytestmark = pytest.mark.compile_only

M31 = {
    "hidden_size": 6144, "num_layers": 5, "head_dim": 128, "num_heads": 64, "num_kv_heads": 4, "ffn_size": 12288,
    "vocab_size": 200064, "markov_rank": 256, "windows": (4096,) * 5, "target_layer_ids": (3, 17, 31, 45, 59),
    "max_positions": 524288,
}  # fmt: skip


def plan(config: DraftConfig | None = None, **options: object) -> Plan:
    return Plan(StepShape(config or random_config(), **{"ctas": 4, "positions": 512, **options}))  # type: ignore[arg-type]


compiled = cache(compile_plan)
"""One compilation a plan, for all that is looked at in it."""


@pytest.mark.parametrize(
    "each",
    [
        plan(ranks=2, requests=2),
        plan(requests=0),
        plan(ranks=4, splits=4),
        plan(context_rows=0, ranks=4, all_reduce=AllReduce.TWO_STAGE),
        plan(random_config(Family.QWEN3, markov=MarkovKind.RNN, has_confidence=False), sampled=True),
    ],
    ids=["two requests", "commit only", "split keys", "two stages", "rnn, sampled"],
)
def test_what_is_traced_is_what_is_planned(each: Plan) -> None:
    record: list[tuple[str, str, str]] = []
    ex.lower(launcher(each, record), *placeholders())
    check_record(each, record)
    assert record == list(each.record)


def test_a_hand_off_that_is_not_planned_is_named() -> None:
    each = plan()
    record = list(each.record)
    with pytest.raises(KernelError, match="hand-off 3"):
        check_record(each, [*record[:3], ("wait", "o", "flags.qkv"), *record[4:]])
    with pytest.raises(KernelError, match="found nothing"):
        check_record(each, record[:-1])
    with pytest.raises(KernelError, match="wanted nothing"):
        check_record(each, [*record, record[0]])


def test_compiled_kernel_fits_and_lints_clean() -> None:
    kernel = compiled(plan(ranks=2, requests=2))
    used = resources(kernel.isa)
    assert not used.faults()
    assert used.vgpr_spills == used.scratch_bytes == 0
    assert not lint(kernel.isa)
    assert kernel.code_object is not None or kernel.missing


def between_barrier_and(kernel: Kernel, wait: int) -> list[Instruction]:
    """Instructions on the paths from the last barriers to the mark of a wait."""
    before: dict[int, list[int]] = {}
    for index, following in enumerate(kernel.successors):
        for each in following:
            before.setdefault(each, []).append(index)
    seen, todo = set(), [wait]
    while todo:
        for index in before.get(todo.pop(), []):
            if index not in seen and kernel.instructions[index].mnemonic != "s_barrier":
                seen.add(index)
                todo.append(index)
    return [kernel.instructions[index] for index in seen]


def weights_asked_before(each: Plan) -> dict[str, int]:
    """Of every stage that waits: 16-byte plain loads in the assembly between the last barrier and its first wait. Waits
    stand in the assembly as they were traced, each behind its `; wait`."""
    (kernel,) = parse(compiled(each).isa)
    marks = [index for index, instruction in enumerate(kernel.instructions) if instruction.mark == WAIT_MARK]
    waits = [stage for kind, stage, _ in each.record if kind in ("wait", "poll")]
    found: dict[str, int] = {}
    for stage, mark in zip(waits, marks, strict=True):
        if stage not in found:
            between = between_barrier_and(kernel, mark)
            found[stage] = sum(i.is_load and not i.is_coherent and i.mnemonic.endswith("dwordx4") for i in between)
    return found


def least_asked(each: Plan) -> dict[str, int]:
    """What `weights_asked_before` has to find at least: a load for each weight array of the stage, and of what follows
    its wait without one of its own; none for a stage that reads no weights."""
    wanted = {stage.name: len(stage.weights) for stage in each.stages if stage.waits}
    if each.shape.inner_rows:
        wanted["lm_head"] += 1  # of the inner linear
        wanted["inner_ready"] = 3  # w2, the serial columns and the bias of slot 0
        wanted["chain"] += 2
    if each.shape.config.has_confidence:
        wanted["chain"] += 2  # two loads of sixteen values
    return wanted


@pytest.mark.parametrize(
    "each",
    [
        plan(ranks=2, requests=2),
        plan(random_config(Family.QWEN3, markov=MarkovKind.RNN)),
        pytest.param(plan(ranks=4, splits=4, all_reduce=AllReduce.TWO_STAGE), marks=pytest.mark.slow),
        pytest.param(plan(random_config(Family.QWEN3, markov=MarkovKind.GATED), ranks=2), marks=pytest.mark.slow),
    ],
    ids=["two requests", "rnn", "split keys", "gated"],
)
def test_weights_are_requested_before_the_wait(each: Plan) -> None:
    """In what LLVM left, not only in what was traced; tests/hosts/test_weights_ahead.py says which arrays they are."""
    asked, wanted = weights_asked_before(each), least_asked(each)
    assert set(asked) == set(wanted)
    assert {stage for stage, count in wanted.items() if asked[stage] < count} == set(), asked


@pytest.mark.slow
@pytest.mark.parametrize("requests", [1, 2])
def test_released_m31_at_4_ranks_fits_a_compute_unit(requests: int) -> None:
    kernel = compiled(plan(random_config(**M31), ranks=4, ctas=256, requests=requests, positions=8192))
    used = resources(kernel.isa)
    assert not used.faults(), used
    assert not lint(kernel.isa)


@pytest.mark.slow
def test_command_writes_assembly_and_report(tmp_path: Path) -> None:
    out = tmp_path / "compiled"
    result = CliRunner().invoke(app, ["compile", "--ranks", "2", "--ctas", "8", "--out", str(out)])
    assert result.exit_code == 0, result.output
    report = json.loads((out / "report.json").read_text())
    assert report["fits"]
    assert report["resources"]["scratch_bytes"] == 0
    assert set(report["ranks"]) == {"0", "1"}
    assert "v_mfma_scale_f32_16x16x128_f8f6f4" in (out / "draft.s").read_text()
