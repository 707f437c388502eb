"""Whole generations of the shipped pair through the one-launch kernel: the very tokens of the `mxfp8` reference."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from monodraft.cli.app import app

pytestmark = [pytest.mark.executed, pytest.mark.slow]


def generated(*options: str) -> tuple[list[int], list[int], list[int]]:
    """Tokens, and drafts verified and accepted at each position, of one run."""
    arguments = ["generate", "def parse(line):", "--json", "--no-compare", "--max-new-tokens", "48", *options]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    (text,) = json.loads(result.stdout)["texts"]
    return text["tokens"], text["statistics"]["verified"], text["statistics"]["accepted"]


@pytest.mark.parametrize("sampled", [(), ("--temperature", "0.7", "--seed", "5")], ids=["greedy", "sampled"])
@pytest.mark.parametrize("ranks", ["1", "2", "4", "8"])
def test_the_shipped_pair_drafts_what_the_reference_drafts(ranks: str, sampled: tuple[str, ...]) -> None:
    """A drafted token that differed would change what is verified or accepted somewhere."""
    ours = generated("--backend", "executor", "--ranks", ranks, *sampled)
    assert ours == generated("--numerics", "mxfp8", "--ranks", ranks, *sampled)
