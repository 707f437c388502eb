"""How generated code holds values, and loads that have not completed yet.

A scalar is an array of 64 lanes, or a NumPy scalar where all lanes agree (wave-uniform); signed integers are NumPy
signed integers, i1 is bool, bf16 its bits in uint16, a pointer an int64 (an LDS pointer the offset in the CTA's LDS).
A vector, array or struct is a tuple; a buffer resource is (base, size). A load under a memory model with late loads may
give a `Late`: its value is fixed by the wait that covers it, at the latest by the first real use. Operations that only
rename registers (extract, insert, bitcast, shuffle) do not wait: on a `Late` they give a `Renamed`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from monodraft.executor.gpu import WAVE
from monodraft.executor.program import Pointer, Scalar, Type, Vector, leaves

NUMPY = {
    "i1": np.bool_,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "f16": np.float16,
    "bf16": np.uint16,
    "f32": np.float32,
    "f64": np.float64,
}
WORD: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def numpy_type(kind: Type) -> Any:
    """The NumPy type of a scalar or pointer."""
    if isinstance(kind, Pointer):
        return np.int64
    if isinstance(kind, Scalar):
        return NUMPY[kind.name]
    raise TypeError(f"{kind} is not a scalar")


class Late:
    """A load in flight. `complete` samples memory once; `value` holds the result from then on."""

    __slots__ = ("complete", "value")

    def __init__(self, complete: Callable[[], Any]) -> None:
        self.complete: Callable[[], Any] | None = complete
        self.value: Any = None

    def settle(self) -> Any:
        """The value, sampling now if nothing did so earlier."""
        if self.complete is not None:
            self.value = self.complete()
            self.complete = None
        return self.value


class Renamed:
    """A renaming of values of which some are in flight."""

    __slots__ = ("inputs", "rename")

    def __init__(self, rename: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
        self.rename = rename
        self.inputs = inputs

    def settle(self) -> Any:
        return self.rename(*(each.settle() if each.__class__ in IN_FLIGHT else each for each in self.inputs))


IN_FLIGHT: frozenset[Any] = frozenset({Late, Renamed})


def rename(function: Callable[..., Any], *inputs: Any) -> Any:
    """`function(*inputs)` now, or as a `Renamed` when an input is in flight."""
    for each in inputs:
        if each.__class__ in IN_FLIGHT:
            return Renamed(function, inputs)
    return function(*inputs)


def select(condition: Any, a: Any, b: Any) -> Any:
    """llvm.select, component by component."""
    if isinstance(a, tuple):
        if isinstance(condition, tuple):
            return tuple(select(c, x, y) for c, x, y in zip(condition, a, b, strict=True))
        return tuple(select(condition, x, y) for x, y in zip(a, b, strict=True))
    if condition.__class__ is np.bool_:
        return a if condition else b
    return np.where(condition, a, b)


def merge(mask: Any, new: Any, old: Any) -> Any:
    """`new` in the lanes of `mask`, `old` elsewhere (None: nothing there yet)."""
    if old is None:
        return new
    if new.__class__ in IN_FLIGHT:
        new = new.settle()
    if old.__class__ in IN_FLIGHT:
        old = old.settle()
    if isinstance(new, tuple):
        return tuple(merge(mask, x, y) for x, y in zip(new, old, strict=True))
    return np.where(mask, new, old)


def zero(kind: Type) -> Any:
    """All bits zero (poison and undef read so)."""
    if isinstance(kind, Vector):
        return (numpy_type(kind.element)(0),) * kind.count
    if isinstance(kind, Scalar | Pointer):
        return (np.int64(0), np.int64(0)) if isinstance(kind, Pointer) and kind.bytes == 16 else numpy_type(kind)(0)
    fields = kind.fields if hasattr(kind, "fields") else (kind.element,) * kind.count  # type: ignore[union-attr]
    return tuple(zero(each) for each in fields)


def from_bits(bits: int, kind: Scalar | Pointer) -> Any:
    """A NumPy scalar from a bit pattern."""
    if isinstance(kind, Scalar) and kind.name == "i1":
        return np.bool_(bits & 1)
    dtype = np.dtype(numpy_type(kind))
    return np.array(bits & ((1 << (8 * dtype.itemsize)) - 1), WORD[dtype.itemsize]).view(dtype)[()]


def build(words: list[Any], kind: Type) -> Any:
    """A value of `kind` from bit patterns, one per scalar leaf."""
    if isinstance(kind, Scalar | Pointer):
        return from_bits(words[0], kind)
    fields = kind.fields if hasattr(kind, "fields") else (kind.element,) * kind.count  # type: ignore[union-attr]
    result, position = [], 0
    for each in fields:
        count = len(leaves(each))
        result.append(build(words[position : position + count], each))
        position += count
    return tuple(result)


def bitcast(value: Any, source: Type, target: Type) -> Any:
    """Reinterpret bits; vectors of different element sizes are cut and joined little endian."""
    if not isinstance(source, Vector) and not isinstance(target, Vector):
        return value.view(numpy_type(target))
    parts = list(value) if isinstance(value, tuple) else [value]
    kinds, wanted = leaves(source), leaves(target)
    old, new = kinds[0].bytes, wanted[0].bytes
    dtype = np.dtype(numpy_type(wanted[0]))
    if kinds[0] == Scalar("i1") or wanted[0] == Scalar("i1"):
        return bitcast_bools(parts, target, wanted)
    if old == new:
        parts = [part.view(dtype) for part in parts]
    elif old < new:
        parts = [join(parts[i : i + new // old], old, dtype) for i in range(0, len(parts), new // old)]
    else:
        parts = [piece for part in parts for piece in cut(part, new, dtype)]
    return tuple(parts) if isinstance(target, Vector) else parts[0]


def join(parts: list[Any], size: int, dtype: np.dtype) -> Any:
    """Several small components into one."""
    wide = WORD[dtype.itemsize]
    total: Any = wide(0)
    for index, part in enumerate(parts):
        total = total | (part.view(WORD[size]).astype(wide) << wide(8 * size * index))
    return total.view(dtype)


def cut(part: Any, size: int, dtype: np.dtype) -> list[Any]:
    """One component into several smaller ones."""
    kind = WORD[part.dtype.itemsize]
    bits = part.view(kind)
    count = part.dtype.itemsize // size
    return [(bits >> kind(8 * size * index)).astype(WORD[size]).view(dtype) for index in range(count)]


def bitcast_bools(parts: list[Any], target: Type, wanted: list[Any]) -> Any:
    """vector<Nxi1> to iN and back."""
    if isinstance(target, Vector):
        bits = parts[0].view(WORD[parts[0].dtype.itemsize])
        return tuple(((bits >> bits.dtype.type(i)) & bits.dtype.type(1)).astype(np.bool_) for i in range(target.count))
    kind = WORD[wanted[0].bytes]
    total: Any = kind(0)
    for index, part in enumerate(parts):
        total = total | (part.astype(kind) << kind(index))
    return total.view(numpy_type(wanted[0]))


def resource_words(resource: Any) -> tuple[Any, ...]:
    """A buffer resource as its four words (the flags read 0: nothing here depends on them)."""
    base, size = resource
    low, high = cut(base, 4, np.dtype(np.int32))
    return (low, high & np.int32(0xFFFF), cut(size, 4, np.dtype(np.int32))[0], np.int32(0))


def resource_of(words: tuple[Any, ...]) -> tuple[Any, Any]:
    """Four words as a buffer resource: a base of 48 bits and a size."""
    base = join([words[0], words[1] & np.int32(0xFFFF)], 4, np.dtype(np.int64))
    return base, words[2].view(np.uint32).astype(np.int64)


def extract(vector: Any, index: Any) -> Any:
    """extractelement with an index that may vary by lane; out of range clamps (undefined in LLVM)."""
    if not isinstance(index, np.ndarray) or index.ndim == 0:
        return vector[min(max(int(index), 0), len(vector) - 1)]
    rows = np.stack([np.broadcast_to(x, (WAVE,)) for x in vector])
    return rows[np.clip(index.astype(np.int64), 0, len(vector) - 1), np.arange(WAVE)]


def insert(vector: Any, value: Any, index: Any) -> Any:
    """insertelement with an index that may vary by lane."""
    if not isinstance(index, np.ndarray) or index.ndim == 0:
        position = int(index)
        return (*vector[:position], value, *vector[position + 1 :])
    return tuple(np.where(index == position, value, old) for position, old in enumerate(vector))


def insert_at(aggregate: Any, value: Any, path: tuple[int, ...]) -> Any:
    """insertvalue."""
    head, rest = path[0], path[1:]
    inner = value if not rest else insert_at(aggregate[head], value, rest)
    return (*aggregate[:head], inner, *aggregate[head + 1 :])
