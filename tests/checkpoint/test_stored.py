"""Headers and indexes: truncated, corrupt and contradictory files, and what the library itself writes."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from monodraft.checkpoint.stored import INDEX, SINGLE, read_header, stored_tensors
from monodraft.errors import CheckpointError

pytestmark = pytest.mark.numbers


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / SINGLE
    save_file({"a": torch.ones(3, 4, dtype=torch.bfloat16), "b": torch.arange(5, dtype=torch.uint8)}, path)
    return path


def raw(header: Any, payload: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + payload


def entry(shape: list[int], begin: int, end: int, dtype: str = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_offsets_point_at_the_bytes(good: Path) -> None:
    stored = read_header(good)
    b = stored["b"]
    assert (b.dtype, b.shape, b.size) == ("U8", (5,), 5)
    assert good.read_bytes()[b.offset : b.offset + b.size] == bytes(range(5))
    assert stored["a"].size == 24


@pytest.mark.parametrize("keep", [0, 3, 8, 40, -1])
def test_truncated_anywhere(good: Path, keep: int) -> None:
    data = good.read_bytes()
    good.write_bytes(data[:keep] if keep >= 0 else data[:-1])
    with pytest.raises(CheckpointError, match=r"model\.safetensors.*truncated"):
        read_header(good)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (raw(b"{not json", b""), "not JSON"),
        (raw([1], b""), "no JSON object"),
        (raw(b"[" * 200_000, b""), "not JSON"),
        (raw(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":7}', b""), "'a' comes twice"),
        (raw({"a": 7}, b""), "malformed"),
        (raw({"a": {"dtype": "U8", "shape": [1]}}, b"x"), "malformed"),
        (raw({"a": entry([2], 0, 2, "F7")}, b"xx"), "dtype F7"),
        (raw({"a": entry([-1], 0, 2)}, b"xx"), "shape"),
        (raw({"a": entry([3], 0, 2)}, b"xx"), "3 bytes"),
        (raw({"a": entry([2], 0, 2), "b": entry([2], 1, 3)}, b"xxx"), "no gap, no overlap"),
        (raw({"a": entry([2], 0, 2), "b": entry([2], 3, 5)}, b"xxxxx"), "no gap, no overlap"),
        (raw({"a": entry([2], 0, 2)}, b"xxx"), "bytes after the last tensor"),
        ((1 << 40).to_bytes(8, "little") + b"x" * 64, "truncated"),
        (b"GGUF\x03\x00\x00\x00" + b"\x00" * 64, "safetensors"),
    ],
)
def test_corrupt(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / SINGLE
    path.write_bytes(data)
    with pytest.raises(CheckpointError) as error:
        read_header(path)
    assert words in str(error.value)
    assert SINGLE in str(error.value)


def test_all_corrupt_entries_are_named(tmp_path: Path) -> None:
    path = tmp_path / SINGLE
    path.write_bytes(raw({"a": entry([3], 0, 2), "b": entry([2], 2, 4, "F7")}, b"xxxx"))
    with pytest.raises(CheckpointError) as error:
        read_header(path)
    assert [fault.where for fault in error.value.faults] == [f"{path}: a", f"{path}: b"]


def test_random_flips_of_the_header_never_pass_unseen_as_another_layout(good: Path) -> None:
    """A flipped header byte is an error, or changes a name or a shape of the same size: never the extents."""
    data = bytearray(good.read_bytes())
    length = int.from_bytes(data[:8], "little")
    before = {(t.offset, t.size) for t in read_header(good).values()}
    rng = np.random.default_rng(0)
    for _ in range(300):
        place, bit = int(rng.integers(0, 8 + length)), 1 << int(rng.integers(0, 8))
        data[place] ^= bit
        good.write_bytes(data)
        with contextlib.suppress(CheckpointError):
            assert {(t.offset, t.size) for t in read_header(good).values()} == before
        data[place] ^= bit


def test_neither_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        stored_tensors(tmp_path)


def sharded(folder: Path) -> dict[str, str]:
    save_file({"a": torch.ones(2)}, folder / "one.safetensors")
    save_file({"b": torch.ones(3), "c": torch.ones(1)}, folder / "two.safetensors")
    return {"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"}


def write_index(folder: Path, weight_map: Any) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_sharded(tmp_path: Path) -> None:
    write_index(tmp_path, sharded(tmp_path))
    assert {name: tensor.path.name for name, tensor in stored_tensors(tmp_path).items()} == {
        "a": "one.safetensors",
        "b": "two.safetensors",
        "c": "two.safetensors",
    }


def test_only_the_files_asked_for_are_opened(tmp_path: Path) -> None:
    write_index(tmp_path, sharded(tmp_path))
    (tmp_path / "two.safetensors").write_bytes(b"junk")
    assert set(stored_tensors(tmp_path, only=["a", "nowhere"])) == {"a"}


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda m: m | {"d": "two.safetensors"}, ["d", "nothing"]),
        (lambda m: m | {"d": "three.safetensors"}, ["three.safetensors", "no such file"]),
        (lambda m: {k: v for k, v in m.items() if k != "c"}, ["two.safetensors: c", "none here"]),
        (lambda m: m | {"a": "../one.safetensors"}, ["a", "beside the index"]),
        (lambda m: m | {"a": 5}, ["a", "beside the index"]),
        (lambda m: {}, ["weight_map"]),
        (lambda m: [1], ["weight_map"]),
    ],
)
def test_index_that_contradicts_the_files(tmp_path: Path, edit: Callable[[Any], Any], words: list[str]) -> None:
    write_index(tmp_path, edit(sharded(tmp_path)))
    with pytest.raises(CheckpointError) as error:
        stored_tensors(tmp_path)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_index_faults_of_all_files_are_said_at_once(tmp_path: Path) -> None:
    write_index(tmp_path, sharded(tmp_path) | {"d": "three.safetensors", "e": "one.safetensors"})
    (tmp_path / "two.safetensors").write_bytes(b"junk")
    with pytest.raises(CheckpointError) as error:
        stored_tensors(tmp_path)
    assert {Path(fault.where.split(": ")[0]).name for fault in error.value.faults} == {
        "one.safetensors",
        "two.safetensors",
        "three.safetensors",
    }


def test_index_that_is_no_json_and_single_file_beside_an_index(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text("{")
    with pytest.raises(CheckpointError, match="JSON"):
        stored_tensors(tmp_path)
    write_index(tmp_path, sharded(tmp_path))
    save_file({"a": torch.ones(2)}, tmp_path / SINGLE)
    with pytest.raises(CheckpointError, match="two checkpoints"):
        stored_tensors(tmp_path)
