"""Copies of the device package with one line sabotaged, imported under another name."""

from __future__ import annotations

import importlib
import itertools
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import monodraft.device

_NUMBERS = itertools.count()
_FOLDER = tempfile.TemporaryDirectory(prefix="device-mutants-")


@dataclass(frozen=True)
class Sabotage:
    """`old` text of a `file` of monodraft/device becomes `new`; `caught_by` names the test that must fail."""

    name: str
    file: str
    old: str
    new: str
    caught_by: str


def mutant(*sabotages: Sabotage) -> ModuleType:
    """A package like `monodraft.device` but for the sabotages. Each `old` text must occur, exactly once."""
    package = f"mutant_{next(_NUMBERS)}_{sabotages[0].name.replace('-', '_')}"
    target = Path(_FOLDER.name) / package
    target.mkdir()
    (source,) = monodraft.device.__path__
    for path in sorted(Path(source).glob("*.py")):
        text = path.read_text()
        for each in (sabotage for sabotage in sabotages if sabotage.file == path.name):
            assert text.count(each.old) == 1, f"{each.name}: {text.count(each.old)} times {each.old!r}"
            text = text.replace(each.old, each.new)
        (target / path.name).write_text(text.replace("monodraft.device", package))
    if _FOLDER.name not in sys.path:
        sys.path.insert(0, _FOLDER.name)
    importlib.invalidate_caches()
    importlib.import_module(f"{package}.probes")
    return importlib.import_module(package)
