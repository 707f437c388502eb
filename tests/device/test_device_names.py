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


# ---- a trap of the language: only the last `return` of a function that FlyDSL rewrites counts


def traced_functions(path: Path) -> list[ast.FunctionDef]:
    """Functions of a file that are decorated as traced, or that FlyDSL traces as kernels and launchers."""
    names = {"traced", "kernel", "jit"}
    return [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(each).split("(")[0].rsplit(".")[-1] in names for each in node.decorator_list)
    ]


def early_returns(function: ast.FunctionDef) -> list[int]:
    """Lines of returns inside an `if` or a loop whose condition is not a constant of tracing."""
    dynamic = (
        node
        for node in ast.walk(function)
        if isinstance(node, ast.If | ast.While | ast.For)
        and not (isinstance(node, ast.If) and ast.unparse(node.test).startswith(("const_expr(", "fx.const_expr(")))
    )
    return sorted({each.lineno for node in dynamic for each in ast.walk(node) if isinstance(each, ast.Return)})


ROOT = Path(next(iter(monodraft.device.__path__))).parent
TRACED = [
    path for room in ("device", "stages") for path in sorted((ROOT / room).rglob("*.py")) if traced_functions(path)
]


@pytest.mark.parametrize("path", TRACED, ids=lambda path: path.stem)
def test_no_traced_function_returns_inside_a_dynamic_branch(path: Path) -> None:
    """It would compile and be silently wrong (docs/device.md)."""
    found = {function.name: lines for function in traced_functions(path) if (lines := early_returns(function))}
    assert not found


def test_an_early_return_is_found() -> None:
    source = (
        "@traced\ndef f(x):\n    if x > 0:\n        return x\n    if const_expr(y):\n        return y\n    return 0\n"
    )
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    assert early_returns(function) == [4]
    assert "waits" in {path.stem for path in TRACED}
