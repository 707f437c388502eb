"""Agreement of ranks that are real processes of a gloo group, before any kernel is launched."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from gloo_rank import ABSENT_SECONDS, SCENARIOS

from monodraft.hosts.consensus import Ranks, fields_of
from monodraft.plan.shape import StepShape
from monodraft.testing import random_config

pytestmark = pytest.mark.numbers

SECONDS = 120
"""Most that all scenarios of a group take, and what a rank that hangs is given."""
SIZES = (2, 4)
Outcome = tuple[str, str, float]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Outcome]]]:
    """Of each size of group, what every rank's scenarios ended in: kind of error, its text, seconds."""
    return {size: run_group(size, tmp_path_factory.mktemp(f"group{size}")) for size in SIZES}


def run_group(size: int, folder: Path) -> list[dict[str, Outcome]]:
    command = [sys.executable, str(Path(__file__).with_name("gloo_rank.py"))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([*command, str(rank), str(size), str(folder)], env=environment, stderr=subprocess.PIPE)
        for rank in range(size)
    ]
    try:
        for process in processes:
            _, said = process.communicate(timeout=SECONDS)
            assert process.returncode == 0, said.decode()
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


@pytest.mark.parametrize("size", SIZES)
def test_ranks_that_agree_start(outcomes: dict[int, list[dict[str, Outcome]]], size: int) -> None:
    assert [each["agreement"][:2] for each in outcomes[size]] == [["nothing", ""]] * size


DISAGREEMENTS = {
    "another_plan": {"ctas": ("5", "4"), "page_size": ("64", "32"), "pages": ("2", "4")},
    "another_geometry": {"config.rms_norm_eps": ("1e-05", "1e-06"), "config.ffn_size": ("512", "256")},
    "other_rows": {"requests": ("1", "2"), "context_rows": ("16", "0"), "sampled": ("True", "False")},
    "other_calls": {"what is agreed about,": ("the launch", "reset")},
    "another_kernel": {"SHA-256 of the code object": (".*", ".*")},
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scenario", DISAGREEMENTS)
def test_every_rank_names_each_field_and_the_odd_rank(
    outcomes: dict[int, list[dict[str, Outcome]]], size: int, scenario: str
) -> None:
    fields = DISAGREEMENTS[scenario]
    texts = [each[scenario][1] for each in outcomes[size]]
    assert [each[scenario][0] for each in outcomes[size]] == ["Refused"] * size
    assert len(set(texts)) == 1, "all ranks say the same"
    lines = texts[0].splitlines()[1:]
    usual = ", ".join(str(rank) for rank in range(size - 1))
    patterns = [
        rf"  {re.escape(field)} of rank {size - 1}: found {found}, wanted {wanted}, as on rank {usual}"
        for field, (found, wanted) in fields.items()
    ]
    assert len(lines) == len(patterns), lines
    assert all(any(re.fullmatch(pattern, line) for line in lines) for pattern in patterns), lines


@pytest.mark.parametrize("size", SIZES)
def test_one_that_refuses_makes_all_refuse(outcomes: dict[int, list[dict[str, Outcome]]], size: int) -> None:
    found = [each["too_small_a_device"] for each in outcomes[size]]
    assert [kind for kind, *_ in found] == ["Refused"] * (size - 1) + ["InputError"]
    for kind, text, _ in found:
        assert "ctas: found 4, wanted at most 2, the compute units of the device" in text
        assert f"rank {size - 1}: found" in text or kind == "InputError"


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_that_never_comes_is_not_waited_for_long(
    outcomes: dict[int, list[dict[str, Outcome]]], size: int
) -> None:
    """The group's own timeout is ten minutes; rank 0 names the one that is missing."""
    found = [each["absent"] for each in outcomes[size][:-1]]
    for rank, (kind, text, seconds) in enumerate(found):
        assert kind == "Refused"
        assert "the ranks did not meet" in text
        assert f"what rank {rank} saw: found " in text
        assert f"wanted all {size} ranks within {ABSENT_SECONDS:g} s" in text
        assert seconds < 5 * ABSENT_SECONDS
    assert f"Ranks {size - 1} failed to pass" in found[0][1]


def test_all_scenarios_are_looked_at() -> None:
    looked_at = {"agreement", *DISAGREEMENTS, "too_small_a_device", "absent"}
    assert {scenario.__name__ for scenario in SCENARIOS} == looked_at


@cache
def shape() -> StepShape:
    return StepShape(random_config(), ctas=4, requests=1, positions=64)


def test_fields_of_a_plan_are_named_with_those_of_its_config() -> None:
    names = fields_of(shape())
    assert {"ctas", "requests", "page_size", "config.hidden_size", "config.swiglu.alpha"} <= set(names)
    assert "config" not in names


def test_one_rank_agrees_with_itself() -> None:
    Ranks(None).same("the plan", fields_of(shape()))
