"""Loads relocatable x86-64 objects: how translated code survives the process that made it.

The JIT in FlyDSL's wheel can write the object file of what it compiled but not read one back, and a linker may not be
installed. The objects are simple (one text section, constants, 64-bit absolute and 32-bit relative relocations, a few
symbols of the C library), so this file does what `dlopen` would.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass

SHT_SYMTAB, SHT_RELA, SHT_NOBITS = 2, 4, 8
SHF_ALLOC = 2


@dataclass(frozen=True)
class _Section:
    name: int
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int


class ObjectError(Exception):
    """An object file that this loader does not understand (or a damaged cache entry)."""


class LoadedObject:
    """An object file in executable memory; `address(symbol)` for as long as the instance lives.

    `resolve` gives the addresses of functions that the object calls and does not define.
    """

    def __init__(self, data: bytes, resolve: Callable[[str], int] | None = None) -> None:
        self._resolve = resolve or external_symbol
        if data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<HH", data, 16) != (1, 62):
            raise ObjectError("not a relocatable x86-64 object")
        self._data = data
        self._sections = self._read_sections()
        self._base: dict[int, int] = {}
        self._place()
        self._symbols = self._read_symbols()
        self._relocate()
        self._seal()

    def address(self, symbol: str) -> int:
        """Address of a function that the object defines."""
        return self._names[symbol]

    def _read_sections(self) -> list[_Section]:
        (table,) = struct.unpack_from("<Q", self._data, 40)
        size, count = struct.unpack_from("<HH", self._data, 58)
        sections = []
        for index in range(count):
            name, kind, flags, _, offset, length, link, info, alignment, _ = struct.unpack_from(
                "<IIQQQQIIQQ", self._data, table + index * size
            )
            sections.append(_Section(name, kind, flags, offset, length, link, info, max(alignment, 1)))
        return sections

    def _place(self) -> None:
        """One mapping holds all sections, so that relative references stay within reach."""
        top, offsets = 0, {}
        for index, section in enumerate(self._sections):
            if section.flags & SHF_ALLOC and section.size:
                top = -(-top // section.alignment) * section.alignment
                offsets[index] = top
                top += section.size
        self._memory = mmap.mmap(-1, max(top, 1), prot=mmap.PROT_READ | mmap.PROT_WRITE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        for index, offset in offsets.items():
            section = self._sections[index]
            if section.kind != SHT_NOBITS:
                self._memory[offset : offset + section.size] = self._data[
                    section.offset : section.offset + section.size
                ]
            self._base[index] = start + offset
        self._start, self._size = start, top

    def _read_symbols(self) -> list[int]:
        """Address of each entry of the symbol table; undefined ones are looked up in the C library."""
        self._names: dict[str, int] = {}
        table = next(s for s in self._sections if s.kind == SHT_SYMTAB)
        strings = self._sections[table.link]
        addresses = []
        for at in range(table.offset, table.offset + table.size, 24):
            name_at, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", self._data, at)
            start = strings.offset + name_at
            name = self._data[start : self._data.index(b"\0", start)].decode()
            address = 0
            if section in self._base:
                address = self._base[section] + value
                self._names[name] = address
            elif section == 0 and name:
                address = self._resolve(name)
            addresses.append(address)
        return addresses

    def _relocate(self) -> None:
        for section in self._sections:
            if section.kind != SHT_RELA or section.info not in self._base:
                continue
            for at in range(section.offset, section.offset + section.size, 24):
                offset, info, addend = struct.unpack_from("<QQq", self._data, at)
                place = self._base[section.info] + offset
                target = self._symbols[info >> 32] + addend
                match info & 0xFFFFFFFF:
                    case 1:
                        self._write("<Q", place, target & 2**64 - 1)
                    case 24:
                        self._write("<q", place, target - place)
                    case 2 | 4 if -(2**31) <= target - place < 2**31:
                        self._write("<i", place, target - place)
                    case kind:
                        raise ObjectError(f"relocation of kind {kind}")

    def _write(self, form: str, place: int, value: int) -> None:
        struct.pack_into(form, self._memory, place - self._start, value)

    def _seal(self) -> None:
        """From now on the memory may be executed and no longer written."""
        c = ctypes.CDLL(None, use_errno=True)
        if c.mprotect(ctypes.c_void_p(self._start), ctypes.c_size_t(self._size), mmap.PROT_READ | mmap.PROT_EXEC):
            raise ObjectError(f"the system refuses executable memory (errno {ctypes.get_errno()})")


def external_symbol(name: str) -> int:
    """Address of a function of the C library or of libm."""
    for library in (ctypes.CDLL(None), ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6")):
        try:
            function = getattr(library, name)
        except AttributeError:
            continue
        return ctypes.cast(function, ctypes.c_void_p).value or 0
    raise ObjectError(f"symbol {name} is in no library")
