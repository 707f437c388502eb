"""`pack` and what goes wrong half way: the destination appears whole or not at all, and what was there is untouched."""

import errno
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from monodraft.checkpoint import atomic, load_drafter, packing, writer
from monodraft.checkpoint.packing import pack
from monodraft.checkpoint.stored import SINGLE
from monodraft.errors import InputError

pytestmark = pytest.mark.numbers


def snapshot(folder: Path) -> dict[str, str]:
    """Every path below a folder with the hash of its bytes."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


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


def test_a_second_ctrl_c_during_the_cleaning_up_leaves_nothing_either(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(atomic.shutil, "rmtree", interrupt)
    with pytest.raises(KeyboardInterrupt):
        pack(source, tmp_path / "packed", progress=lambda what, done, total: 1 / (what == "checking"))
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


def _exchanges(folder: Path) -> bool:
    """Whether the file system below `folder` swaps two paths in one step."""
    one, other = folder / "one", folder / "other"
    one.mkdir()
    other.mkdir()
    try:
        return atomic._exchange(one, other)
    finally:
        one.rmdir()
        other.rmdir()


@pytest.mark.parametrize("exchange", [True, False])
def test_force_replaces_in_one_step_and_takes_the_old_away(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    destination = tmp_path / "packed"
    pack(source, destination, max_shard_size=50_000)
    renamed: list[object] = []
    real = os.rename
    monkeypatch.setattr(atomic.os, "rename", lambda *paths: (renamed.append(paths), real(*paths)))
    if not exchange:
        monkeypatch.setattr(atomic, "_exchange", lambda one, other: False)
    elif not _exchanges(tmp_path):
        pytest.skip("this file system cannot exchange two paths")
    pack(source, destination, force=True)
    assert len(renamed) == (0 if exchange else 3), "with the exchange the destination is never absent"
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


def test_every_file_is_durable_before_the_folder_takes_its_place(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut after the rename must not find a checkpoint with empty files."""
    events: list[str] = []
    sync, rename = os.fsync, os.rename

    def synced(descriptor: int) -> None:
        events.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    def renamed(one: Path, other: Path) -> None:
        events.append("rename")
        rename(one, other)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    pack(source, tmp_path / "packed", max_shard_size=100_000)
    before = {Path(path).name for path in events[: events.index("rename")]}
    assert {path.name for path in (tmp_path / "packed").iterdir()} < before
    assert any(".packed.partial-" in name for name in before), "the entries of the folder itself"
    assert events[events.index("rename") + 1 :] == [str(tmp_path)]


@pytest.mark.parametrize("mask", [0o022, 0o027])
def test_a_checkpoint_is_as_readable_as_the_umask_lets_it_be(source: Path, tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        pack(source, tmp_path / "packed")
    finally:
        os.umask(before)
    assert (tmp_path / "packed").stat().st_mode & 0o777 == 0o777 & ~mask
    for path in (tmp_path / "packed").iterdir():
        assert path.stat().st_mode & 0o777 == 0o666 & ~mask
