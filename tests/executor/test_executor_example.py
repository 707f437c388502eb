"""The example in the docs finds its planted race."""

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.executed
EXAMPLE = Path(__file__).parents[2] / "examples" / "executor_race.py"


def test_the_example_finds_its_race(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    told = capsys.readouterr().out
    assert "are not ordered" in told
    assert "executor_race.py" in told
    assert "seed" in told
