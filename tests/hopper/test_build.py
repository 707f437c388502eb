"""Builds for sm_90a without a GPU: registers, spills, instruction mix, record layouts, cache."""

import ctypes
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hopper_shapes import GEMMA4_12B, M31, QWEN3_8B, small

from monodraft.checkpoint.config import DraftConfig
from monodraft.hopper import build, launch
from monodraft.hopper.geometry import Geometry
from monodraft.hopper.resources import resources

pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings and nvidia-cuda-nvrtc (the hopper extra)")
pytestmark = pytest.mark.compile_only


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONODRAFT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize(
    ("config", "rows", "mxfp8", "stores"),
    [
        (QWEN3_8B, 8, False, 0),
        (QWEN3_8B, 8, True, 0),
        (M31, 8, True, 4),
        (M31, 16, False, 4),
        (M31, 16, True, 7),
        (GEMMA4_12B, 8, False, 0),
        (GEMMA4_12B, 8, True, 2),
        (GEMMA4_12B, 16, True, 4),
    ],
    ids=lambda value: getattr(value, "family", value),
)
def test_resources_and_instruction_mix(config: DraftConfig, rows: int, mxfp8: bool, stores: int) -> None:
    """96 registers are what 640 threads can start with; no spill, or a few scalars."""
    used = resources(build.build(Geometry.choose(config, rows=rows, mxfp8=mxfp8), quiet=True))
    assert used.registers == 96
    assert used.instructions["STL"] <= stores
    assert used.frame <= 8 * stores
    count = used.instructions
    assert count["USETMAXREG"] == 2  # the epilogue grows, the producer shrinks
    assert count["UBLKCP"] == 2 + rows // 8  # weights, candidates, activations of eight rows each
    assert count["HMMA"] >= (32 if mxfp8 else 16) + 16 + 16  # per chunk: linear, Markov, scan
    assert count["LDSM"] >= 8
    assert count["F2FP"] >= 64  # the scan's conversions, eight a block


@pytest.mark.parametrize(
    ("config", "mxfp8"), [(QWEN3_8B, False), (QWEN3_8B, True), (M31, True)], ids=["qwen3-8b bf16", "mxfp8", "m3.1"]
)
def test_sampled_builds_take_no_more_registers(config: DraftConfig, mxfp8: bool) -> None:
    """One or two scalars spilled, at the kernel's start: not what draws, the same without it. No bounded chain."""
    geometry = Geometry.choose(config, rows=8, mxfp8=mxfp8)
    assert not [option for option in geometry.options if "SAMPLED" in option]
    used = resources(build.build(replace(geometry, sampled=True), quiet=True))
    assert used.registers == 96
    assert used.instructions["STL"] <= 2
    assert used.frame <= 8
    assert used.instructions["UBLKCP"] == 2  # weights, activations


def test_sixteen_rows_build() -> None:
    geometry = Geometry.choose(small(), rows=16, mxfp8=True)
    assert (geometry.row_tiles, geometry.requests) == (2, 2)
    assert resources(build.build(geometry, quiet=True)).registers == 96


def test_records_have_the_layout_of_the_source() -> None:
    """A static_assert per field of `Args` and `Stage`, compiled: a field moved on one side does not compile."""
    lines = ['#include "stages/plan.cuh"']
    for name, record in (("Args", launch.Args), ("Stage", launch.StageRecord)):
        lines.append(f"static_assert(sizeof({name}) == {ctypes.sizeof(record)});")
        for field, *_ in record._fields_:
            lines.append(
                f"static_assert(__builtin_offsetof({name}, {field}) == {getattr(record, field).offset}, {field!r});"
            )
    source = "\n".join(lines).replace("'", '"')
    options = Geometry.choose(small(), rows=8, mxfp8=True).options
    build.compile_source(options, source)
    with pytest.raises(RuntimeError, match="does not compile"):
        build.compile_source(options, source + "\nstatic_assert(sizeof(Stage) == 1);")


def test_second_build_comes_from_the_cache(capsys: pytest.CaptureFixture[str]) -> None:
    geometry = Geometry.choose(small(), rows=8, mxfp8=False)
    first = build.build(geometry)
    assert re.search(r"compiling the Hopper draft step .* \d+\.\d s", capsys.readouterr().err)
    assert build.build(geometry) == first
    assert capsys.readouterr().err == ""


def test_key_covers_options_sources_and_toolkit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = ["-DA=1"]
    key = build.cache_key(options)
    assert key != build.cache_key(["-DA=2"])
    monkeypatch.setattr(build, "toolkit_version", lambda: "99.9")
    assert key != build.cache_key(options)
    monkeypatch.undo()
    monkeypatch.setattr(build, "headers", lambda: {"stages/plan.cuh": b"// changed"})
    assert key != build.cache_key(options)


def test_without_a_toolkit_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import cuda.bindings

    build.nvrtc.cache_clear()
    monkeypatch.delattr(cuda.bindings, "nvrtc", raising=False)
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings.nvrtc", None)
    try:
        with pytest.raises(build.ToolkitMissing, match=r"pip install 'monodraft\[hopper\]'"):
            build.nvrtc()
    finally:
        build.nvrtc.cache_clear()
