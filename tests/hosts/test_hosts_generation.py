"""Whole generations of the shipped pair through the one-launch kernel: the very tokens of the `mxfp8` reference."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from monodraft.cli.app import app

pytestmark = [pytest.mark.executed, pytest.mark.slow]


def generated(*options: str) -> dict:
    arguments = ["generate", "def parse(line):", "--json", "--no-compare", "--max-new-tokens", "48", *options]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout[result.stdout.index("{") :])


@pytest.mark.parametrize("sampled", [(), ("--temperature", "0.7", "--seed", "5")], ids=["greedy", "sampled"])
@pytest.mark.parametrize("ranks", ["1", "2", "4", "8"])
def test_the_shipped_pair_drafts_what_the_reference_drafts(ranks: str, sampled: tuple[str, ...]) -> None:
    ours = generated("--backend", "executor", "--ranks", ranks, *sampled)
    wanted = generated("--numerics", "mxfp8", "--ranks", ranks, *sampled)
    for times in (ours, wanted):
        del times["backend"]
        for name in [key for key in times if "seconds" in key or "per_second" in key or "time" in key]:
            del times[name]
    assert ours == wanted
