"""Real text that every machine with Python has: the sources of its standard library (PSF licence).

A file is held out of training when the hash of its relative path says so, so the split is the same for every
Python version and on every machine.
"""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from monodraft.errors import Fault, InputError

EXCLUDED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", "encodings", "data", "badsyntax"})
"""Not standard library, or tables and broken syntax rather than text."""

HELD_OUT_OF_256 = 13
"""Paths whose hash byte is below this are held out: about 5 %."""

LARGEST_FILE = 400_000
"""Bytes; the few files above it are generated tables."""


@dataclass(frozen=True)
class SourceFile:
    """One Python source: `path` relative to the library's folder, `text`, and whether training must not see it."""

    path: str
    text: str
    held_out: bool


def is_held_out(path: str) -> bool:
    """The split rule, on the path relative to the library's folder with forward slashes."""
    return hashlib.sha256(path.encode()).digest()[0] < HELD_OUT_OF_256


def read_corpus(folder: Path | None = None) -> list[SourceFile]:
    """All sources below `folder` (default: this interpreter's standard library), sorted by path.

    Raises InputError where the folder holds no Python source.
    """
    folder = Path(folder or sysconfig.get_path("stdlib"))
    sources = []
    for path in sorted(folder.rglob("*.py")):
        relative = path.relative_to(folder)
        if EXCLUDED_FOLDERS.intersection(relative.parts) or path.stat().st_size > LARGEST_FILE:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # the library's own tests of other encodings
            continue
        if text.strip():
            sources.append(SourceFile(relative.as_posix(), text, is_held_out(relative.as_posix())))
    if not sources:
        raise InputError("no text to train on", [Fault(str(folder), "no .py file", "the sources of a Python library")])
    return sources
