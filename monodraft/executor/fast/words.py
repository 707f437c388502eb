"""The words of the native language (see native.py): loads, stores and bit tricks on 64-bit integers.

Functions that use them are never run by Python; `native.compile_functions` reads their source. The bodies here exist
so that a type checker and a reader know the signatures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar

Function = TypeVar("Function", bound=Callable[..., int | None])


def external(function: Function) -> Function:
    """Marks a function that another library object defines; its body is not read."""
    return function


def inline(function: Function) -> Function:
    """Marks a native function that is copied into its callers."""
    return function


def _native() -> NoReturn:
    raise RuntimeError("a word of the native language has no meaning in Python; see monodraft/executor/fast/native.py")


class Struct:
    """A record of 64-bit words in memory; a subclass's annotations are its fields, in order, 8 bytes each.

    A value of such a type is an address; `Sub(address)` casts an integer to it.
    """

    def __init__(self, address: int) -> None:
        _native()


def size_of(record: type[Struct]) -> int:
    """Bytes of a record."""
    return 8 * len(fields(record))


_FIELDS: dict[str, dict[str, int]] = {}


def fields(record: type[Struct]) -> dict[str, int]:
    """Name -> byte offset of the fields of a record."""
    name = f"{record.__module__}.{record.__qualname__}"
    if name not in _FIELDS:
        _FIELDS[name] = {field: 8 * index for index, field in enumerate(record.__annotations__)}
    return _FIELDS[name]


def address_of(record: Struct) -> int:
    """The address that a record value is."""
    _native()


def load8(address: int) -> int:
    """The byte at `address`, zero-extended."""
    _native()


def load16(address: int) -> int:
    """Two bytes, zero-extended."""
    _native()


def load32(address: int) -> int:
    """Four bytes, zero-extended."""
    _native()


def load64(address: int) -> int:
    """Eight bytes."""
    _native()


def store8(address: int, value: int) -> None:
    """The low byte of `value`."""
    _native()


def store16(address: int, value: int) -> None:
    """The low two bytes of `value`."""
    _native()


def store32(address: int, value: int) -> None:
    """The low four bytes of `value`."""
    _native()


def store64(address: int, value: int) -> None:
    """All eight bytes of `value`."""
    _native()


def lowest_bit(value: int) -> int:
    """Index of the lowest set bit; 64 for 0."""
    _native()


def count_bits(value: int) -> int:
    """Number of set bits."""
    _native()


def below(a: int, b: int) -> int:
    """a < b as unsigned integers."""
    _native()


def high_product(a: int, b: int) -> int:
    """Upper 64 bits of the unsigned 128-bit product."""
    _native()


def call2(function: int, a: int, b: int) -> int:
    """Call the native function at an address with two integers."""
    _native()


def copy_bytes(target: int, source: int, count: int) -> None:
    """memcpy: the ranges do not overlap."""
    _native()


def fill_bytes(target: int, byte: int, count: int) -> None:
    """memset."""
    _native()


def add_f32(a: int, b: int) -> int:
    """The sum of two f32 by their bits."""
    _native()


def add_f64(a: int, b: int) -> int:
    """The sum of two f64 by their bits."""
    _native()


def multiply_f64(a: int, b: int) -> int:
    """The product of two f64 by their bits."""
    _native()


def less_f32(a: int, b: int) -> int:
    """a < b of two f32 by their bits; false for NaN."""
    _native()


def less_f64(a: int, b: int) -> int:
    """a < b of two f64 by their bits; false for NaN."""
    _native()


def f64_of_f32(a: int) -> int:
    """The bits of an f32 as those of the same number in f64."""
    _native()


def f32_of_f64(a: int) -> int:
    """The bits of an f64 rounded to f32, nearest even."""
    _native()
