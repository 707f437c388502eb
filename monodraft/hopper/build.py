"""Compiles the step with NVRTC, without a GPU, and keeps the machine code in a cache.

The key covers every source file, the options (hence the geometry) and the toolkit's version.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

from monodraft.errors import Fault, InputError
from monodraft.hopper.geometry import Geometry

SOURCES = Path(__file__).parent
ARCHITECTURE = "sm_90a"


class ToolkitMissing(InputError):
    """The CUDA packages or the GPU that the Hopper backend needs are not there."""


@cache
def nvrtc() -> Any:
    """`cuda.bindings.nvrtc`, or ToolkitMissing with what to install."""
    try:
        from cuda.bindings import nvrtc as module

        module.nvrtcVersion()
    except (ImportError, RuntimeError, OSError) as error:
        raise ToolkitMissing(
            "the Hopper backend compiles its kernels with NVRTC",
            [Fault("NVRTC", f"none ({error})", "pip install 'monodraft[hopper]'")],
        ) from error
    return module


def checked(result: tuple[Any, ...], what: str) -> Any:
    """The values of a cuda.bindings call, or a RuntimeError naming the call and the code."""
    code, *values = result
    if int(code) != 0:
        raise RuntimeError(f"{what}: {code}")
    return values[0] if len(values) == 1 else tuple(values)


def headers() -> dict[str, bytes]:
    """Every included file by the name that step.cu and the others include it by."""
    return {str(path.relative_to(SOURCES)): path.read_bytes() for path in sorted(SOURCES.rglob("*.cuh"))}


def toolkit_version() -> str:
    """Version of NVRTC, major.minor."""
    return ".".join(str(part) for part in checked(nvrtc().nvrtcVersion(), "nvrtcVersion"))


def cache_key(options: list[str]) -> str:
    """Digest of sources, options and toolkit."""
    digest = hashlib.sha256()
    for name, text in {"step.cu": (SOURCES / "step.cu").read_bytes(), **headers()}.items():
        digest.update(f"{name} {len(text)}\n".encode() + text)
    digest.update("\n".join([*options, ARCHITECTURE, toolkit_version()]).encode())
    return digest.hexdigest()[:32]


def cache_folder() -> Path:
    """Where machine code is kept: $MONODRAFT_CACHE, else monodraft below the user's cache folder."""
    base = (
        os.environ.get("MONODRAFT_CACHE")
        or Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "monodraft"
    )
    return Path(base) / "hopper"


def compile_source(options: list[str], source: str | None = None) -> bytes:
    """The cubin of step.cu (or `source`) for sm_90a. A compiler error is ours: RuntimeError with its log."""
    rtc = nvrtc()
    text = (SOURCES / "step.cu").read_bytes() if source is None else source.encode()
    included = headers()
    # NVRTC matches an include by the text between the quotes, whatever folder the including file is in.
    included |= {f"../{name}": text for name, text in headers().items()}
    included |= {name.rpartition("/")[2]: text for name, text in headers().items()}
    program = checked(
        rtc.nvrtcCreateProgram(
            text,
            b"step.cu",
            len(included),
            list(included.values()),
            [name.encode() for name in included],
        ),
        "nvrtcCreateProgram",
    )
    arguments = [f"--gpu-architecture={ARCHITECTURE}", "--std=c++17", "-lineinfo", *options]
    outcome = rtc.nvrtcCompileProgram(program, len(arguments), [argument.encode() for argument in arguments])
    if int(outcome[0]) != 0:
        log = b" " * checked(rtc.nvrtcGetProgramLogSize(program), "nvrtcGetProgramLogSize")
        rtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"step.cu does not compile:\n{log.decode().rstrip(chr(0))}")
    cubin = b" " * checked(rtc.nvrtcGetCUBINSize(program), "nvrtcGetCUBINSize")
    checked(rtc.nvrtcGetCUBIN(program, cubin), "nvrtcGetCUBIN")
    rtc.nvrtcDestroyProgram(program)
    return cubin


def build(geometry: Geometry, *, quiet: bool = False) -> bytes:
    """The cubin of a geometry, from the cache or compiled (a message on stderr says so and how long it took)."""
    options = geometry.options
    path = cache_folder() / f"{cache_key(options)}.cubin"
    if path.exists():
        return path.read_bytes()
    start = time.monotonic()
    if not quiet:
        weights, sampled = "MXFP8" if geometry.mxfp8 else "bf16", ", sampled" if geometry.sampled else ""
        sizes = f"{geometry.config.family.value}, {weights}, {geometry.rows} rows{sampled}"
        print(
            f"compiling the Hopper draft step ({sizes}) ...",
            end=" ",
            file=sys.stderr,
            flush=True,
        )
    cubin = compile_source(options)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(cubin)
    os.replace(file.name, path)
    if not quiet:
        print(f"{time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
    return cubin
