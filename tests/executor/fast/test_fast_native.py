"""The native language against Python, the loader of objects, and the cache on disk."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monodraft.executor.errors import BadLaunch
from monodraft.executor.fast import compiler, native, objects, words
from monodraft.executor.fast.words import load64, lowest_bit, store64

pytestmark = pytest.mark.executed
LIMIT = 20


class Pair(words.Struct):
    first: int
    second: int


def collatz(n: int, most: int) -> int:
    """Branches, loops, both ways out of one, and short circuits."""
    steps = 0
    while n != 1 and not steps >= most:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
        if n > 1 << 40 or steps == most - 1:
            break
    return steps


def sums(n: int, skip: int) -> int:
    total = 0
    for i in range(3, n):
        if i == skip:
            continue
        for j in range(i):
            if j > LIMIT:
                break
            total += (i ^ j) - (i & j) + (i | j) + (~j << 2)
    return total


def through_memory(address: int, n: int) -> int:
    pair = Pair(address)
    pair.first = n + 1
    pair.second += pair.first * 2
    store64(address + 16, lowest_bit(pair.second))
    return load64(address + 8)


def caller(n: int, skip: int) -> int:
    return sums(n, skip) + collatz(n, 100)


def compile_test(*functions: Any) -> objects.LoadedObject:
    return compiler.compiled("module {\n" + native.compile_functions(functions) + "\n}\n")


def entry(loaded: objects.LoadedObject, name: str) -> Any:
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(loaded.address(name))


def test_native_functions_do_what_python_does() -> None:
    loaded = compile_test(caller, through_memory)
    for function in (caller, sums, collatz):
        run = entry(loaded, function.__name__)
        for n in (1, 2, 5, 27, 97):
            for other in (0, 1, 4, 30):
                assert run(n, other) == function(n, other), (function.__name__, n, other)
    words_ = np.array([0, 40, 0], np.int64)
    assert entry(loaded, "through_memory")(words_.ctypes.data, 3) == 48
    assert words_.tolist() == [4, 48, 4]


def division(n: int, m: int) -> int:
    return n / m  # type: ignore[return-value]


def unknown_name(n: int, m: int) -> int:
    return n + np  # type: ignore[operator]


def listing(n: int, m: int) -> int:
    for _ in [1, 2]:
        n += 1
    return n


def missing_field(n: int, m: int) -> int:
    return Pair(n).third  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (division, "Div"),
        (unknown_name, "np is neither"),
        (listing, "for without range"),
        (missing_field, "no field third"),
    ],
)
def test_what_is_not_native_is_refused_with_its_line(function: Any, message: str) -> None:
    with pytest.raises(native.NativeSyntax, match=rf"test_fast_native\.py:\d+: .*{message}"):
        native.compile_functions([function])


def test_the_cache_keeps_objects_and_survives_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONODRAFT_CACHE", str(tmp_path))
    calls = []
    real = compiler.compile_object
    monkeypatch.setattr(compiler, "compile_object", lambda *x: calls.append(x) or real(*x))
    text = "module {\n" + native.compile_functions([collatz]) + "\n}\n"
    assert entry(compiler.compiled(text), "collatz")(27, 1000) == collatz(27, 1000)
    assert entry(compiler.compiled(text), "collatz")(27, 1000) == collatz(27, 1000)
    assert len(calls) == 1
    (path,) = tmp_path.iterdir()
    for damage in (b"", b"junk", path.read_bytes()[:200], path.read_bytes()[:-40]):
        path.write_bytes(damage)
        assert entry(compiler.compiled(text), "collatz")(27, 1000) == collatz(27, 1000)
    assert len(calls) == 5
    compiler.compiled(text, optimise=1)
    monkeypatch.setenv("MONODRAFT_EXECUTOR_CPU", "avx2")
    compiler.compiled(text)
    assert len(calls) == 7  # the key covers options and CPU
    monkeypatch.setattr(compiler, "engine_version", lambda: "another")
    compiler.compiled(text)
    assert len(calls) == 8
    assert not [each for each in tmp_path.iterdir() if each.suffix != ".o"]


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("MONODRAFT_CACHE", str(blocked / "below"))
    assert entry(compile_test(collatz), "collatz")(6, 100) == collatz(6, 100)


def test_unknown_target_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONODRAFT_EXECUTOR_CPU", "arm")
    with pytest.raises(BadLaunch, match="MONODRAFT_EXECUTOR_CPU: found 'arm', wanted host or avx2"):
        compiler.target()


def test_missing_symbols_are_named() -> None:
    text = "module {\nllvm.func @nowhere(i64) -> i64\n"
    text += "llvm.func @f(%x: i64) -> i64 { %y = llvm.call @nowhere(%x) : (i64) -> i64\n llvm.return %y : i64 }\n}\n"
    with pytest.raises(objects.ObjectError, match="nowhere"):
        compiler.compiled(text, keep=False)


def test_avx2_code_gives_the_same_words(tmp_path: Path) -> None:
    """Operations, matrices and hand-offs in a process that compiles for a CPU without AVX-512."""
    here = Path(__file__).parent
    environment = {**os.environ, "MONODRAFT_EXECUTOR_CPU": "avx2", "MONODRAFT_CACHE": str(tmp_path)}
    chosen = (
        "lane_moves or conversions or diverged or eight_bit or (scaled and 120) or correct_handoff or (plain and 40)"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", "0", "-k", chosen]
    files = [str(here / f"test_fast_{name}.py") for name in ("operations", "matrix", "memory_model")]
    done = subprocess.run([*command, *files], capture_output=True, text=True, env=environment, cwd=here)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
