"""What a build takes of an SM and which instructions it uses, read from its machine code. Needs no GPU and no tools."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass

OPCODES = {
    0x23C: "HMMA",
    0x23E: "F2FP",
    0x3BA: "UBLKCP",
    0x83B: "LDSM",
    0x983: "LDL",
    0x387: "STL",
    0x9C8: "USETMAXREG",
    0xFAE: "LDGSTS",
}
"""Low twelve bits of an sm_90 instruction: matrix multiply, e4m3 and bf16 conversions, bulk copy, ldmatrix, loads and
stores of spilled registers, register reallocation, cp.async."""

_REGISTERS, _FRAME = 0x2F, 0x11  # attributes of .nv.info


@dataclass(frozen=True)
class Resources:
    """Registers per thread at launch, bytes of stack frame (spilled registers), and counts of `OPCODES`."""

    registers: int
    frame: int
    instructions: Counter[str]


def _sections(cubin: bytes) -> dict[str, bytes]:
    offset, size, count, names = struct.unpack_from("<Q10xHHH", cubin, 0x28)
    headers = [struct.unpack_from("<II8xQQQ", cubin, offset + i * size) for i in range(count)]
    table = headers[names][3]
    found = {}
    for name, _kind, _address, start, length in headers:
        end = cubin.index(b"\0", table + name)
        found[cubin[table + name : end].decode()] = cubin[start : start + length]
    return found


def resources(cubin: bytes, kernel: str = "draft_step") -> Resources:
    """Reads the ELF file that NVRTC made."""
    sections = _sections(cubin)
    values: dict[int, int] = {}
    info, at = sections[".nv.info"], 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        if form == 4 and attribute in (_REGISTERS, _FRAME):
            values[attribute] = struct.unpack_from("<II", info, at + 4)[1]
        at += 4 + (size if form == 4 else 0)
    code = sections[f".text.{kernel}"]
    words = struct.unpack(f"<{len(code) // 8}Q", code)[::2]
    counted = Counter(OPCODES[word & 0xFFF] for word in words if word & 0xFFF in OPCODES)
    return Resources(values[_REGISTERS], values.get(_FRAME, 0), counted)
