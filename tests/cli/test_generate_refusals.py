"""`monodraft generate` and what it cannot use: exit code 2, nothing on standard output, the place named."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from monodraft.checkpoint.shipped import DRAFTER, TARGET

pytestmark = pytest.mark.numbers

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
FEW = ("--max-new-tokens", "12")

Run = Callable[..., tuple[int, str, str]]


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
