"""`pack`: right bytes, and a destination that appears whole or not at all."""

import errno
import hashlib
import io
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from monodraft.checkpoint import atomic, audit_folder, load_drafter, packing, read_config, writer
from monodraft.checkpoint.layout import LINEARS
from monodraft.checkpoint.packing import pack
from monodraft.checkpoint.stored import INDEX, SINGLE, read_header
from monodraft.checkpoint.weights import Mxfp8Matrix
from monodraft.checkpoint.writer import OutputTensor, write_safetensors
from monodraft.errors import CheckpointError, InputError
from monodraft.formats import mxfp8_torch
from monodraft.testing import random_config, random_weights, write_checkpoint

pytestmark = pytest.mark.numbers


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    config = random_config("qwen3", hidden_size=128, ffn_size=256)
    write_checkpoint(folder, config, random_weights(config, seed=5))
    (folder / "README.md").write_text("card")
    return folder


def snapshot(folder: Path) -> dict[str, str]:
    """Every path below a folder with the hash of its bytes."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


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
    assert snapshot(tmp_path / "once") == snapshot(tmp_path / "twice")


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


# What must leave nothing behind, and what was there untouched


def left_as_it_was(source: Path, destination: Path, failure: type[BaseException], match: str) -> None:
    parent = destination.parent
    before = snapshot(parent)
    folders = {path for path in parent.rglob("*") if path.is_dir()}
    with pytest.raises(failure, match=match):
        pack(source, destination, force=True)
    assert snapshot(parent) == before
    assert {path for path in parent.rglob("*") if path.is_dir()} == folders


@pytest.mark.parametrize("replacing", [False, True])
@pytest.mark.parametrize("after", [0, 30_000, 200_000])
def test_disk_full_half_way(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replacing: bool, after: int
) -> None:
    destination = tmp_path / "packed"
    if replacing:
        pack(source, destination)
    room = [after]
    real = writer.Path.open

    def limited(path: Path, mode: str = "r", *args, **kwargs):  # type: ignore[no-untyped-def]
        file = real(path, mode, *args, **kwargs)
        return _Limited(file, room) if mode == "wb" else file

    monkeypatch.setattr(writer.Path, "open", limited)
    left_as_it_was(source, destination, InputError, r"packed/model\.safetensors: found No space left on device after")


class _Limited:
    """A file on a disk with so much room."""

    def __init__(self, file, room: list[int]) -> None:  # type: ignore[no-untyped-def]
        self.file, self.room = file, room

    def __enter__(self):  # type: ignore[no-untyped-def]
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def write(self, data: bytes) -> None:
        if len(data) > self.room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room[0] -= len(data)
        self.file.write(data)

    def flush(self) -> None:
        self.file.flush()

    def fileno(self) -> int:
        return self.file.fileno()


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounting a file system needs root on Linux")
def test_a_file_system_that_really_fills_up(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("mount is not allowed here")
    try:
        monkeypatch.setattr(packing, "_check_room", lambda *args: None)
        with pytest.raises(InputError, match="No space left on device"):
            pack(source, disk / "packed")
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("replacing", [False, True])
def test_interrupted_half_way(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replacing: bool) -> None:
    destination = tmp_path / "packed"
    if replacing:
        pack(source, destination)
    calls = []

    def interrupt(what: str, done: int, total: int) -> None:
        calls.append(what)
        if calls.count("writing") == 5:
            raise KeyboardInterrupt

    before = snapshot(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        pack(source, destination, force=True, progress=interrupt)
    assert snapshot(tmp_path) == before
    assert {path.name for path in tmp_path.iterdir()} == {"source", "packed"} - (set() if replacing else {"packed"})


@pytest.mark.parametrize("exchange", [True, False])
def test_force_replaces_in_one_step_and_takes_the_old_away(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    destination = tmp_path / "packed"
    pack(source, destination, max_shard_size=50_000)
    if not exchange:
        monkeypatch.setattr(atomic, "_exchange", lambda one, other: False)
    pack(source, destination, force=True)
    assert {path.name for path in destination.iterdir()} == {"config.json", SINGLE, "README.md"}
    assert {path.name for path in tmp_path.iterdir()} == {"source", "packed"}
    load_drafter(destination)


def test_a_failed_second_rename_puts_the_old_checkpoint_back(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = tmp_path / "packed"
    pack(source, destination)
    real, failed = os.rename, []

    def rename(one, other):  # type: ignore[no-untyped-def]
        if Path(other) == destination and not failed:
            failed.append(other)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(one, other)

    monkeypatch.setattr(atomic, "_exchange", lambda one, other: False)
    monkeypatch.setattr(atomic.os, "rename", rename)
    before = snapshot(destination)
    with pytest.raises(InputError, match="Input/output error"):
        pack(source, destination, force=True)
    assert failed
    assert snapshot(destination) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_a_real_process_leaves_nothing(source: Path, tmp_path: Path, number: signal.Signals) -> None:
    """The command, stopped by a signal while it writes: exit code 128 + number, no folder, no temporary one."""
    program = (
        "import os, sys\n"
        "from monodraft.checkpoint import packing\n"
        "from monodraft.cli import app\n"
        "real = packing.write_safetensors\n"
        "def slow(path, tensors, wrote):\n"
        "    def hook(count):\n"
        "        wrote(count)\n"
        f"        os.kill(os.getpid(), {int(number)})\n"
        "    real(path, tensors, hook)\n"
        "packing.write_safetensors = slow\n"
        f"sys.argv = ['monodraft', 'pack', {str(source)!r}, {str(tmp_path / 'packed')!r}]\n"
        "app.main()\n"
    )
    # A shell's background jobs ignore SIGINT, nohup's SIGHUP, and children inherit it.
    as_in_a_shell = lambda: signal.signal(number, signal.SIG_DFL)  # noqa: E731
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, preexec_fn=as_in_a_shell)
    assert result.returncode == 128 + number, result.stderr
    assert "Traceback" not in result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"source"}
