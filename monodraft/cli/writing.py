"""Output files of commands: whole or not at all, and an error that names the path where one cannot be written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from monodraft.errors import Fault, InputError


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step. InputError where it cannot be."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file in one step: beside its place, then renamed. InputError where it cannot be."""
    try:
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(partial, 0o666 & ~mask)
            os.replace(partial, path)
        except BaseException:
            os.unlink(partial)
            raise
    except OSError as error:
        raise InputError("cannot write", [Fault(str(path), error.strerror or str(error), "a writable path")]) from error


def make_folder(path: Path) -> None:
    """Make a folder and its parents. InputError where it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("cannot write", [Fault(str(path), error.strerror or str(error), "a folder")]) from error
