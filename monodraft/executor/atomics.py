"""Read-modify-write operations, applied lane by lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from monodraft.executor.access import WORD, Access, Lanes
from monodraft.executor.gpu import WAVE
from monodraft.executor.numerics import max_unsigned, maxnum, min_unsigned, minnum

COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "xchg": lambda old, new: new,
    "add": lambda old, new: old + new,
    "sub": lambda old, new: old - new,
    "and": lambda old, new: old & new,
    "nand": lambda old, new: ~(old & new),
    "or": lambda old, new: old | new,
    "xor": lambda old, new: old ^ new,
    "max": np.maximum,
    "min": np.minimum,
    "umax": max_unsigned,
    "umin": min_unsigned,
    "fadd": lambda old, new: old + new,
    "fsub": lambda old, new: old - new,
    "fmax": maxnum,
    "fmin": minnum,
}

# Those that accumulate over lanes at one address.
RUNNING: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "max": np.maximum,
    "min": np.minimum,
}


def apply(
    operation: str,
    values: Any,
    index: np.ndarray,
    shape: Access,
    lanes: Lanes,
    read: Callable[[np.ndarray], np.ndarray],
    write: Callable[[np.ndarray, np.ndarray], None],
) -> tuple[np.ndarray, np.ndarray]:
    """Old words [n, words] and, for cmpxchg, success [n]. Lanes at distinct addresses go at once, others in order."""
    count = index.shape[0]
    operands = [compress(value, lanes, count) for value in values]
    distinct = np.unique(index[:, 0]).size == count
    groups = [np.arange(count)] if distinct else [np.array([row]) for row in range(count)]
    if operation in RUNNING and count > 1 and not distinct and (index == index[0]).all() and shape.dtype.kind == "i":
        return running(RUNNING[operation], operands[0], index, shape, read, write)
    old = np.empty(index.shape, WORD[shape.word])
    success = np.ones(count, np.bool_)
    for rows in groups:
        before = np.ascontiguousarray(read(index[rows]))
        current = before.view(shape.dtype)[:, 0]
        old[rows] = before
        if operation == "cmpxchg":
            success[rows] = current == operands[0][rows]
            after = np.where(success[rows], operands[1][rows], current)
        else:
            after = COMBINE[operation](current, operands[0][rows])
        words = np.ascontiguousarray(after.astype(shape.dtype)).view(WORD[shape.word]).reshape(before.shape)
        taken = success[rows]
        if taken.any():
            write(index[rows][taken], words[taken])
    return old, success


def running(
    function: Any,
    operand: np.ndarray,
    index: np.ndarray,
    shape: Access,
    read: Callable[[np.ndarray], np.ndarray],
    write: Callable[[np.ndarray, np.ndarray], None],
) -> tuple[np.ndarray, np.ndarray]:
    """All lanes at one address: a running total, which is what lane order gives."""
    before = np.ascontiguousarray(read(index[:1])).view(shape.dtype)[:, 0]
    totals = function.accumulate(np.concatenate([before, operand.astype(shape.dtype)]), dtype=shape.dtype)
    words = np.ascontiguousarray(totals[:, None]).view(WORD[shape.word])
    write(index[:1], words[-1:])
    return words[:-1], np.ones(operand.size, np.bool_)


def compress(value: Any, lanes: Lanes, count: int) -> np.ndarray:
    """The operand of the active lanes."""
    if not isinstance(value, np.ndarray) or value.ndim == 0:
        return np.full(count, value)
    return value if lanes.active is None else value[lanes.active]


def spread(flags: np.ndarray, lanes: Lanes) -> np.ndarray:
    """Per active lane to all lanes."""
    result = np.zeros(WAVE, np.bool_)
    result[slice(None) if lanes.active is None else lanes.active] = flags
    return result
