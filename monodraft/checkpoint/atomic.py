"""A folder that appears whole or not at all: filled beside its place, then renamed into it."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from monodraft.errors import Fault, InputError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def check_destination(destination: Path, force: bool, replaceable: str) -> None:
    """Raise InputError, before anything is written, where `destination` cannot be made or may not be replaced.

    An existing folder is replaced only with `force`, and only if it is empty or has a file named `replaceable`.
    """
    parent = destination.parent
    if not parent.is_dir():
        raise InputError("the destination cannot be made", [Fault(str(parent), "no folder", "an existing folder")])
    if not os.access(parent, os.W_OK | os.X_OK) or _probe(parent) is not None:
        raise InputError("the destination cannot be made", [Fault(str(parent), "not writable", "a writable folder")])
    if destination.is_symlink() or (destination.exists() and not destination.is_dir()):
        raise InputError("the destination is no folder", [Fault(str(destination), "a file or link", "a folder's path")])
    if not destination.exists():
        return
    if not force:
        raise InputError(
            "the destination exists",
            [Fault(str(destination), "an existing folder", "a new path, or --force to replace it")],
        )
    if any(destination.iterdir()) and not (destination / replaceable).is_file():
        raise InputError(
            "the destination is no checkpoint",
            [Fault(str(destination), f"a folder without {replaceable}", "a checkpoint or an empty folder to replace")],
        )


def _probe(parent: Path) -> OSError | None:
    """The error of making a folder in `parent`, if there is one (a read-only mount passes access checks of root)."""
    try:
        os.rmdir(tempfile.mkdtemp(dir=parent, prefix=".monodraft-"))
    except OSError as error:
        return error
    return None


def sync(path: Path) -> None:
    """Make a file's bytes, or a folder's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two paths in one step; False where the system or file system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(other))


def _put_in_place(partial: Path, destination: Path) -> None:
    """Rename `partial` to `destination`; what was there ends up at `partial`, to be removed."""
    if not destination.exists():
        os.rename(partial, destination)
    elif not _exchange(partial, destination):
        # Two renames with nothing between them: the destination is absent for an instant, and never half written.
        old = Path(tempfile.mkdtemp(dir=destination.parent, prefix=f".{destination.name}.old-"))
        os.rename(destination, old)
        try:
            os.rename(partial, destination)
        except BaseException:
            os.rename(old, destination)
            raise
        os.rename(old, partial)


@contextmanager
def new_folder(destination: Path) -> Iterator[Path]:
    """A folder beside `destination` to be filled; it takes that place when the block ends and is removed, with all in
    it, when the block raises (Ctrl-C too). What `destination` held is replaced in one step and then removed."""
    partial = Path(tempfile.mkdtemp(dir=destination.parent, prefix=f".{destination.name}.partial-"))
    try:
        # mkdtemp makes it private; a checkpoint is as readable as the umask lets it be.
        mask = os.umask(0)
        os.umask(mask)
        partial.chmod(0o777 & ~mask)
        yield partial
        sync(partial)
        _put_in_place(partial, destination)
        sync(destination.parent)
    finally:
        try:
            shutil.rmtree(partial, ignore_errors=True)
        except BaseException:  # Ctrl-C once more, while the first one is cleaned up after
            shutil.rmtree(partial, ignore_errors=True)
            raise
