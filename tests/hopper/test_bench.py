"""`monodraft bench` without a GPU: what it refuses, and what it makes of times."""

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from monodraft.cli import bench
from monodraft.cli.app import app
from monodraft.drafter import Anchor
from monodraft.errors import InputError
from monodraft.hopper.bench import shapes
from monodraft.hopper.bench.baselines import draft_step
from monodraft.hopper.bench.kernels import Timing
from monodraft.reference import ReferenceDrafter
from monodraft.testing import random_config

pytestmark = pytest.mark.numbers

ROWS = [
    Timing("m3.1", 1024, "compile+graph", 2000.0, 0.0),
    Timing("m3.1", 1024, "one-launch bf16", 1000.0, 4370.0),
    Timing("qwen3-8b", 1024, "one-launch bf16", 900.0, 3000.0),
]


def test_ratios_are_to_the_peer_of_the_same_shape_and_context() -> None:
    assert bench.ratios(ROWS) == [1.0, 2.0, None]


def test_figures_and_table() -> None:
    figures = json.loads(json.dumps(bench.as_figures(ROWS)))
    peer, ours, alone = figures["times"]
    assert peer["gigabytes_per_second"] is None
    assert ours["of_ceiling"] == pytest.approx(1.0)
    assert alone["ratio_to_compile"] is None
    console = Console(record=True, width=140)
    console.print(bench.table(ROWS))
    assert "2.00" in console.export_text()


def test_plot_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    bench.draw(ROWS, tmp_path / "times.png")
    assert (tmp_path / "times.png").read_bytes()[:4] == b"\x89PNG"


def test_an_unwritable_path_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        bench.check_folder(tmp_path / "nowhere" / "times.json")


def test_without_a_gpu_the_command_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    result = CliRunner().invoke(app, ["bench", "--shape", "qwen3-8b"])
    assert "GPU: found none" in str(result.exception)


@pytest.mark.parametrize("name", shapes.NAMES)
def test_released_shapes_have_the_sizes_of_the_spec(name: str) -> None:
    config = shapes.config_of(name)
    assert config.num_layers == 5
    assert config.block_size == 7
    assert (name == "m3.1") == (config.windows[0] == 4096)
    assert (name == "gemma4-12b") == (config.head_dim == 512)


@pytest.mark.parametrize("family", ["qwen3", "minimax-m31", "gemma4"])
def test_the_pytorch_step_drafts_as_the_reference(family: str) -> None:
    """Without context rows, up to near ties: bf16 sums of torch against float64."""
    config = random_config(family, head_dim=128, rotary_dim=64)
    weights = shapes.random_weights(config, device="cpu")
    theirs = ReferenceDrafter(config, weights, "exact", max_requests=1)
    theirs.open(0)
    [proposal] = theirs.propose_with_margins([Anchor(0, 11, 0)])
    with torch.no_grad():
        tokens, _ = draft_step(config, weights, 0)()
    same = int((tokens == proposal.draft.tokens).long().cumprod(0).sum())
    assert same >= 3
    assert same == config.block_size or proposal.margins[same] < 0.05


def test_the_pytorch_step_drafts_what_it_should() -> None:
    """On a tiny drafter on the CPU: shapes, ids in the vocabulary, the same result twice."""
    config = random_config("qwen3", head_dim=128, markov_rank=64)
    weights = shapes.random_weights(config, device="cpu")
    torch.manual_seed(0)
    step = draft_step(config, weights, 20)
    with torch.no_grad():
        tokens, confidence = step()
        again, _ = step()
    assert tokens.shape == confidence.shape == (7,)
    assert bool(((tokens >= 0) & (tokens < config.vocab_size)).all())
    assert torch.equal(tokens, again)
