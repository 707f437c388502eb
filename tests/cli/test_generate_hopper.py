"""`generate --backend hopper`: on a Hopper GPU, and with the kernels executed on a CPU in its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.weights import DraftWeights
from monodraft.cli.backends import register_all
from monodraft.hopper.drafter import HopperDrafter
from monodraft.hopper.emulator import CompilerMissing, Emulator
from monodraft.hopper.emulator.build import compiler
from monodraft.loop import backends
from monodraft.loop.backends import Backend

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
Run = Callable[..., tuple[int, str, str]]
FEW = ("--numerics", "w8a16", "--seed", "3", "--max-new-tokens", "12", "--json", "def read(path):")


def no_compiler() -> bool:
    try:
        compiler()
    except CompilerMissing:
        return True
    return False


def emulated(config: DraftConfig, weights: DraftWeights, *, numerics: str, positions: int, **_: Any) -> HopperDrafter:
    """What `--backend hopper` makes, on a CPU."""
    longest = positions - config.block_size
    return HopperDrafter(config, weights, mxfp8=numerics == "w8a16", max_positions=longest, emulator=Emulator(8, 1))


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 0.7], ids=["greedy", "sampled"])
@pytest.mark.executed
@pytest.mark.skipif(no_compiler(), reason="needs a C++ compiler")
def test_text_is_that_of_the_reference_drafter(
    command: Run, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    """Whole command, one seed: the drafts, their probabilities and so the text are the reference drafter's (no near tie
    comes up in these few tokens)."""
    register_all()
    monkeypatch.setitem(backends._BACKENDS, "hopper", Backend(emulated))
    results = {}
    for backend in ("hopper", "reference"):
        code, out, err = command("--backend", backend, "--temperature", temperature, *FEW)
        assert code == 0, err
        results[backend] = json.loads(out)
    ours, theirs = results["hopper"], results["reference"]
    assert ours["texts"][0]["tokens"] == theirs["texts"][0]["tokens"]
    assert ours["statistics"]["accepted"] == theirs["statistics"]["accepted"]
    assert sum(ours["statistics"]["accepted"]) > 0


@pytest.mark.parametrize("temperature", [0.0, 0.7], ids=["greedy", "sampled"])
@pytest.mark.device
@pytest.mark.skipif(not HOPPER, reason="needs an NVIDIA Hopper GPU (sm_90)")
def test_it_generates_on_the_device(command: Run, temperature: float) -> None:
    """Drafts beside the reference's, near ties known as such: tests/hopper/test_sampled.py."""
    code, out, err = command("--backend", "hopper", "--device", "cuda", "--temperature", temperature, *FEW)
    assert code == 0, err
    figures = json.loads(out)
    assert figures["tokens"] == len(figures["texts"][0]["tokens"]) == 12
    assert sum(figures["statistics"]["accepted"]) > 0
