"""Every benchmark and example can be loaded: they are run by hand, and a name that moved would be found late."""

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(path for folder in ("benchmarks", "examples") for path in (ROOT / folder).rglob("*.py"))

pytestmark = pytest.mark.numbers


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(ROOT)) for path in FILES])
def test_it_loads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports and definitions, not the run itself."""
    monkeypatch.setattr(sys, "path", [str(path.parent), str(ROOT), *sys.path])
    runpy.run_path(str(path), run_name="loaded")
