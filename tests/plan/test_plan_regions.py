"""Regions, wait numbers, costs and the drawing of a plan; `monodraft plan`."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from typer.testing import CliRunner

from monodraft.checkpoint.config import MarkovKind
from monodraft.cli.app import app
from monodraft.plan.bytes import stage_bytes
from monodraft.plan.cost import projection, stage_costs
from monodraft.plan.gpus import find_gpu
from monodraft.plan.layout import exchange_block, local_block, weight_block
from monodraft.plan.regions import Scope, regions
from monodraft.plan.shape import StepShape
from monodraft.plan.step import Plan
from monodraft.testing import random_config

pytestmark = pytest.mark.numbers


def plan(**options: object) -> Plan:
    config = random_config(markov=options.pop("markov", MarkovKind.VANILLA))
    return Plan(StepShape(config, **{"ctas": 4, "positions": 512, **options}))  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{}, {"ranks": 4}, {"markov": MarkovKind.RNN}, {"requests": 0}])
def test_every_region_has_memory_a_writer_and_its_readers(options: dict) -> None:
    each = plan(**options)
    arrays = {array.name for block in (local_block(each.shape), exchange_block(each.shape)) for array in block.arrays}
    for region in regions(each):
        assert region.owners
        assert region.name in arrays | {"pool"}
        if region.scope is not Scope.CTA:
            assert region.readers or region.name in ("pool", "flags.pool"), region
    weights = {array.name for array in weight_block(each.shape).arrays}
    assert all(name in weights for stage in each.stages for name in stage.weights)


def test_wait_numbers_are_unique_and_lead_back() -> None:
    each = plan(ranks=2, markov=MarkovKind.GATED)
    seen = {}
    for stage in each.stages:
        for wait in stage.waits:
            first, step = each.sites[f"{stage.name}<{wait.key}"]
            for repeat in range(each.repeats(stage)):
                assert first + repeat * step not in seen
                seen[first + repeat * step] = (stage, wait, repeat)
    assert min(seen) == 1
    assert all(each.place(number) == place for number, place in seen.items())
    with pytest.raises(ValueError, match="no wait"):
        each.place(max(seen) + 1)


def test_bytes_agree_with_the_checkpoint_room_where_both_count() -> None:
    """`plan.bytes` counts from the config alone; the step reads k, v weights once more for the context rows."""
    config = random_config(ffn_size=512)
    each = Plan(StepShape(config, ctas=4, positions=512, ranks=2))
    by_stage = {cost.stage: cost.weight_bytes for cost in stage_costs(each, 100)}
    wanted = {each.stage: each.held for each in stage_bytes(config, 2, 100)}
    norms = config.num_layers * 2 * config.hidden_size
    assert by_stage["fc"] == wanted["context fc"]
    assert by_stage["qkv"] == wanted["q, k, v"]
    assert by_stage["o"] == wanted["o"]
    assert by_stage["gate_up"] == wanted["gate, up"]
    assert by_stage["down"] == wanted["down"]
    assert by_stage["lm_head"] == wanted["LM head"]
    assert by_stage["chain"] == config.block_size * wanted["Markov w2"]
    assert by_stage["post"] == norms


def test_projection_states_its_speed_and_adds_hand_offs() -> None:
    total = projection(plan(), 100, find_gpu("mi355x"))
    assert total.tb_s == 7.2
    assert total.least_us == pytest.approx(total.bytes_us + 2 * total.hand_offs)
    assert total.hand_offs == sum(cost.hand_offs for cost in stage_costs(plan(), 100))


def test_command_prints_draws_and_writes_json(tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    result = CliRunner().invoke(app, ["plan", "--ranks", "2", "--ctas", "8", "--svg", str(picture)])
    assert result.exit_code == 0, result.output
    assert "no cycle" in result.output
    assert "not measured" in result.output
    root = ElementTree.parse(picture).getroot()
    text = " ".join(root.itertext())
    for stage in ("attention", "gate_up", "chain"):
        assert stage in text
    shown = json.loads(CliRunner().invoke(app, ["plan", "--ranks", "2", "--ctas", "8", "--json"]).output)
    assert [each["tokens"] for each in shown["published_layers"]] == [1, 2, 4]
    assert shown["layer"]["hand_offs"] == sum(len(s["waits"]) for s in shown["stages"] if s["repeat"] == "layer")
    assert shown["ranks"] == 2
    assert {stage["name"] for stage in shown["stages"]} >= {"qkv", "o", "post", "down", "lm_head"}
    assert sum(cost["weight_bytes"] for cost in shown["cost"]) == shown["projection"]["weight_bytes"]


def test_command_names_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["plan", "--ctas", "8", "--svg", str(tmp_path / "none" / "plan.svg")])
    assert result.exit_code != 0
    assert "plan.svg" in str(result.exception)
