"""What tests need to execute the kernels on a CPU: a compiler or the reason why not; the checks of the device runs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.weights import DraftWeights
from monodraft.hopper.emulator import CompilerMissing
from monodraft.hopper.emulator.build import compiler


def reason() -> str:
    """Why nothing can be executed here; empty where it can."""
    try:
        compiler()
    except CompilerMissing as error:
        return str(error)
    return ""


MARKS = [pytest.mark.executed, pytest.mark.skipif(bool(reason()), reason=reason() or "a C++ compiler is there")]


FOLDER = str(Path(__file__).parents[2] / "benchmarks" / "hopper")


def benchmark(name: str) -> ModuleType:
    """A file of benchmarks/hopper, whose checks run on the device too."""
    if FOLDER not in sys.path:
        sys.path.append(FOLDER)
    return importlib.import_module(name)


# Kernels and reference round at the same places but other products (the deferred norm): both are as far from float64,
# and sqrt(2) times as far from each other where their roundings are independent; a quarter more for the draw.
APART = 1.25 * 2**0.5


def check_stages(
    config: DraftConfig, weights: DraftWeights, mxfp8: bool, lengths: list[int], **options: object
) -> None:
    """Every stage as far from the reference as roundings make it; drafts as `checks.stages` wants them."""
    checks = benchmark("checks")
    found = checks.stages(config, weights, mxfp8, lengths, max_positions=512, **options)
    noise = checks.noise(config, weights, lengths, "cpu")
    noise["corrected"] = noise["base_logits"]  # the chain's tokens may differ between the numerics
    for key, value in found.items():
        if key not in ("tokens differ", "lead there", "bound there", "rows over noise", "confidence abs", "corrected"):
            assert value <= APART * noise[key], f"{key}: {value}, noise {noise[key]}"
    if not found["tokens differ"]:  # after another token other rows follow
        assert found["corrected"] <= APART * noise["corrected"]
