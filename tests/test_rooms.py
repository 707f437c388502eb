"""Imports between rooms point one way (docs/architecture.md)."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "monodraft"

TABLE = (PACKAGE.parent / "docs" / "architecture.md").read_text()
# room -> rooms it may import; every room may import itself and errors.
ALLOWED = {
    room: set() if rooms == "nothing" else set(rooms.split(", "))
    for room, rooms in re.findall(r"^\| `(\w+)` \|.*\| ([a-z, ]+) \|$", TABLE, re.MULTILINE)
}
del ALLOWED["cli"]  # all

pytestmark = pytest.mark.numbers


def imported_rooms(path: Path) -> set[str]:
    """Rooms of monodraft that a file imports."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
            if node.module == "monodraft":
                names = [f"monodraft.{a.name}" for a in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("monodraft.")}
    return rooms


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_room_imports_only_what_it_may(room: str) -> None:
    files = [PACKAGE / f"{room}.py", *sorted((PACKAGE / room).rglob("*.py"))]
    for path in (f for f in files if f.exists()):
        extra = imported_rooms(path) - ALLOWED[room] - {room, "errors"}
        assert not extra, f"{path.relative_to(PACKAGE)} imports {sorted(extra)}"


def test_rooms_import_from_above_only() -> None:
    order = list(ALLOWED)
    for place, room in enumerate(order):
        assert ALLOWED[room] <= set(order[:place]), f"{room} may import {ALLOWED[room]}, which are not all above it"


def test_every_room_is_listed() -> None:
    rooms = {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert rooms - {"__init__", "__main__", "cli"} == set(ALLOWED)
