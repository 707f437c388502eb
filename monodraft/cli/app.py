"""The `monodraft` command: one file per subcommand; this one assembles them and turns user errors into exit code 2."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from typing import NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from monodraft import __version__
from monodraft.cli import inspect, pack
from monodraft.cli.bench import bench
from monodraft.cli.compile import compile_command
from monodraft.cli.generate import generate
from monodraft.cli.kernels import kernels
from monodraft.cli.plan import plan_command
from monodraft.errors import MonodraftError

app = typer.Typer(
    name="monodraft",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Run DSpark drafters: generate text with speculation, inspect and pack checkpoints, compile the kernels.",
)


@app.callback(invoke_without_command=True)
def root(version: bool = typer.Option(False, "--version", help="Print the version and leave.")) -> None:
    if version:
        print(f"monodraft {__version__}")
        raise typer.Exit


app.command()(generate)
app.command()(kernels)


app.command("plan")(plan_command)
app.command("compile")(compile_command)
app.command("bench")(bench)
app.command("inspect")(inspect.inspect)
app.command("pack")(pack.pack_command)


def prepare_process() -> None:
    """Clean up on SIGTERM and SIGHUP as on Ctrl-C (`pack` removes its partial folder, the cursor comes back), and write
    characters that the terminal's encoding lacks as question marks."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # under nohup it stays ignored
            signal.signal(number, _leave)


def _leave(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def main() -> None:
    """Entry point. Exit codes: 0 done, 2 a mistake that the user can mend, 130 interrupted (128 + the signal's number
    for others), 1 a defect of ours."""
    prepare_process()
    stderr = Console(stderr=True)
    try:
        try:
            app()
        finally:  # here, where it can be answered, and not while Python shuts down
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered goes nowhere
        if error.errno == errno.EPIPE:  # the reader has seen enough
            sys.exit(1)
        stderr.print(f"[bold red]error:[/] standard output: {error.strerror}", highlight=False)
        sys.exit(2)
    except MonodraftError as error:
        stderr.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        stderr.print("interrupted")
        sys.exit(130)


if __name__ == "__main__":
    main()
