"""Train the shipped pair: `python -m monodraft.training --out FOLDER` (one H200: minutes; a CPU: days).

Writes FOLDER/target, FOLDER/drafter (M3.1 family), FOLDER/drafter-qwen3 (sibling), FOLDER/prompts.json (held-out
excerpts) and FOLDER/training.json, the facts that the model card states.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import PreTrainedModel

from monodraft.checkpoint import save_drafter
from monodraft.checkpoint.config import DraftConfig
from monodraft.errors import Fault, InputError, MonodraftError
from monodraft.training.acceptance import greedy_texts, measure_acceptance
from monodraft.training.configs import minimax_m31_config, qwen3_config
from monodraft.training.corpus import read_corpus
from monodraft.training.excerpts import held_out_excerpts
from monodraft.training.export import export_weights
from monodraft.training.schedule import Report
from monodraft.training.self_text import write_texts
from monodraft.training.target_model import TargetRecipe, bits_per_byte, train_target
from monodraft.training.text import TokenizedText, held_out_prompts, tokenize
from monodraft.training.train_drafter import DrafterRecipe, mixed_batches, train_drafter
from monodraft.training.vocabulary import train_tokenizer

PARTS = ("target", "drafter", "drafter-qwen3", "prompts.json", "training.json")
"""What is written."""

START = time.monotonic()


def say(message: str) -> None:
    print(f"[{time.monotonic() - START:6.1f} s] {message}", flush=True)


def reporter(name: str, losses: dict[str, float]) -> Report:
    """A callback that prints a training's losses and keeps the latest in `losses`."""

    def report(step: int, values: dict[str, float]) -> None:
        losses.update(values)
        say(f"{name} step {step}: " + ", ".join(f"{k} {v:.4f}" for k, v in values.items()))

    return report


def train_and_write_target(
    text: TokenizedText, recipe: TargetRecipe, tokenizer: Any, folder: Path, device: torch.device
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Train, round to bf16, write; the model returned is the rounded one, so drafters learn what ships."""
    start, losses = time.monotonic(), dict[str, float]()
    model = train_target(text.train.to(device), recipe, device, reporter("target", losses))
    seconds = time.monotonic() - start
    torch.nn.Module.to(model, torch.bfloat16)
    bits = bits_per_byte(model, text.held_out, text.held_out_bytes, recipe.sequence, device)
    say(f"target: held-out {bits:.4f} bits per byte")
    model.save_pretrained(folder, max_shard_size="12MB")
    tokenizer.save_pretrained(folder)
    facts = {"recipe": asdict(recipe), "seconds": seconds, "final_loss": losses["loss"], "bits_per_byte": bits}
    return model, facts


def train_and_write_drafter(
    target: PreTrainedModel,
    config: DraftConfig,
    recipe: DrafterRecipe,
    batches: Any,
    texts: torch.Tensor,
    prompt: int,
    folder: Path,
    device: torch.device,
) -> dict[str, Any]:
    """Train a drafter for the (frozen) target, measure it on greedy continuations of held-out prompts, write it."""
    start, losses = time.monotonic(), dict[str, float]()
    name = config.family.value
    model = train_drafter(target, config, batches, recipe, device, reporter(name, losses))
    seconds = time.monotonic() - start
    acceptance = measure_acceptance(model, target, texts, prompt)
    say(f"{name}: {acceptance}")
    save_drafter(folder, config, export_weights(model))
    return {
        "recipe": asdict(recipe),
        "seconds": seconds,
        "final_losses": losses,
        "held_out_acceptance_in_training_form": asdict(acceptance),
    }


def usable_device(name: str) -> torch.device:
    """The torch device of that name. Raises `InputError` with the reason where this machine does not have it."""
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            "the device cannot be used", [Fault("--device", f"{name}: {reason}", "cuda or cpu")]
        ) from error


def make_folder(out: Path) -> None:
    """Make the folder of the pair. Raises `InputError` where it cannot be, or holds a part of a pair already."""
    there = [name for name in PARTS if (out / name).exists()]
    if there:
        raise InputError("the folder holds a pair", [Fault(str(out), ", ".join(there), "none of them")])
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("cannot write", [Fault(str(out), error.strerror or str(error), "a folder")]) from error


def main(
    out: Annotated[Path, typer.Option(help="Folder to write; must not hold a pair yet.")],
    stdlib: Annotated[Path | None, typer.Option(help="Sources to train on; default: this Python's library.")] = None,
    target_steps: Annotated[int, typer.Option(help="Steps of the target.", min=1)] = TargetRecipe.steps,
    drafter_steps: Annotated[int, typer.Option(help="Steps of the M3.1 drafter.", min=1)] = DrafterRecipe.steps,
    sibling_steps: Annotated[int, typer.Option(help="Steps of the Qwen3 drafter; 0 leaves it out.", min=0)] = 1788,
    device: Annotated[str, typer.Option(help="Torch device.")] = "cuda",
) -> None:
    """Train the target and its drafters on the sources of Python's standard library."""
    where = usable_device(device)
    make_folder(out)
    torch.backends.cuda.matmul.allow_tf32 = True
    recipe = TargetRecipe(steps=target_steps)
    sources = read_corpus(stdlib)
    tokenizer = train_tokenizer((s.text for s in sources if not s.held_out), recipe.vocab_size)
    text = tokenize(sources, tokenizer)
    say(f"{len(sources)} files, {len(text.train):,} training tokens, {len(text.held_out)} files held out")

    (out / "prompts.json").write_text(json.dumps(held_out_excerpts(sources), indent=1) + "\n")
    target, target_facts = train_and_write_target(text, recipe, tokenizer, out / "target", where)
    stream = text.train.to(where)
    own = write_texts(target, stream, 1024, 1024)
    say(f"target wrote {own.numel():,} tokens")
    prompt = 64
    texts = greedy_texts(target, held_out_prompts(text, 64, prompt).to(where), 256)

    facts: dict[str, Any] = {
        "corpus": {
            "files": len(sources),
            "bytes": sum(len(s.text.encode()) for s in sources),
            "training_tokens": len(text.train),
            "held_out_files": [s.path for s in sources if s.held_out],
            "python": platform.python_version() if stdlib is None else f"sources given by --stdlib ({stdlib.name})",
        },
        "device": torch.cuda.get_device_name() if where.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "target": target_facts,
    }
    plans = [("drafter", minimax_m31_config(recipe), DrafterRecipe(steps=drafter_steps))]
    if sibling_steps:
        plans.append(("drafter-qwen3", qwen3_config(recipe), DrafterRecipe(steps=sibling_steps, seed=4)))
    for name, config, plan in plans:
        batches = mixed_batches(stream, own, plan)
        facts[name] = train_and_write_drafter(target, config, plan, batches, texts, prompt, out / name, where)
        (out / "training.json").write_text(json.dumps(facts, indent=1))
    say("done")


if __name__ == "__main__":
    try:
        typer.run(main)
    except MonodraftError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
