"""What the emulator compiles: the kernels' own files, less their PTX; and what it says where it cannot."""

import re
from pathlib import Path

import pytest
from emulated import MARKS
from hopper_shapes import small

from monodraft.hopper import build as device_build
from monodraft.hopper.drafter import HopperDrafter
from monodraft.hopper.emulator import CompilerMissing, Emulator, build
from monodraft.hopper.emulator.build import without_ptx
from monodraft.hopper.geometry import Geometry
from monodraft.testing import random_weights


@pytest.mark.numbers
def test_all_but_ptx_is_the_kernels_own() -> None:
    files = build.sources()
    assert files["step.cu"] == (device_build.SOURCES / "step.cu").read_text()
    for name, text in device_build.headers().items():
        own = text.decode().splitlines()
        assert len(files[name].splitlines()) == len(own)
        differing = [b for a, b in zip(files[name].splitlines(), own, strict=True) if a != b]
        assert name.startswith("device/") or not differing
        assert "asm" not in re.sub(r"//.*", "", files[name])
    assert "INLINE void wait_grid(" in files["device/waits.cuh"]
    assert "INLINE void widen_e4m3(" in files["device/matrix.cuh"]


@pytest.mark.numbers
def test_only_functions_with_asm_are_taken_out() -> None:
    text = (
        'INLINE u32 a() { return 1; }\n// note\ntemplate <u32 N>\nINLINE void b() {\n  asm volatile("x" ::"n"(N));\n}\n'
    )
    text += "INLINE u32 c() { return a(); }\n"
    assert without_ptx(text) == "INLINE u32 a() { return 1; }\n// note\n\n\n\n\nINLINE u32 c() { return a(); }\n"


@pytest.mark.numbers
def test_without_a_compiler_the_error_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    build.compiler.cache_clear()
    monkeypatch.setattr("shutil.which", lambda name: None)
    config = small()
    try:
        with pytest.raises(
            CompilerMissing, match=r"C\+\+ compiler: found none on PATH, wanted one of g\+\+, clang\+\+"
        ):
            HopperDrafter(config, random_weights(config), max_positions=256, emulator=Emulator(8))
    finally:
        build.compiler.cache_clear()


@pytest.mark.compile_only
@MARKS[1]
def test_a_ptx_word_that_the_emulator_does_not_know_does_not_compile() -> None:
    step = '#include "device/new.cuh"\nextern "C" __global__ void draft_step(const int* a) { new_word(); }\n'
    files = build.sources(step) | {
        "device/new.cuh": without_ptx(
            '#include "memory.cuh"\nINLINE void new_word() { asm volatile("nanosleep.u32 9;"); }\n'
        )
    }
    with pytest.raises(RuntimeError, match=r"does not compile for the emulator:(.|\n)*new_word"):
        build.shared_library(files, [], "a kernel", quiet=True)


@pytest.mark.compile_only
@MARKS[1]
def test_the_second_build_comes_from_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MONODRAFT_CACHE", str(tmp_path))
    geometry = Geometry.choose(small(), rows=8, mxfp8=False, grid=8, max_positions=256)
    first = build.build(geometry)
    assert re.search(
        r"compiling the Hopper draft step \(.*8 CTAs\) for the emulator \.\.\. \d+\.\d s", capsys.readouterr().err
    )
    assert build.build(geometry) == first
    assert capsys.readouterr().err == ""
