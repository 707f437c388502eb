"""Looks for NaN and infinity in tensors by streaming their bytes, in memory bounded by one chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monodraft.checkpoint.stored import StoredTensor
from monodraft.errors import CheckpointError, Fault

CHUNK = 1 << 22
"""Bytes read at a time, and a multiple of every element size."""


def read_chunks(tensor: StoredTensor, chunk: int = CHUNK) -> Iterator[bytes]:
    """The tensor's bytes in order, `chunk` at a time, by plain reads (mapped pages would count as our memory).

    Raises CheckpointError naming file and tensor where they cannot be read, so that `pack` does not take an error of
    its source for one of its destination.
    """
    where, left = f"{tensor.path}: {tensor.name}", tensor.size
    try:
        with tensor.path.open("rb") as file:
            file.seek(tensor.offset)
            while left:
                data = file.read(min(chunk, left))
                if len(data) < min(chunk, left):
                    wanted = f"{left - len(data)} bytes more"
                    raise CheckpointError("a file shrank while it was read", [Fault(where, "its end", wanted)])
                left -= len(data)
                yield data
    except OSError as error:
        fault = Fault(where, error.strerror or str(error), f"{left} bytes more")
        raise CheckpointError("a file cannot be read", [fault]) from error


def _masked(dtype: str, mask: int) -> Callable[[bytes], NDArray[np.bool_]]:
    """Elements of an unsigned dtype whose bits under `mask` are all set."""

    def bad(data: bytes) -> NDArray[np.bool_]:
        words: NDArray[Any] = np.frombuffer(data, dtype=dtype)
        return (words & words.dtype.type(mask)) == mask

    return bad


NOT_FINITE = {
    "BF16": _masked("<u2", 0x7F80),
    "F32": _masked("<u4", 0x7F800000),
    "F8_E4M3": _masked("u1", 0x7F),
    "U8": _masked("u1", 0xFF),
    "F8_E8M0": _masked("u1", 0xFF),
}
"""Per dtype, which elements are NaN or infinite. U8 is a scale byte: 255 makes its block NaN, 0 is 2^-127."""


def check_finite(tensors: Iterable[StoredTensor]) -> None:
    """Raise CheckpointError naming each tensor that has NaN or infinite elements, with their count and the first."""
    faults = []
    for tensor in tensors:
        bad, first, seen = 0, None, 0
        for data in read_chunks(tensor):
            mask = NOT_FINITE[tensor.dtype](data)
            if mask.any():
                bad += int(mask.sum())
                first = first if first is not None else seen + int(mask.argmax())
            seen += mask.size
        if first is not None:
            place = [int(i) for i in np.unravel_index(first, tensor.shape)] if tensor.shape else []
            found = f"{bad} NaN or infinite elements, the first at {place}"
            faults.append(Fault(f"{tensor.path}: {tensor.name}", found, "finite weights"))
    if faults:
        raise CheckpointError("weights that are not finite", faults)
