#!/usr/bin/env python3
"""The two commands of the README, on a machine that has nothing but Python >= 3.11 and pip.

    python3 tasks.py generate [OPTIONS]   run the main job (options go to `monodraft generate`; try --help)
    python3 tasks.py test [PYTEST-ARGS]   check style and types, then run the tests

The first call makes `.venv` beside this file and installs into it; later calls reuse it until pyproject.toml or
constraints.txt changes. `--fresh` as the first argument makes the environment anew.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"


def stamp(extras: str) -> str:
    """What the environment was made from."""
    inputs = (ROOT / "pyproject.toml").read_bytes() + (ROOT / "constraints.txt").read_bytes()
    return f"{extras} {sys.version_info[:3]} {hashlib.sha256(inputs).hexdigest()}"


def ensure_environment(extras: str, fresh: bool) -> None:
    """Make `.venv` and install monodraft into it in place, unless that is done already."""
    marker = VENV / "installed"
    if fresh:
        shutil.rmtree(VENV, ignore_errors=True)
    have = marker.read_text() if marker.exists() else ""
    if have in (stamp(extras), stamp("[test]")):
        return
    print(f"installing monodraft{extras} into {VENV.name} (once; PyTorch is the big part)", flush=True)
    # Without pip inside: Debian's python3 comes without ensurepip, and the outer pip can install into the new one.
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(VENV)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(PYTHON), "install", "--quiet", "-c", "constraints.txt"]
    subprocess.run([*pip, "-e", f".{extras}"], check=True, cwd=ROOT)
    marker.write_text(stamp(extras))


def run(*command: str) -> None:
    """Run a step; leave with its exit code when it fails."""
    # One thread a test process: two processes that start a thread pool each took five times as long on two cores.
    code = subprocess.run(command, cwd=ROOT, env={"OMP_NUM_THREADS": "1", **os.environ}).returncode
    if code:
        sys.exit(code)


def main(arguments: list[str]) -> None:
    fresh = arguments[:1] == ["--fresh"]
    arguments = arguments[1:] if fresh else arguments
    match arguments:
        case ["generate", *rest]:
            ensure_environment("", fresh)
            os.execv(VENV / "bin" / "monodraft", ["monodraft", "generate", *rest])
        case ["test", *rest]:
            ensure_environment("[test]", fresh)
            run(str(PYTHON), "-m", "ruff", "check", ".")
            run(str(PYTHON), "-m", "ruff", "format", "--check", ".")
            run(str(PYTHON), "-m", "mypy", "monodraft")
            run(str(PYTHON), "-m", "pytest", "-n", "2", *(rest or ["-m", "not slow"]))
        case _:
            print(__doc__)
            sys.exit(0 if arguments[:1] in (["-h"], ["--help"]) else 2)


if __name__ == "__main__":
    main(sys.argv[1:])
