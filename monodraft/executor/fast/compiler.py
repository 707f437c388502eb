"""LLVM-dialect text to machine code, and the cache of compiled objects on disk.

Cache: one file per (text, engine version, CPU, versions of the wheel), written whole and renamed into place, so that
several processes may share it. `MONODRAFT_CACHE` names the folder, else `$XDG_CACHE_HOME/monodraft`, else
`~/.cache/monodraft`. A folder that cannot be written to is no error: the object is compiled anew.

`MONODRAFT_EXECUTOR_CPU=avx2` compiles for any x86-64 CPU with AVX2 and FMA instead of this one: results are the same,
so it is for testing here what will run there.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import struct
import tempfile
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from monodraft.errors import Fault
from monodraft.executor.errors import BadLaunch
from monodraft.executor.fast.objects import LoadedObject, ObjectError


@cache
def engine_version() -> str:
    """A digest of this engine's own source: part of every key, so that a changed engine never meets old code."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def cache_folder() -> Path:
    """Where compiled objects are kept."""
    chosen = os.environ.get("MONODRAFT_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "monodraft"


@cache
def cpu_features() -> str:
    """What distinguishes this CPU for a compiler: architecture and feature flags."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    flags = next((line for line in lines if line.startswith("flags")), "")
    model = next((line for line in lines if line.startswith("model name")), "")
    return f"{platform.machine()} {model} {' '.join(sorted(flags.split()))}"


@cache
def toolchain() -> str:
    """The version of the wheel whose JIT compiles."""
    try:
        return f"flydsl {version('flydsl')}"
    except PackageNotFoundError:
        return "flydsl ?"


AVX2 = (
    *("-avx512f", "-avx512vl", "-avx512bw", "-avx512dq", "-avx512cd", "-avx512fp16", "-avx512bf16", "-avx512vnni"),
    *("-avx512vbmi", "-avx512vbmi2", "-avx512ifma", "-avx512bitalg", "-avx512vpopcntdq", "-avxvnni", "-gfni"),
)
"""Features switched off for a CPU that has AVX2 only."""


def target() -> str:
    """The CPU to compile for: "" is this one."""
    chosen = os.environ.get("MONODRAFT_EXECUTOR_CPU", "")
    if chosen not in ("", "host", "avx2"):
        raise BadLaunch("environment", faults=[Fault("MONODRAFT_EXECUTOR_CPU", repr(chosen), "host or avx2")])
    return "" if chosen == "host" else chosen


def object_key(text: str, optimise: int) -> str:
    """Key of a text in the cache."""
    parts = (text, str(optimise), engine_version(), toolchain(), target() or cpu_features())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def compiled(
    text: Callable[[], str] | str,
    key: str | None = None,
    *,
    resolve: Callable[[str], int] | None = None,
    optimise: int = 2,
    keep: bool = True,
) -> LoadedObject:
    """The loaded object of a module's text. A text that is costly to make can be given as a function with a `key` that
    stands for it; `keep` False neither reads nor writes the cache."""
    known = key if key is not None else text
    assert isinstance(known, str)
    path = cache_folder() / f"{object_key(known, optimise)}.o"
    if keep:
        with contextlib.suppress(OSError, ObjectError, ValueError, IndexError, struct.error):
            return LoadedObject(path.read_bytes(), resolve)
    data = compile_object(text if isinstance(text, str) else text(), optimise)
    if keep:
        store(path, data)
    return LoadedObject(data, resolve)


def compile_object(text: str, optimise: int) -> bytes:
    """Compile with the JIT of FlyDSL's wheel for this CPU."""
    from flydsl._mlir import ir
    from flydsl._mlir.execution_engine import ExecutionEngine

    context = ir.Context()
    context.load_all_available_dialects()
    with context, tempfile.TemporaryDirectory() as folder:
        module = ir.Module.parse(text)
        defined: list[str] = []
        declared: list[str] = []
        for op in module.body.operations:
            name = str(op.attributes["sym_name"]).strip('"')
            (defined if len(op.regions[0].blocks) else declared).append(name)
            if target() == "avx2" and len(op.regions[0].blocks):
                features = ", ".join(f'"{each}"' for each in AVX2)
                op.attributes["target_cpu"] = ir.StringAttr.get("haswell")
                op.attributes["target_features"] = ir.Attribute.parse(f"#llvm.target_features<[{features}]>")
        engine = ExecutionEngine(module, opt_level=optimise)
        for name in declared:
            # The JIT links what it compiles; this copy is never run, so any address will do.
            engine.raw_register_runtime(name, ctypes.c_void_p(16))
        engine.raw_lookup(defined[0])
        path = Path(folder) / "kernel.o"
        engine.dump_to_object_file(str(path))
        return path.read_bytes()


def store(path: Path, data: bytes) -> None:
    """Put an object into the cache, whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(data)
        Path(file.name).replace(path)
    except OSError:
        return
