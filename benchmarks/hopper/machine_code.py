"""Digests of the machine code of four builds, to show that a change leaves them byte-identical (no GPU needed).

    python benchmarks/hopper/machine_code.py > before    # then again after the change, and diff

Lines of the source and names are left out, so that a moved line or a comment changes nothing. One toolkit only: another
NVRTC makes other code.
"""

from __future__ import annotations

import hashlib
import struct

from monodraft.checkpoint import read_config
from monodraft.checkpoint.shipped import DRAFTER
from monodraft.hopper.bench.shapes import config_of
from monodraft.hopper.build import compile_source, toolkit_version
from monodraft.hopper.geometry import Geometry

KEPT = (b".text.", b".nv.constant", b".nv.info", b".nv.shared")
"""Sections of a cubin that decide what runs: instructions, constants, registers and parameters, shared memory."""


def sections(cubin: bytes) -> dict[bytes, bytes]:
    """Name to bytes of the ELF64 sections that have a name of `KEPT`."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<3H", cubin, 58)
    headers = [struct.unpack_from("<2I4Q", cubin, table + i * size) for i in range(count)]
    strings = headers[names][4]
    found = {}
    for name_at, kind, _, _, offset, length in headers:
        name = cubin[strings + name_at : cubin.index(b"\0", strings + name_at)]
        if name.startswith(KEPT):
            found[name] = b"" if kind == 8 else cubin[offset : offset + length]  # 8: no bytes in the file
    return found


def digest(cubin: bytes) -> str:
    """16 hex digits over the kept sections with their names."""
    total = hashlib.sha256()
    for name, text in sorted(sections(cubin).items()):
        total.update(name + struct.pack("<Q", len(text)) + text)
    return total.hexdigest()[:16]


def main() -> None:
    """Prints the toolkit, then a digest a build."""
    pair = read_config(DRAFTER)
    builds = {
        "shipped pair, bf16": Geometry.choose(pair, rows=8, mxfp8=False, max_positions=2048),
        "shipped pair, MXFP8": Geometry.choose(pair, rows=8, mxfp8=True, max_positions=2048),
        "Qwen3-8B, bf16": Geometry.choose(config_of("qwen3-8b"), rows=8, mxfp8=False),
        "M3.1, MXFP8": Geometry.choose(config_of("m3.1"), rows=8, mxfp8=True),
    }
    print("NVRTC", toolkit_version())
    for name, geometry in builds.items():
        print(f"{digest(compile_source(geometry.options))}  {name}", flush=True)


if __name__ == "__main__":
    main()
