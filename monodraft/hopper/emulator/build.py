"""Compiles step.cu with the machine's C++ compiler, for the emulator, and keeps the library in a cache.

The sources are those that NVRTC compiles. Only the functions of device/*.cuh that consist of PTX are taken out of a
copy; words.h has them under the same names.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from monodraft.errors import Fault
from monodraft.hopper.build import SOURCES, ToolkitMissing, cache_folder, headers
from monodraft.hopper.geometry import Geometry

EMULATOR = Path(__file__).parent
COMPILERS = ("g++", "clang++", "c++")
# Line tables name the places of a deadlock; a product and a sum stay two roundings; records are read as other types.
FLAGS = (
    *("-std=c++17", "-O2", "-g1", "-fno-omit-frame-pointer", "-ffp-contract=off", "-fno-strict-aliasing"),
    *("-fPIC", "-w", "-fno-exceptions"),
)
RACES = "-DEMULATOR_RACES"
"""Flag of builds that look for races."""
_FUNCTION = re.compile(r"^(?:template <[^>]*>\n)?INLINE [^;{}]*?\([^{}]*?\)\s*\{", re.MULTILINE)


class CompilerMissing(ToolkitMissing):
    """The C++ compiler that the emulator needs is not there."""


@cache
def compiler() -> str:
    """Path of the machine's C++ compiler, or CompilerMissing."""
    for name in COMPILERS:
        if path := shutil.which(name):
            return path
    raise CompilerMissing(
        "the Hopper emulator compiles the kernels with a C++ compiler",
        [Fault("C++ compiler", "none on PATH", f"one of {', '.join(COMPILERS)}")],
    )


@cache
def compiler_version() -> str:
    """First line of what the compiler says about itself."""
    return subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=True).stdout.split("\n")[0]


def without_ptx(text: str) -> str:
    """A header without its functions that hold `asm`; lines keep their numbers."""
    at = 0
    while match := _FUNCTION.search(text, at):
        end, depth = match.end(), 1
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        if re.search(r"\basm\b", text[match.start() : end]):
            blank = "\n" * text[match.start() : end].count("\n")
            text = text[: match.start()] + blank + text[end:]
            at = match.start()
        else:
            at = end
    return text


def sources(step: str | None = None) -> dict[str, str]:
    """Every file of a build by its name in the build's folder; `step`: a kernel in place of step.cu."""
    files = {"step.cu": (SOURCES / "step.cu").read_text() if step is None else step}
    for name, content in headers().items():
        text = content.decode()
        files[name] = without_ptx(text) if name.startswith("device/") else text
    for path in sorted(EMULATOR.glob("*.[hc]*")):
        files[path.name] = path.read_text()
    return files


def shared_library(files: dict[str, str], options: Sequence[str], what: str, *, quiet: bool = False) -> Path:
    """The library of `sources`, from the cache or compiled (a message on stderr says so and how long it took).

    Raises CompilerMissing; RuntimeError with the log where it does not compile.
    """
    digest = hashlib.sha256()
    for name, text in files.items():
        digest.update(f"{name} {len(text)}\n{text}".encode())
    digest.update("\n".join([*FLAGS, *options, compiler_version()]).encode())
    path = cache_folder() / f"{digest.hexdigest()[:32]}.so"
    if path.exists():
        return path
    start = time.monotonic()
    if not quiet:
        print(f"compiling {what} for the emulator ...", end=" ", file=sys.stderr, flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        _compile(Path(folder), files, [*FLAGS, *options])
        os.replace(Path(folder) / "step.so", path)
    if not quiet:
        print(f"{time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
    return path


def build(geometry: Geometry, *, quiet: bool = False, flags: Sequence[str] = ()) -> Path:
    """The library of a geometry (see `shared_library`). `flags`: further ones of the compiler."""
    weights = "MXFP8" if geometry.mxfp8 else "bf16"
    sizes = f"{geometry.config.family.value}, {weights}, {geometry.rows} rows, {geometry.grid * geometry.ranks} CTAs"
    sizes += ", sampled" if geometry.sampled else ""
    return shared_library(sources(), [*flags, *geometry.options], f"the Hopper draft step ({sizes})", quiet=quiet)


def _compile(folder: Path, files: dict[str, str], options: list[str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    units = [name for name in files if name.endswith(".cpp")]
    common = [compiler(), *options, f"-ffile-prefix-map={folder}=hopper", "-I."]
    # The compiler announces accesses as to its thread sanitizer, but races.cpp listens and not the sanitizer's library.
    announced = ["-fsanitize=thread"] if RACES in options else []
    for unit in units:
        _call(folder, [*common, *(announced if unit == "kernel.cpp" else []), "-c", unit])
    _call(folder, [compiler(), "-shared", "-o", "step.so", *(name.replace(".cpp", ".o") for name in units)])


def _call(folder: Path, command: list[str]) -> None:
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"step.cu does not compile for the emulator:\n{result.stderr[:20000]}")
