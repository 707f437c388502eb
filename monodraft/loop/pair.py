"""A target, its tokenizer and a drafter: read from folders, and checked to belong together before anything runs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.stored import INDEX, SINGLE, stored_tensors
from monodraft.errors import CheckpointError, Fault, InputError, MonodraftError
from monodraft.loop.target import Target

SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id")


def check_folder(folder: Path, what: str) -> dict[str, Any]:
    """The parsed `config.json` of a Hugging Face folder. Raises `InputError` or `CheckpointError` if there is none."""
    if not folder.is_dir():
        found = "a file" if folder.exists() else "nothing there"
        wanted = "a local folder in Hugging Face layout (fetch one with `hf download`)"
        raise InputError(f"no {what}", [Fault(str(folder), found, wanted)])
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"unreadable {what}", [Fault(str(path), _reason(error), "a JSON file")]) from error
    if not isinstance(config, dict):
        raise CheckpointError(f"unreadable {what}", [Fault(str(path), type(config).__name__, "a JSON object")])
    return config


def check_sizes(config: DraftConfig, drafter: Path, target_config: dict[str, Any], target: Path) -> None:
    """Raise `InputError` with every size that keeps the drafter from reading the target's features, judged by the
    two config files alone, before any weight is read."""
    text = target_config.get("text_config") or target_config
    if not isinstance(text, dict):
        place = f"{target / 'config.json'}: text_config"
        raise InputError("unreadable target", [Fault(place, type(text).__name__, "a JSON object")])
    faults = [
        Fault(f"{target / 'config.json'}: {field}", str(text[field]), f"{mine}, the drafter's ({drafter})")
        for field, mine in (("hidden_size", config.hidden_size), ("vocab_size", config.vocab_size))
        if field in text and text[field] != mine
    ]
    layers = text.get("num_hidden_layers")
    if isinstance(layers, int) and config.target_layer_ids and max(config.target_layer_ids) >= layers:
        where = f"{drafter / 'config.json'}: target layer ids"
        faults.append(Fault(where, str(list(config.target_layer_ids)), f"ids under {layers}, the layers of {target}"))
    if faults:
        raise InputError("the drafter was not made for this target", faults)


def load_target(folder: Path, config: DraftConfig, *, dtype: torch.dtype, device: str) -> Target:
    """Load the target for a drafter. Every weight must be in the files: a missing one would be made up at random.

    Raises `CheckpointError` for files that cannot be read or do not hold the model, and for weights that are not
    finite, naming file or tensor.
    """
    check_folder(folder, "target")
    if any((folder / name).is_file() for name in (SINGLE, INDEX)):
        stored_tensors(folder)  # names the file that is truncated or absent; transformers does not
    with foreign_errors("unreadable target", folder, "a causal language model"):
        # Mismatched shapes are then in the report, with their names, instead of an error without.
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, output_loading_info=True, ignore_mismatched_sizes=True
        )
        model, report = loaded
    faults = [
        Fault(f"{folder}: {name}", "no such tensor", "the tensor that the config asks for")
        for name in sorted(report.get("missing_keys") or ())
    ]
    faults += [
        Fault(f"{folder}: {name}", f"shape {list(found)}", f"shape {list(wanted)}")
        for name, found, wanted in sorted(report.get("mismatched_keys") or ())
    ]
    if faults:
        raise CheckpointError("the target's files do not hold the model", faults)
    check_target_weights(model, folder)
    target = Target(model.to(torch.device(device)), config.target_layer_ids, name=str(folder))
    check_stop_ids(target)
    return target


def check_target_weights(model: torch.nn.Module, folder: Path) -> None:
    """Raise `CheckpointError` naming every weight that has NaN or infinite elements."""
    counts = {name: int((~weight.isfinite()).sum()) for name, weight in model.named_parameters()}
    faults = [
        Fault(f"{folder}: {name}", f"{count} NaN or infinite elements", "finite weights")
        for name, count in counts.items()
        if count
    ]
    if faults:
        raise CheckpointError("the target has weights that are not finite", faults)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a target's folder. Raises `CheckpointError` if there is none that can be read."""
    with foreign_errors("unreadable target", folder / "config.json", "a model's config"):
        AutoConfig.from_pretrained(folder, local_files_only=True)  # AutoTokenizer reads it too, and is not to blame
    with foreign_errors("unreadable tokenizer", folder, "tokenizer files"):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return tokenizer


def encode_prompt(tokenizer: PreTrainedTokenizerBase, text: str, chat: bool, folder: Path) -> tuple[int, ...]:
    """Ids of a prompt, through the chat template if `chat`. Raises `InputError` where there is no template,
    `CheckpointError` for a tokenizer or template that fails."""
    encoded: Any
    if chat and not tokenizer.chat_template:
        raise InputError("no chat template", [Fault(f"{folder}: chat_template", "none", "one, or no --chat")])
    with foreign_errors("the prompt cannot be encoded", folder, "a tokenizer that encodes it"):
        if chat:
            messages = [{"role": "user", "content": text}]
            encoded = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
        else:
            encoded = tokenizer(text)
        return tuple(encoded["input_ids"])


def check_stop_ids(target: Target) -> None:
    """Raise `InputError` for ids of the end of the text that the target cannot produce: it would never end."""
    wanted = f"ids 0 to {target.vocab_size - 1}, or none"
    faults = [
        Fault(f"{target.name}: eos_token_id", str(id), wanted)
        for id in target.stop_ids
        if not isinstance(id, int) or isinstance(id, bool) or not 0 <= id < target.vocab_size
    ]
    if faults:
        raise InputError("the target's end of text is outside its vocabulary", faults)


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path, vocab_size: int) -> None:
    """Raise `InputError` for a tokenizer that can yield ids the target does not have. Fewer are normal (padding)."""
    faults = []
    highest = max(tokenizer.get_vocab().values(), default=-1)
    if highest < 0:
        faults.append(Fault(f"{folder}: tokenizer", "an empty vocabulary", "the target's tokenizer"))
    if highest >= vocab_size:
        faults.append(Fault(f"{folder}: tokenizer's highest id", str(highest), f"at most {vocab_size - 1}"))
    for name in SPECIAL_IDS:
        value = getattr(tokenizer, name, None)
        if value is not None and not 0 <= value < vocab_size:
            faults.append(Fault(f"{folder}: tokenizer's {name}", str(value), f"0 to {vocab_size - 1}"))
    if faults:
        raise InputError("the tokenizer does not match the target", faults)


@contextmanager
def foreign_errors(message: str, where: Path, wanted: str) -> Iterator[None]:
    """Raise what another library makes of a bad file as a `CheckpointError`: transformers, safetensors and tokenizers
    raise many kinds, and a panic of tokenizers is no `Exception`."""
    try:
        yield
    except (MonodraftError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise CheckpointError(message, [Fault(str(where), _reason(error), wanted)]) from error


def _reason(error: BaseException) -> str:
    """An error of another library on one line, shortened, for a fault."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = textwrap.shorten(str(error), 300, placeholder=" ...")
    return f"{type(error).__name__}: {text}"
