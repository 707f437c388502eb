"""`python -m monodraft.training` and what it cannot use: found before anything is read or trained."""

import subprocess
import sys
from pathlib import Path

import pytest

from monodraft.checkpoint.shipped import PAIR
from monodraft.errors import InputError
from monodraft.training.__main__ import main

pytestmark = pytest.mark.numbers


@pytest.mark.parametrize(
    ("out", "device", "words"),
    [
        ("/proc/pair", "cpu", "/proc/pair: found No such file or directory, wanted a folder"),
        ("{tmp}/pair", "abacus", "--device: found abacus"),
        ("{tmp}/pair", "cpu", "{tmp}: found no .py file"),
    ],
    ids=["no folder", "device", "no sources"],
)
def test_mistakes_are_named(tmp_path: Path, out: str, device: str, words: str) -> None:
    with pytest.raises(InputError) as error:
        main(out=Path(out.format(tmp=tmp_path)), stdlib=tmp_path, device=device)
    assert words.format(tmp=tmp_path) in str(error.value)
    assert not list(tmp_path.rglob("*.json"))


def test_a_pair_is_never_overwritten() -> None:
    before = (PAIR / "prompts.json").stat().st_mtime_ns
    command = [sys.executable, "-m", "monodraft.training", "--out", str(PAIR), "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert "found target, drafter, drafter-qwen3, prompts.json, training.json, wanted none of them" in done.stderr
    assert (PAIR / "prompts.json").stat().st_mtime_ns == before
