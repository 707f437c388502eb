"""`monodraft generate` from the command line in: what it prints, where, and with which exit code."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from monodraft.checkpoint.shipped import DRAFTER, TARGET
from monodraft.cli import app
from monodraft.cli.speculation_view import StreamView, bar, summary
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


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
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


# -- bad input --


@pytest.fixture
def target_copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TARGET, tmp_path / "other"))


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refused(outcome: tuple[int, str, str], *words: str) -> None:
    """Exit code 2, nothing on standard output, and every word in the message."""
    code, out, err = outcome
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--backend", "gpu"], ["--backend: found gpu, wanted reference"]),
        (["--numerics", "fp4"], ["numerics", "fp4", "exact"]),
        (["--ranks", "3"], ["ranks: found 3"]),
        (["--device", "cuda:77"], ["--device cuda:77"]),
        (["--device", "abacus"], ["--device abacus"]),
        (["--target-dtype", "int8"], ["--target-dtype: found int8"]),
        (["--temperature", "-1"], ["temperature: found -1.0"]),
        (["--top-p", "0"], ["top_p: found 0.0"]),
        (["--top-k", "-2"], ["top_k: found -2"]),
        (["--confidence-threshold", "2"], ["confidence_threshold: found 2.0"]),
        (["--chat"], ["chat_template: found none"]),
        ([""], ["prompt 1: found no text"]),
        (["ok", "\udcff"], ["prompt 2: found bytes that are not UTF-8"]),
        (["ok", "x = 1\n" * 3000, "--no-compare"], ["request 2: prompt: found", "wanted at most 4095"]),
        (["x = 1\n" * 3000], ["prompt: found", "wanted at most 4095"]),
        (["--target", "/nowhere"], ["/nowhere: found nothing there", "local folder"]),
        (["--drafter", "/nowhere"], ["/nowhere: found nothing there"]),
        (["--prompt-file", "/nowhere"], ["unreadable prompt", "/nowhere"]),
    ],
    ids=lambda value: ascii(" ".join(value))[:40],
)
def test_bad_options_are_refused_by_name(command: Run, arguments: list[str], words: list[str]) -> None:
    refused(command(*arguments), *words)


def test_numbers_out_of_range_are_refused_by_the_usage(command: Run) -> None:
    code, out, err = command("--max-new-tokens", "0")
    assert (code, out) == (2, "")
    assert "Invalid value for '--max-new-tokens'" in ANSI.sub("", err)


def test_prompt_file_that_is_not_utf8_is_refused(command: Run, tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(b"\xff\xfe")
    refused(command("--prompt-file", tmp_path / "p"), "unreadable prompt", str(tmp_path / "p"), "utf-8")


@pytest.mark.parametrize(
    ("redirection", "code", "words"),
    [
        ("<&-", 2, "-: found Bad file descriptor, wanted a readable UTF-8 file"),
        ("<bytes", 2, "-: found 'utf-8' codec can't decode byte 0xff"),
        ("<text", 0, r"'d\xe9'"),
    ],
    ids=["closed", "other bytes", "text"],
)
def test_a_prompt_from_standard_input_is_utf8_whatever_the_locale_says(
    tmp_path: Path, redirection: str, code: int, words: str
) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff")
    (tmp_path / "text").write_bytes("dé".encode())
    program = (
        "import sys\nfrom monodraft.cli import app\nfrom monodraft.cli.app import generate\n"
        "generate.__globals__['run'] = lambda options, stderr: print(ascii(options.prompts[0]), file=sys.stderr)\n"
        "sys.argv = ['monodraft', 'generate', '--prompt-file', '-']\napp.main()\n"
    )
    shell = ["sh", "-c", f'exec "$0" -c "$1" {redirection}', sys.executable, program]
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(shell, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert words in done.stderr


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 512}, ["hidden_size: found 512", "256"]),
        ({"vocab_size": 5000}, ["vocab_size: found 5000", "4096"]),
        ({"num_hidden_layers": 7}, ["[0, 2, 4, 6, 7]", "under 7"]),
    ],
)
def test_target_of_another_size_is_refused(
    command: Run, target_copy: Path, changes: dict[str, object], words: list[str]
) -> None:
    edit_config(target_copy, **changes)
    refused(command("--target", target_copy), "not made for this target", str(target_copy), *words)


def test_tokenizer_with_more_ids_than_the_target_is_refused(command: Run, target_copy: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(target_copy)
    tokenizer.add_tokens(["<one more>"])
    tokenizer.save_pretrained(target_copy)
    refused(command("--target", target_copy), "does not match", "highest id: found 4096, wanted at most 4095")


def test_tokenizer_with_a_special_id_out_of_range_is_refused(command: Run, target_copy: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(target_copy)
    tokenizer.add_special_tokens({"eos_token": "<eot>"})
    tokenizer.save_pretrained(target_copy)
    refused(command("--target", target_copy), "eos_token_id: found 4096, wanted 0 to 4095")


@pytest.mark.parametrize(
    ("file", "changes", "words"),
    [
        ("tokenizer.json", {"post_processor": "x"}, ["unreadable tokenizer"]),
        ("tokenizer.json", {"model": {"type": "BPE", "continuing_subword_prefix": "4096"}}, ["unreadable tokenizer"]),
        ("tokenizer_config.json", {"model_max_length": "x"}, ["the prompt cannot be encoded", "TypeError"]),
        ("tokenizer_config.json", {"chat_template": "{{ raise_exception('no') }}"}, ["cannot be encoded", "no"]),
        ("config.json", {"head_dim": 1.5}, ["unreadable target", "config.json: found", "'head_dim' expected int"]),
        ("generation_config.json", {"eos_token_id": 0.5}, ["eos_token_id: found 0.5, wanted ids 0 to 4095"]),
        ("generation_config.json", {"eos_token_id": "</s>"}, ["eos_token_id: found </s>, wanted ids 0 to 4095"]),
        ("generation_config.json", {"eos_token_id": [3, 4096, None]}, ["found 4096, wanted", "found None, wanted"]),
    ],
)
def test_files_of_the_target_that_its_libraries_choke_on_are_refused(
    command: Run, target_copy: Path, file: str, changes: dict[str, Any], words: list[str]
) -> None:
    facts = json.loads((target_copy / file).read_text())
    for name, value in changes.items():
        facts[name] = facts[name] | value if isinstance(value, dict) else value
    (target_copy / file).write_text(json.dumps(facts))
    options = ["--chat"] if "chat_template" in changes else []
    refused(command("--target", target_copy, *options), str(target_copy), *words)


def test_missing_tokenizer_is_refused(command: Run, target_copy: Path) -> None:
    (target_copy / "tokenizer.json").unlink()
    refused(command("--target", target_copy), "tokenizer", str(target_copy))


def test_target_with_a_missing_tensor_is_refused_and_not_made_up(command: Run, target_copy: Path) -> None:
    path = next(target_copy.glob("model-00002*.safetensors"))
    tensors = load_file(path)
    name = sorted(n for n in tensors if "mlp" in n)[0]
    del tensors[name]
    save_file(tensors, path, metadata={"format": "pt"})
    index = target_copy / "model.safetensors.index.json"
    facts = json.loads(index.read_text())
    del facts["weight_map"][name]
    index.write_text(json.dumps(facts))
    refused(command("--target", target_copy), name, "no such tensor")


def test_truncated_target_is_refused(command: Run, target_copy: Path) -> None:
    path = next(target_copy.glob("model-00002*.safetensors"))
    path.write_bytes(path.read_bytes()[:100_000])
    refused(command("--target", target_copy), f"{path}: found 100000 bytes", "truncated")


def test_target_with_a_tensor_of_another_shape_is_refused_by_name(command: Run, target_copy: Path) -> None:
    edit_config(target_copy, intermediate_size=2048)
    name = "model.layers.0.mlp.down_proj.weight"
    refused(
        command("--target", target_copy), f"{target_copy}: {name}: found shape [256, 1024], wanted shape [256, 2048]"
    )


@pytest.mark.parametrize("content", ["{", "[]", "[" * 100_000])
def test_malformed_config_of_the_target_is_refused(command: Run, target_copy: Path, content: str) -> None:
    (target_copy / "config.json").write_text(content)
    refused(command("--target", target_copy), "config.json", "JSON")


def test_text_config_of_the_target_that_is_no_object_is_refused(command: Run, target_copy: Path) -> None:
    edit_config(target_copy, text_config=[1])
    refused(command("--target", target_copy), "config.json: text_config: found list, wanted a JSON object")


def test_nan_in_the_target_is_an_error_that_names_it(command: Run, target_copy: Path) -> None:
    path = next(target_copy.glob("model-00002*.safetensors"))
    tensors = load_file(path)
    name = sorted(n for n in tensors if "mlp" in n)[0]
    tensors[name].view(-1)[7] = float("nan")
    save_file(tensors, path, metadata={"format": "pt"})
    refused(command("--target", target_copy), f"{target_copy}: {name}: found 1 NaN or infinite elements")


def test_drafter_is_read_from_its_own_folder(command: Run, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(DRAFTER, tmp_path / "mine"))
    code, out, _ = command(*FEW, "--drafter", folder, "--json", "--no-compare")
    assert (code, json.loads(out)["drafter"]) == (0, str(folder))
