"""Writes a safetensors file tensor by tensor from streams of bytes; the library only writes what is in memory.

The layout is the public one (stored.py). Tensors are ordered by falling element size, as the library orders them, so
that every one is aligned; the header is padded with spaces to a multiple of 8 bytes.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from monodraft.checkpoint.stored import DTYPE_BYTES


@dataclass(frozen=True)
class OutputTensor:
    """A tensor to be written; `chunks()` yields its bytes in order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: Callable[[], Iterator[bytes]]

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


def in_file_order(tensors: Iterable[OutputTensor]) -> list[OutputTensor]:
    """Widest elements first, else as given."""
    return sorted(tensors, key=lambda tensor: -DTYPE_BYTES[tensor.dtype])


def header_bytes(tensors: Sequence[OutputTensor]) -> bytes:
    """Length word and JSON header of a file that holds `tensors` in this order."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for tensor in tensors:
        end = begin + tensor.size
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_safetensors(path: Path, tensors: Iterable[OutputTensor], wrote: Callable[[int], None]) -> None:
    """Write the file and fsync it; `wrote(n)` is told of each n tensor bytes. An OSError names the file."""
    ordered = in_file_order(tensors)
    try:
        with path.open("wb") as file:
            file.write(header_bytes(ordered))
            for tensor in ordered:
                done = 0
                for chunk in tensor.chunks():
                    file.write(chunk)
                    done += len(chunk)
                    wrote(len(chunk))
                assert done == tensor.size, f"{tensor.name}: {done} bytes of {tensor.size}"
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
