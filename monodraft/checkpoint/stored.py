"""What tensor files hold, from their headers alone: no tensor is read, mapped or allocated.

The safetensors layout (public format): 8 bytes little-endian header length, a JSON header of name to dtype, shape and
data_offsets, then the tensors back to back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monodraft.errors import CheckpointError, Fault

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
HEADER_LIMIT = 100_000_000
"""The format's own limit on the header, in bytes."""

DTYPE_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: `offset` and `size` in bytes, `offset` from the file's start."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


def _unreadable(path: Path, found: str, wanted: str) -> CheckpointError:
    return CheckpointError(f"{path.name} cannot be read", [Fault(str(path), found, wanted)])


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; ValueError where a key comes twice (readers would disagree on which tensor is meant)."""
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} comes twice")
    return dict(pairs)


def _header(path: Path) -> tuple[dict[str, Any], int, int]:
    """Header, offset of the first tensor's bytes and count of tensor bytes; raises CheckpointError."""
    try:
        file_size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if file_size < 8:
                raise _unreadable(path, f"{file_size} bytes", "a safetensors file (truncated)")
            if length > min(HEADER_LIMIT, file_size - 8):
                raise _unreadable(
                    path,
                    f"a header of {length} bytes in a file of {file_size}",
                    "a safetensors file (truncated or other)",
                )
            text = file.read(length)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error), "a safetensors file") from None
    try:
        header = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, f"a header that is not JSON ({error})", "a safetensors file") from None
    if not isinstance(header, dict):
        raise _unreadable(path, "a header that is no JSON object", "a safetensors file")
    header.pop("__metadata__", None)
    return header, 8 + length, file_size - 8 - length


def _entry(path: Path, name: str, entry: Any, start: int) -> StoredTensor | Fault:
    """A header entry as a StoredTensor, or what is wrong with it."""
    where = f"{path}: {name}"
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]}:
            pass
        case _:
            return Fault(where, "a malformed header entry", "dtype, shape and data_offsets")
    if dtype not in DTYPE_BYTES:
        return Fault(where, f"dtype {dtype}", f"one of {', '.join(DTYPE_BYTES)}")
    if any(type(n) is not int or n < 0 for n in shape):
        return Fault(where, f"shape {shape}", "sizes of at least 0")
    size = math.prod(shape) * DTYPE_BYTES[dtype]
    if end - begin != size or begin < 0:
        return Fault(where, f"data_offsets [{begin}, {end}]", f"{size} bytes for {dtype} {shape}")
    return StoredTensor(name, path, dtype, tuple(shape), start + begin, size)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Tensors of one safetensors file. Raises CheckpointError with all faults of its header: truncated, corrupt,
    unknown dtype, extents that overlap, leave holes or pass the end."""
    header, start, payload = _header(path)
    entries = [_entry(path, name, entry, start) for name, entry in header.items()]
    faults = [entry for entry in entries if isinstance(entry, Fault)]
    tensors = [entry for entry in entries if isinstance(entry, StoredTensor)]
    end = start
    for tensor in sorted(tensors, key=lambda t: (t.offset, t.size)) if not faults else []:
        if tensor.offset != end:
            faults.append(
                Fault(f"{path}: {tensor.name}", f"bytes from {tensor.offset}", f"bytes from {end} (no gap, no overlap)")
            )
        end = max(end, tensor.offset + tensor.size)
    if not faults and end != start + payload:
        faults.append(
            Fault(str(path), f"{start + payload} bytes", f"{end} bytes (truncated, or bytes after the last tensor)")
        )
    if faults:
        raise CheckpointError(f"{path.name} is corrupt", faults)
    return {tensor.name: tensor for tensor in tensors}


def read_index(path: Path) -> dict[str, str]:
    """Tensor name to file name of a sharded checkpoint; raises CheckpointError for a malformed index."""
    try:
        index = json.loads(path.read_bytes())
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error), "an index") from None
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, f"no JSON ({error})", "an index") from None
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise _unreadable(path, "no weight_map", "an index with a weight_map of tensor names to files")
    outside = [
        Fault(f"{path}: {name}", repr(file), "the name of a file beside the index")
        for name, file in weight_map.items()
        if not isinstance(file, str) or Path(file).name != file
    ]
    if outside:
        raise CheckpointError(f"{path.name} names files elsewhere", outside)
    return weight_map


def _compare_with_index(
    folder: Path, weight_map: dict[str, str], headers: dict[str, dict[str, StoredTensor]]
) -> list[Fault]:
    """Faults where the index and the headers disagree."""
    faults = []
    for name, file in weight_map.items():
        if file in headers and name not in headers[file]:
            faults.append(Fault(f"{folder / file}: {name}", "nothing", f"the tensor that {INDEX} places here"))
    for file, header in headers.items():
        for name in header:
            if weight_map.get(name) != file:
                faults.append(Fault(f"{folder / file}: {name}", "a tensor", f"none here by {INDEX}"))
    return faults


def stored_tensors(folder: Path, only: Iterable[str] | None = None) -> dict[str, StoredTensor]:
    """All tensors of a checkpoint folder, single or sharded, by name; raises CheckpointError with all faults.

    `only` limits the files opened to those that hold these names (where there is an index), for a look into a large
    target.
    """
    index, single = folder / INDEX, folder / SINGLE
    if not index.is_file():
        if not single.is_file():
            raise CheckpointError("no tensors", [Fault(str(folder), "neither file", f"{SINGLE} or {INDEX}")])
        return read_header(single)
    weight_map = read_index(index)
    if single.is_file() and SINGLE not in weight_map.values():
        raise CheckpointError(
            "two checkpoints in one folder", [Fault(str(folder), f"{SINGLE} and {INDEX}", "one of them")]
        )
    wanted = set(weight_map.values()) if only is None else {weight_map[name] for name in only if name in weight_map}
    headers: dict[str, dict[str, StoredTensor]] = {}
    faults: list[Fault] = []
    for file in sorted(wanted):
        if not (folder / file).is_file():
            tensors = sum(place == file for place in weight_map.values())
            faults.append(Fault(str(folder / file), "no such file", f"a file with {tensors} tensors, by {INDEX}"))
            continue
        try:
            headers[file] = read_header(folder / file)
        except CheckpointError as error:
            faults += error.faults
    faults += _compare_with_index(folder, {n: f for n, f in weight_map.items() if f in wanted}, headers)
    if faults:
        raise CheckpointError("the tensor files cannot be used", faults)
    return {name: tensor for header in headers.values() for name, tensor in header.items()}
