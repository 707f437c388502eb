"""`monodraft inspect` and `monodraft pack` as a user meets them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from monodraft.checkpoint import audit_folder
from monodraft.cli import app
from monodraft.cli.sizes import human_bytes, parse_bytes
from monodraft.errors import InputError
from monodraft.testing import random_config, random_weights, write_checkpoint, write_target

pytestmark = pytest.mark.numbers


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    config = random_config("minimax-m31", head_dim=64)
    weights = random_weights(config)
    write_checkpoint(tmp_path / "drafter", config, weights)
    write_target(tmp_path / "target", config, weights)
    return tmp_path / "drafter", tmp_path / "target"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Exit code of the command line."""
    monkeypatch.setattr(sys, "argv", ["monodraft", *map(str, arguments)])
    monkeypatch.setenv("COLUMNS", "110")
    try:
        app.main()
    except SystemExit as leave:
        return int(leave.code or 0)
    return 0


def test_inspect_says_all_that_it_should(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(monkeypatch, "inspect", pair[0], "--target", pair[1], "--ranks", 4, "--gpu", "h200", "--values")
    assert code == 0
    out = capsys.readouterr().out
    for words in (
        "43 tensors",
        "no NaN",
        "the target fits: model.embed_tokens.weight and lm_head.weight",
        "DSparkMiniMaxDraftModel",
        "sliding window of 64 tokens, both ways",
        "context fc",
        "Markov w2",
        "4 h200",
        "4.37 TB/s",
        "measured by this project",
    ):
        assert words in out, words


def test_inspect_json_is_one_object_that_adds_up(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "inspect", pair[0], "--json", "--ranks", 2) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["config"]["family"] == "minimax-m31"
    assert facts["from_target"] == ["embed", "lm_head"]
    assert facts["bytes"] == sum(tensor["bytes"] for tensor in facts["tensors"].values())
    assert facts["ranks"] == 2
    once = sum(s["held"] if s["stage"] in facts["floor"]["cached"] else s["read"] for s in facts["stages"])
    assert facts["floor"]["bytes_read"] == once
    assert facts["floor"]["spec_us"] == pytest.approx(once / facts["gpu"]["spec_tb_s"] / 1e6)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ranks", 3], "ranks: found 3"),
        (["--gpu", "tpu"], "gpu: found tpu"),
        (["--target", "/nowhere"], "/nowhere/config.json"),
        (["--ranks", 8], "num_heads"),
    ],
)
def test_inspect_mistakes_leave_with_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[object],
    words: str,
) -> None:
    config = random_config("minimax-m31", num_heads=4, head_dim=64)
    write_checkpoint(tmp_path / "drafter", config, random_weights(config))
    assert run(monkeypatch, "inspect", tmp_path / "drafter", *arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""


def test_inspect_and_pack_refuse_a_truncated_file_with_2(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = pair[0] / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    for arguments in (["inspect", pair[0]], ["pack", pair[0], pair[0].parent / "packed"]):
        assert run(monkeypatch, *arguments) == 2
        assert f"{file}: found" in capsys.readouterr().err
    assert not (pair[0].parent / "packed").exists()


def test_inspect_prints_brackets_of_messages_as_they_are(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Messages go through rich, which takes words in brackets for styles."""
    facts = json.loads((pair[0] / "config.json").read_text())
    facts["text_config"]["dspark_markov_head_type"] = "[bold]"
    (pair[0] / "config.json").write_text(json.dumps(facts))
    assert run(monkeypatch, "inspect", pair[0]) == 2
    assert '"[bold]"' in capsys.readouterr().err


def add_empty_tensor(file: Path, name: str) -> None:
    """A tensor of no bytes, of any name, at the end of a safetensors file."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, payload = json.loads(data[8 : 8 + length]), data[8 + length :]
    header[name] = {"dtype": "U8", "shape": [0], "data_offsets": [len(payload)] * 2}
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + payload)


def test_names_of_folders_and_tensors_are_text_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder may be called like a style, a tensor like an escape sequence or like half a character."""
    config = random_config("qwen3")
    monkeypatch.chdir(tmp_path)
    source, packed = Path("a[bold]b[", "c]"), Path("a[bold]b[", "d]")  # rich would take [/c] for the end of a style
    write_checkpoint(source, config, random_weights(config))
    assert run(monkeypatch, "inspect", source) == 0
    assert "a[bold]b[/c]" in capsys.readouterr().out
    assert run(monkeypatch, "pack", source, packed) == 0
    assert "a[bold]b[/d]: 14 linears" in capsys.readouterr().out
    add_empty_tensor(source / "model.safetensors", "\x1b[2J\ud800.t2d")
    assert run(monkeypatch, "inspect", source) == 0
    assert r"\x1b[2J\ud800.t2d is not read" in capsys.readouterr().out
    add_empty_tensor(source / "model.safetensors", "\x1b[2J\ud800")
    assert run(monkeypatch, "inspect", source) == 2
    assert r"\x1b[2J\ud800: found an unexpected" in capsys.readouterr().err


def test_pack_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = random_config("qwen3")
    write_checkpoint(tmp_path / "drafter", config, random_weights(config))
    packed = tmp_path / "packed"
    assert run(monkeypatch, "pack", tmp_path / "drafter", packed, "--json", "--max-shard-size", "500kB") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["quantised"] == 14
    assert len(facts["files"]) > 1
    assert audit_folder(packed).config.mxfp8_linears
    assert run(monkeypatch, "pack", tmp_path / "drafter", packed) == 2
    assert "--force" in capsys.readouterr().err
    assert run(monkeypatch, "pack", tmp_path / "drafter", packed, "--force") == 0
    assert "14 linears to MXFP8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "size"), [("5GB", 5 * 10**9), ("500 MB", 5 * 10**8), ("2GiB", 2 << 30), ("123", 123), ("1.5k", 1500)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "big", "-1GB", "0", "5 XB", "iB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(InputError, match="--max-shard-size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (12_345_678, "12.3 MB"),
        (2_302_000_000, "2.30 GB"),
        (10**13, "10000 GB"),
    ],
)
def test_human_bytes(count: int, text: str) -> None:
    assert human_bytes(count) == text


def test_inspect_and_pack_do_without_torch() -> None:
    """Importing torch alone costs 200 MB or more; these two commands promise little memory."""
    program = (
        "import sys\nfrom monodraft.cli import inspect, pack\n"
        "assert not {'torch', 'transformers'} & sys.modules.keys(), 'imported'"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_standard_output_that_is_full_or_closed_is_no_defect_of_ours(options: list[str]) -> None:
    """A full disk: one line and 2. A reader that has seen enough: nothing. Both also for what is written at the end."""
    command = [sys.executable, "-m", "monodraft.cli.app", "inspect", *options]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "error: standard output: No space left on device\n")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_that_standard_output_cannot_encode_are_replaced(encoding: str) -> None:
    command = [sys.executable, "-m", "monodraft.cli.app", "inspect"]
    done = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"? 97 tensors" in done.stdout
