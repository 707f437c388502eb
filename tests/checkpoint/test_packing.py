"""`pack`: right bytes, and what it refuses before anything is written."""

import errno
import io
import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from monodraft.checkpoint import atomic, audit_folder, load_drafter, packing, read_config
from monodraft.checkpoint.layout import LINEARS
from monodraft.checkpoint.packing import pack
from monodraft.checkpoint.stored import INDEX, SINGLE, read_header
from monodraft.checkpoint.weights import Mxfp8Matrix
from monodraft.checkpoint.writer import OutputTensor, write_safetensors
from monodraft.errors import CheckpointError, InputError
from monodraft.formats import mxfp8_torch
from monodraft.testing import random_config, random_weights, write_checkpoint

pytestmark = pytest.mark.numbers


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


@pytest.mark.parametrize("family", ["qwen3", "gemma4", "minicpm5"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_linears_are_the_encoders_bytes_and_the_rest_is_untouched(
    tmp_path: Path, family: str, dtype: torch.dtype
) -> None:
    source, destination = tmp_path / "source", tmp_path / "packed"
    config = random_config(family, hidden_size=128, ffn_size=256)
    write_checkpoint(source, config, random_weights(config, seed=5))
    if dtype == torch.float32:
        wide = {name: tensor.float() * 1.001 for name, tensor in load_file(source / SINGLE).items()}
        save_file(wide, source / SINGLE)
    packed = pack(source, destination)
    before, after = tensors_of(source), tensors_of(destination)
    audited = audit_folder(source)
    linears = {t.name for role, t in audited.tensors.items() if role.split(".")[-1] in LINEARS}
    assert packed.quantised == len(linears) == (14 if family != "gemma4" else 12)
    assert after.keys() == before.keys() | {f"{name}_scale_inv" for name in linears}
    for name, tensor in before.items():
        if name in linears:
            elements, scales = mxfp8_torch.encode(tensor)
            assert torch.equal(after[name].view(torch.uint8), elements), name
            assert torch.equal(after[f"{name}_scale_inv"], scales), name
        else:
            assert torch.equal(after[name], tensor), name
            assert after[name].dtype == tensor.dtype


def test_the_packed_checkpoint_loads_and_says_mxfp8(source: Path, tmp_path: Path) -> None:
    pack(source, tmp_path / "packed")
    config, weights = load_drafter(tmp_path / "packed")
    assert config.mxfp8_linears
    assert isinstance(weights.layers[0].down, Mxfp8Matrix)
    before = json.loads((source / "config.json").read_text())
    after = json.loads((tmp_path / "packed" / "config.json").read_text())
    assert after == before | {"quantization_config": {"quant_method": "mxfp8", "weight_block_size": [1, 32]}}
    assert (tmp_path / "packed" / "README.md").read_text() == "card"


def test_released_mxfp8_stays_byte_for_byte_also_sharded_anew(tmp_path: Path) -> None:
    source = tmp_path / "source"
    config = random_config("minimax-m31")
    write_checkpoint(source, config, random_weights(config), sharded=True)
    packed = pack(source, tmp_path / "one")
    assert packed.quantised == 0
    assert packed.files == (SINGLE,)
    again = pack(tmp_path / "one", tmp_path / "many", max_shard_size=200_000)
    assert len(again.files) > 3
    before = tensors_of(source)
    for folder in (tmp_path / "one", tmp_path / "many"):
        after = tensors_of(folder)
        assert after.keys() == before.keys()
        assert all(torch.equal(after[n].view(torch.uint8), before[n].view(torch.uint8)) for n in before)
        assert all(after[n].dtype == before[n].dtype for n in before)
    assert read_config(tmp_path / "many") == read_config(source)


def test_packing_twice_changes_nothing(source: Path, tmp_path: Path) -> None:
    pack(source, tmp_path / "once")
    pack(tmp_path / "once", tmp_path / "twice")
    once, twice = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("once", "twice"))
    assert once == twice


def test_shards_hold_at_most_what_was_asked_and_the_index_is_right(source: Path, tmp_path: Path) -> None:
    packed = pack(source, tmp_path / "packed", max_shard_size=100_000)
    index = json.loads((tmp_path / "packed" / INDEX).read_text())
    assert sorted(set(index["weight_map"].values())) == sorted(packed.files)
    total = 0
    for file in packed.files:
        with safe_open(tmp_path / "packed" / file, "np") as opened:
            assert {n for n, f in index["weight_map"].items() if f == file} == set(opened.keys())
        sizes = [tensor.size for tensor in read_header(tmp_path / "packed" / file).values()]
        assert sum(sizes) <= 100_000 or len(sizes) == 1
        total += sum(sizes)
    assert index["metadata"]["total_size"] == total == packed.bytes_out


def test_tensors_that_the_audit_ignores_come_along(source: Path, tmp_path: Path) -> None:
    tensors = load_file(source / SINGLE) | {"t2d": torch.arange(7)}
    save_file(tensors, source / SINGLE)
    pack(source, tmp_path / "packed")
    assert torch.equal(tensors_of(tmp_path / "packed")["t2d"], torch.arange(7))


def test_progress_goes_to_the_end(source: Path, tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    packed = pack(source, tmp_path / "packed", progress=lambda *call: calls.append(call))
    done = {what: (count, total) for what, count, total in calls}
    assert done["checking"] == (packed.bytes_in, packed.bytes_in)
    assert done["writing"] == (packed.bytes_out, packed.bytes_out)
    assert all(a[1] <= b[1] for a, b in itertools.pairwise(calls) if a[0] == b[0])


# The writer


def test_the_library_reads_what_the_writer_wrote(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {"bytes": rng.integers(0, 256, 7, np.uint8), "words": rng.standard_normal((3, 5)).astype(np.float32)}
    outputs = [
        OutputTensor("bytes", "U8", (7,), lambda: iter([arrays["bytes"][:3].tobytes(), arrays["bytes"][3:].tobytes()])),
        OutputTensor("words", "F32", (3, 5), lambda: iter([arrays["words"].tobytes()])),
        OutputTensor("empty", "F32", (0, 4), lambda: iter(())),
        OutputTensor("scalar", "F32", (), lambda: iter([np.float32(2).tobytes()])),
    ]
    write_safetensors(tmp_path / "x.safetensors", outputs, lambda count: None)
    read = load_file(tmp_path / "x.safetensors")
    assert torch.equal(read["bytes"], torch.from_numpy(arrays["bytes"]))
    assert torch.equal(read["words"], torch.from_numpy(arrays["words"]))
    assert read["empty"].shape == (0, 4)
    assert read["scalar"] == 2
    # Wide elements first: float32 after an odd number of bytes would not be aligned.
    stored = read_header(tmp_path / "x.safetensors")
    assert stored["words"].offset % 8 == 0
    assert stored["bytes"].offset > stored["scalar"].offset


# What must be refused before anything is written


def refused(source: Path, destination: Path, match: str, error: type[Exception] = InputError, **options) -> None:  # type: ignore[no-untyped-def]
    parent = destination.parent
    before = {str(path) for path in parent.rglob("*")} if parent.exists() else set()
    with pytest.raises(error, match=match):
        pack(source, destination, **options)
    assert ({str(path) for path in parent.rglob("*")} if parent.exists() else set()) == before


def test_an_existing_destination(source: Path, tmp_path: Path) -> None:
    destination = tmp_path / "packed"
    destination.mkdir()
    refused(source, destination, "--force")
    (destination / "photos.zip").write_text("dear to me")
    refused(source, destination, "no checkpoint", force=True)
    assert (destination / "photos.zip").read_text() == "dear to me"
    (tmp_path / "file").write_text("x")
    refused(source, tmp_path / "file", "no folder", force=True)
    (tmp_path / "link").symlink_to(source)
    refused(source, tmp_path / "link", "no folder", force=True)


def test_no_parent_and_overlap(source: Path, tmp_path: Path) -> None:
    refused(source, tmp_path / "nowhere" / "packed", "existing folder")
    refused(source, source / "packed", "overlap")
    refused(source, source, "overlap", force=True)


def test_an_unwritable_parent(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = tmp_path / "locked"
    parent.mkdir()
    parent.chmod(0o555)
    if os.geteuid() == 0:
        # Root passes permission checks; what it meets is a read-only file system.
        def read_only(*args: object, **kwargs: object) -> str:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        monkeypatch.setattr(atomic.tempfile, "mkdtemp", read_only)
    refused(source, parent / "packed", "not writable")
    parent.chmod(0o755)


def test_too_little_room(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing.shutil, "disk_usage", lambda path: os.terminal_size((0, 0)) and _Usage(1000))
    refused(source, tmp_path / "packed", "too full")


class _Usage:
    def __init__(self, free: int) -> None:
        self.free = free


def test_nan_weights_and_corrupt_sources(source: Path, tmp_path: Path) -> None:
    tensors = load_file(source / SINGLE)
    tensors["layers.0.mlp.down_proj.weight"][3, 4] = float("nan")
    save_file(tensors, source / SINGLE)
    refused(source, tmp_path / "packed", "down_proj", CheckpointError)
    data = (source / SINGLE).read_bytes()
    (source / SINGLE).write_bytes(data[:-1])
    refused(source, tmp_path / "packed", "truncated", CheckpointError)


def test_a_file_of_the_source_that_cannot_be_read(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.open

    def denied(path: Path, *args, **kwargs):  # type: ignore[no-untyped-def]
        if path.name == "README.md":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", denied)
    refused(source, tmp_path / "packed", f"{source}/README.md: found Permission denied", CheckpointError)


class _Failing(io.BufferedReader):
    """A file on a disk that fails at the 60th read."""

    reads = 0

    def read(self, size: int | None = -1) -> bytes:  # type: ignore[override]
        _Failing.reads += 1
        if _Failing.reads == 60:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(size)


def test_a_disk_of_the_source_that_fails_half_way_is_not_taken_for_the_destination(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.open

    def failing(path: Path, mode: str = "r", *args, **kwargs):  # type: ignore[no-untyped-def]
        file = real(path, mode, *args, **kwargs)
        return _Failing(file.detach()) if path == source / SINGLE and mode == "rb" else file

    monkeypatch.setattr(Path, "open", failing)
    steps: list[str] = []
    with pytest.raises(CheckpointError, match=rf"{source}/{SINGLE}: \S+weight: found Input/output error"):
        pack(source, tmp_path / "packed", progress=lambda what, done, total: steps.append(what))
    assert "writing" in steps
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


def test_linears_whose_columns_are_no_blocks(tmp_path: Path) -> None:
    config = random_config("qwen3", hidden_size=80, ffn_size=256)
    write_checkpoint(tmp_path / "source", config, random_weights(config))
    refused(tmp_path / "source", tmp_path / "packed", "blocks of 32")
