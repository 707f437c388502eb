"""Byte counts as people write and read them."""

from __future__ import annotations

import re

from monodraft.errors import Fault, InputError

_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "ti": 1 << 40,
}


def human_bytes(count: int) -> str:
    """Decimal units, three digits: 1.23 GB."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5 or unit == "GB":
            return (
                f"{count} B" if unit == "B" else f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"
            )
        value /= 1000
    raise AssertionError


def parse_bytes(text: str) -> int:
    """A positive size such as 4GB, 500 MB, 2GiB or 1000000; raises InputError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", text.lower())
    size = round(float(match[1]) * _UNITS[match[2]]) if match and match[2] in _UNITS else 0
    if size < 1:
        raise InputError("not a size", [Fault("--max-shard-size", repr(text), "a size such as 4GB, 500MB or 2GiB")])
    return size


def plural(count: int, noun: str) -> str:
    """1 file, 2 files."""
    return f"{count} {noun}{'s' * (count != 1)}"
