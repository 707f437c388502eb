"""Return addresses in the emulator's reports as places of the source."""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
from pathlib import Path

_ADDRESS = re.compile(r"(?: @0x[0-9a-f]+)+")


def _base(library: Path) -> int:
    """Where the library is mapped in this process; 0 where it is not."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(library)):
            start, offset = line.split("-")[0], line.split()[2]
            return int(start, 16) - int(offset, 16)
    return 0


def with_places(text: str, library: Path) -> str:
    """`text` with each group of "@address" replaced by the kernel's functions and lines there, innermost first.

    Without `addr2line` on PATH the addresses go.
    """
    tool = shutil.which("addr2line")
    found = sorted(set(re.findall(r"@(0x[0-9a-f]+)", text)))
    places: dict[str, list[str]] = {}
    if tool and found:
        base = _base(library)
        addresses = [hex(int(address, 16) - 1 - base) for address in found]
        output = subprocess.run(
            [tool, "-i", "-f", "-C", "-a", "-e", str(library), *addresses], capture_output=True, text=True
        ).stdout.splitlines()
        entry: list[str] = []
        index = -1
        for line in output:
            if line.startswith("0x"):
                index, entry = index + 1, []
                places[found[index]] = entry
            else:
                entry.append(line)

    def named(group: re.Match[str]) -> str:
        frames: list[str] = []
        for address in re.findall(r"0x[0-9a-f]+", group[0]):
            lines = places.get(address, [])
            for function, where in zip(lines[::2], lines[1::2], strict=False):
                file = posixpath.normpath((where.rpartition(" (")[0] or where).rpartition("hopper/")[2])
                if file.partition(":")[0].endswith((".cu", ".cuh")):
                    frames.append(f"{function.partition('(')[0].partition('<')[0]} {file}")
        return "".join(f"\n      {frame}" for frame in frames)

    return _ADDRESS.sub(named, text)
