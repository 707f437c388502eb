"""`monodraft generate` from the command line in: what it prints, where, and with which exit code."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console
from transformers import AutoTokenizer

from monodraft.checkpoint import load_drafter, read_config
from monodraft.checkpoint.shipped import DRAFTER, TARGET
from monodraft.cli import backends as cli_backends
from monodraft.cli.generate import positions_needed
from monodraft.cli.speculation_view import StreamView, bar, summary
from monodraft.loop import backends as loop_backends
from monodraft.loop.plain import Comparison
from monodraft.loop.prompts import default_prompt
from monodraft.loop.report import PlainReport, Report
from monodraft.loop.request import Emission, Source
from monodraft.loop.session import Session
from monodraft.loop.statistics import RequestStatistics

pytestmark = pytest.mark.numbers

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
FEW = ("--max-new-tokens", "12")

Run = Callable[..., tuple[int, str, str]]


def test_default_run_prints_the_text_alone_on_standard_output_and_the_figures_on_standard_error(command: Run) -> None:
    code, out, err = command(*FEW)
    assert code == 0
    assert out.startswith(default_prompt())
    assert out.endswith("\n")
    assert "\x1b" not in out
    assert re.search(r"12 tokens in \d+ rounds: \d\.\d\d tokens a round", err)
    assert re.search(r"accepted at position +1 +█", err)
    assert re.search(r"time \d+\.\d\d s: prompt \d+%, draft \d+%, verify \d+%, commit \d+%, other \d+%", err)
    assert re.search(r"\d+\.\d tokens/s with speculation, \d+\.\d without: \d+\.\d\dx", err)
    assert "equal to the non-speculative text: yes, all 12 tokens" in err


def test_json_is_one_object_and_nothing_else(command: Run) -> None:
    code, out, err = command(*FEW, "--json", "--confidence-threshold", "0.3", "--numerics", "mxfp8")
    figures = json.loads(out)
    assert (code, err) == (0, "")
    assert figures["plain"]["equal"] is True
    assert figures["plain"]["comparisons"] == [{"first_difference": None, "margin": None}]
    assert figures["numerics"] == "mxfp8"
    assert figures["tokens"] == len(figures["texts"][0]["tokens"]) == 12
    assert figures["texts"][0]["finish"] == "length"
    statistics = figures["statistics"]
    assert len(statistics["accepted"]) == 7
    assert sum(statistics["accepted"]) + statistics["rounds"] == statistics["round_tokens"] == 11


def test_several_sampled_requests_side_by_side(command: Run, tmp_path: Path) -> None:
    file = tmp_path / "prompt.py"
    file.write_text("import os\n")
    arguments = (*FEW, "--temperature", "0.9", "--requests", "2", "--prompt-file", file, "--no-compare")
    code, out, _ = command(*arguments, "--json", "class A:")
    texts = json.loads(out)["texts"]
    assert code == 0
    assert [(text["prompt"], text["seed"]) for text in texts] == [
        ("class A:", 0), ("class A:", 1), ("import os\n", 2), ("import os\n", 3)
    ]  # fmt: skip
    assert texts[0]["text"] != texts[1]["text"]
    code, out, err = command(*arguments)
    assert code == 0
    assert out.count("import os\n") >= 2
    assert "request 2, seed 1" in err
    assert "without" not in err


def test_the_backend_gets_room_for_the_longest_text(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backends have defaults (8192 positions, 2048 on the executor) that a long prompt would not fit."""
    given: list[dict[str, Any]] = []
    make = loop_backends.make_drafter
    spied = lambda *facts, **options: (given.append(options), make(*facts, **options))[1]  # noqa: E731
    monkeypatch.setattr(loop_backends, "make_drafter", spied)
    _, out, _ = command("x = 1\n" * 100, "y", "--max-new-tokens", "8", "--no-compare", "--json")
    longest = max(text["prompt_tokens"] for text in json.loads(out)["texts"])
    assert longest > 300
    assert given[0]["positions"] == longest + 8 + 7
    config = read_config(DRAFTER)
    assert positions_needed(config, 10**6) == config.max_positions
    assert positions_needed(config, 2) == 32 + 7


@pytest.mark.parametrize(("positions", "context"), [(100, 93), (5000, 4089), (None, None)])
def test_hopper_counts_positions_without_the_block(
    monkeypatch: pytest.MonkeyPatch, positions: int | None, context: int | None
) -> None:
    drafter = ModuleType("drafter")
    monkeypatch.setattr(drafter, "HopperDrafter", lambda *_, **options: options.get("max_positions"), raising=False)
    monkeypatch.setitem(sys.modules, "monodraft.hopper.drafter", drafter)
    config, weights = load_drafter(DRAFTER, TARGET)
    assert cli_backends._make_hopper(config, weights, positions=positions) == context


def test_help_teaches_by_example(command: Run) -> None:
    code, out, _ = command("--help")
    assert code == 0
    assert "monodraft generate 'def parse(line):' --temperature 0.8" in out
    assert "the pair that comes with monodraft" in out


# -- the terminal --


def shown(monkeypatch: pytest.MonkeyPatch, no_color: bool) -> str:
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    console = Console(file=io.StringIO(), force_terminal=True, width=20, highlight=False)
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    ids = tokenizer("if x:\n\treturn  'é€😀 [bold]' \x1b[31m\n")["input_ids"]
    view = StreamView(console, tokenizer.decode, [])
    view.show_prompt("# start\n")
    kinds = [Source.ACCEPTED, Source.CORRECTED, Source.TARGET]
    sources = tuple(kinds[i % 3] for i in range(len(ids)))
    for i in range(0, len(ids), 4):
        view.show(Emission(0, tuple(ids[i : i + 4]), sources[i : i + 4], None))
    view.end()
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


@pytest.mark.parametrize("no_color", [False, True])
def test_terminal_text_is_whole_styled_and_safe(monkeypatch: pytest.MonkeyPatch, no_color: bool) -> None:
    """Tabs, characters of several tokens, rich's own markup, and escapes of the model (as signs) come out."""
    output = shown(monkeypatch, no_color)
    text = ANSI.sub("", output).expandtabs(8)
    assert "if x:\n" in text
    assert "'é€😀 [bold]' ␛[31m" in text
    assert re.search(r"\x1b\[([0-9]+;)*4(;[0-9]+)*m", output), "corrections are underlined, colour or not"
    colours = re.findall(r"\x1b\[[0-9;]*3[0-9][0-9;]*m", output)
    assert (not colours) == no_color


def test_bars_and_summary_of_every_outcome() -> None:
    assert [len(bar(share)) for share in (0.0, 0.013, 0.5, 1.0)] == [30] * 4
    assert bar(0.5).rstrip() == "█" * 15
    statistics = RequestStatistics(2)
    console = Console(file=io.StringIO(), width=120)

    def text(report: Report) -> str:
        with console.capture() as capture:
            console.print(summary(report))
        return capture.get()

    assert "no round" in text(Report(statistics, 1, 1, 0.0))
    for _ in range(5):
        statistics.count_round(drafted=2, verified=1, accepted=0, tokens=1)
    differs = PlainReport(9, 10.0, (Comparison(None, None), Comparison(4, 2.5e-7)))
    shown = text(Report(statistics, 2, 4, 1.0, differs))
    assert "equal to the non-speculative text: no, 1 of 2 differ; first at token 5" in shown
    assert "leads by 2.5e-07" in shown
    assert "no draft was accepted at all" in shown
    assert "never verified" in shown
    console.width = 56
    [row] = [line for line in text(Report(statistics, 2, 4, 1.0)).splitlines() if line.startswith("accepted at")]
    assert row.rstrip().endswith("0%  (0 of 5)"), "bars shrink, and no row of figures is wrapped"
    console.width = 120
    assert "not compared token for token" in text(Report(statistics, 1, 4, 1.0, PlainReport(9, 10.0, None)))


# -- Ctrl-C --


def interrupt_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Ctrl-C in the given step of the main run (the warm-up's requests are short and come first)."""
    step, counted = Session.step, [0]

    def interrupted(self: Session) -> list[Emission]:
        if len(self._states[self.running[0]].request.prompt) > 16:
            counted[0] += 1
            if counted[0] > steps:
                raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(Session, "step", interrupted)


def test_interrupt_shows_the_figures_so_far_and_leaves_with_130(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_after(monkeypatch, 3)
    code, out, err = command()
    assert code == 130
    assert out.startswith(default_prompt())
    assert re.search(r"interrupted: \d+ tokens in 2 rounds", err)


def test_interrupted_json_is_whole(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_after(monkeypatch, 3)
    code, out, err = command("--json")
    assert (code, err) == (130, "")
    assert json.loads(out)["interrupted"] is True
    assert json.loads(out)["statistics"]["rounds"] == 2


def test_interrupt_in_the_comparison_keeps_the_figures(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("monodraft.cli.generate.plain_runs", interrupted)
    code, _, err = command(*FEW)
    assert code == 130
    assert "interrupted: 12 tokens" in err


def test_control_c_while_the_command_is_imported_is_no_traceback() -> None:
    program = (
        "import sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from monodraft.cli.entry import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_control_c_in_a_terminal_restores_it() -> None:
    """A real terminal: the cursor is shown as often as it was hidden, colours are off, exit code 130."""
    child, terminal = pty.fork()
    if child == 0:
        arguments = ["generate", "--max-new-tokens", "2000"]
        environment = os.environ | {"TERM": "xterm"}
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs ignore it, and children inherit that
        os.execve(sys.executable, [sys.executable, "-m", "monodraft.cli.app", *arguments], environment)
    seen, sent, deadline = b"", False, time.monotonic() + 120
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # how Linux reports the end of a terminal
                break
            if not piece:
                break
            seen += piece
        if not sent and b"_sequence_generator = count" in seen:
            os.write(terminal, b"\x03")
            sent = True
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(terminal)
    assert sent
    assert code == 130
    assert seen.count(b"\x1b[?25l") == seen.count(b"\x1b[?25h")
    styles = re.findall(rb"\x1b\[([0-9;]*)m", seen)
    assert styles[-1] in (b"0", b"")


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "monodraft", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"monodraft {version('monodraft')}\n")
