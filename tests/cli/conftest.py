"""The command, run in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from monodraft.cli import app


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run `monodraft generate ARGUMENTS` in this process: exit code, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["monodraft", "generate", *map(str, arguments)])
        capfd.readouterr()
        code = 0
        try:
            app.main()
        except SystemExit as leave:
            code = int(leave.code or 0)
        out, err = capfd.readouterr()
        return code, out, err

    return run
