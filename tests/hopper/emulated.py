"""What tests need to execute the kernels on a CPU: a compiler or the reason why not; the checks of the device runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

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


def benchmark(name: str) -> ModuleType:
    """A file of benchmarks/hopper, whose checks run on the device too."""
    path = Path(__file__).parents[2] / "benchmarks" / "hopper" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"benchmarks_hopper_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
