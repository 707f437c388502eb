"""The pair in the package is what its card says."""

import json
import re
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoTokenizer

from monodraft.checkpoint import audit_folder
from monodraft.checkpoint.shipped import DRAFTER, PAIR, TARGET
from monodraft.training.configs import minimax_m31_config, qwen3_config
from monodraft.training.corpus import is_held_out
from monodraft.training.target_model import TargetRecipe

pytestmark = pytest.mark.numbers
MEGABYTE = 1_000_000


def test_sizes_stay_within_the_limits() -> None:
    sizes = [path.stat().st_size for path in PAIR.rglob("*") if path.is_file()]
    assert sum(sizes) <= 40 * MEGABYTE
    assert max(sizes) <= 15 * MEGABYTE


def test_drafters_are_those_of_the_recipe() -> None:
    assert audit_folder(DRAFTER).config == minimax_m31_config(TargetRecipe())
    assert audit_folder(PAIR / "drafter-qwen3").config == qwen3_config(TargetRecipe())


@pytest.mark.parametrize("name", ["drafter", "drafter-qwen3"])
def test_drafters_pass_the_audit(name: str) -> None:
    audit_folder(PAIR / name)


def test_target_is_a_stock_model_of_the_recipe() -> None:
    config = AutoConfig.from_pretrained(TARGET)
    recipe = TargetRecipe()
    assert config.architectures == ["Qwen3ForCausalLM"]
    assert (config.hidden_size, config.num_hidden_layers, config.vocab_size) == (
        recipe.hidden_size,
        recipe.num_layers,
        recipe.vocab_size,
    )


def test_prompts_are_held_out_and_encode() -> None:
    prompts = json.loads((PAIR / "prompts.json").read_text())
    listed = json.loads((PAIR / "training.json").read_text())["corpus"]["held_out_files"]
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    assert len(prompts) >= 20
    for prompt in prompts:
        assert is_held_out(prompt["path"])
        assert prompt["path"] in listed
        assert tokenizer.decode(tokenizer(prompt["text"])["input_ids"][1:]) == prompt["text"]


def test_card_states_what_the_training_wrote() -> None:
    card = (PAIR / "README.md").read_text()
    facts = json.loads((PAIR / "training.json").read_text())
    assert f"{facts['target']['bits_per_byte']:.4f}" in card
    assert f"{facts['corpus']['training_tokens']:,}" in card
    for name in ("drafter", "drafter-qwen3"):
        measured = facts[name]["held_out_acceptance_in_training_form"]
        row = re.search(rf"^\| {name} \| (\d\.\d\d) \|(.*)\|$", card, re.MULTILINE)
        assert row is not None
        assert row[1] == f"{measured['tokens_per_round']:.2f}"
        assert [cell.strip() for cell in row[2].split("|")] == [f"{100 * share:.1f} %" for share in measured["by_slot"]]
        assert f"{facts[name]['recipe']['steps']} x" in card


@pytest.mark.parametrize("numerics", ["exact", "bf16"])
def test_card_states_what_the_loop_measured(numerics: str) -> None:
    results = Path(__file__).parents[2] / "benchmarks" / "results"
    measured = json.loads((results / f"speculation-{numerics}-cpu.json").read_text())
    assert len(measured["prompts"]) == 32
    assert measured["tokens_per_round"] >= 2.5
    shares = [f"{100 * accepted / measured['rounds']:.1f} %" for accepted in measured["accepted_by_position"]]
    cells = [numerics, str(measured["rounds"]), f"{measured['tokens_per_round']:.2f}", *shares]
    assert f"| {' | '.join(cells)} |" in (PAIR / "README.md").read_text()
