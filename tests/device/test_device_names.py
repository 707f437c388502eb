"""FlyDSL's unstable names live in one file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import monodraft.device

pytestmark = pytest.mark.numbers

STABLE = {"flydsl.compiler", "flydsl.expr"}
# Names of flydsl.expr.rocdl that its `__all__` holds; the rest of that module is generated operations.
STABLE_ROCDL = {"get_buffer_rsrc", "make_buffer_ptr", "SyncScope"}
FILES = sorted(path for path in Path(next(iter(monodraft.device.__path__))).glob("*.py") if path.stem != "flydsl_names")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_only_stable_names_of_flydsl_outside_flydsl_names(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for module in modules:
            assert not module.startswith("flydsl") or module in STABLE, f"{path.name}: {module}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "rocdl":
            assert node.attr in STABLE_ROCDL, f"{path.name}: rocdl.{node.attr}"
