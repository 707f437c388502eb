"""Prompts for demonstrations and tests: the heads of top-level definitions in held-out files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise

from monodraft.training.corpus import SourceFile

LINES = 12
"""Lines of an excerpt, from a top-level `def` or `class` on."""


def excerpts_of(source: SourceFile) -> list[str]:
    """All excerpts of a file: LINES lines from each top-level definition that has as many before the next one."""
    lines = source.text.splitlines(keepends=True)
    starts = [i for i, line in enumerate(lines) if line.startswith(("def ", "class ", "async def "))]
    spans = pairwise([*starts, len(lines)])
    return ["".join(lines[a : a + LINES]) for a, b in spans if b - a > LINES + 8]


def held_out_excerpts(sources: Sequence[SourceFile], count: int = 32) -> list[dict[str, str]]:
    """`count` excerpts {"path", "text"}, at most one a file, chosen by a hash of the text, tests last."""
    picks = []
    for source in sources:
        found = excerpts_of(source) if source.held_out else []
        if found:
            text = min(found, key=lambda t: hashlib.sha256(t.encode()).digest())
            picks.append((("test" in source.path, hashlib.sha256(text.encode()).digest()), source.path, text))
    return [{"path": path, "text": text} for _, path, text in sorted(picks)[:count]]
