"""`monodraft plan`: the one-launch draft step of a drafter as data, as a table and as a picture. Needs no GPU."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from monodraft.checkpoint import read_config
from monodraft.checkpoint.shipped import DRAFTER
from monodraft.cli.writing import write_text
from monodraft.plan.cost import layer_projection, projection, stage_costs
from monodraft.plan.device import check_device
from monodraft.plan.drawing import svg
from monodraft.plan.gpus import find_gpu
from monodraft.plan.layout import exchange_block, local_block, weight_block
from monodraft.plan.lds import LDS_BYTES, lds_map
from monodraft.plan.order import check_order
from monodraft.plan.published import VLLM_MONO
from monodraft.plan.regions import regions
from monodraft.plan.shape import StepShape
from monodraft.plan.step import Plan


def plan_command(
    folder: Annotated[Path, typer.Argument(help="Folder of the drafter; only its config.json is read.")] = DRAFTER,
    ranks: Annotated[int, typer.Option(help="Tensor-parallel ranks: 1, 2, 4 or 8.")] = 4,
    ctas: Annotated[int, typer.Option(help="CTAs a rank, one a compute unit; an MI355X has 256.")] = 256,
    requests: Annotated[int, typer.Option(help="Requests drafted together; requests x block is at most 16 rows.")] = 1,
    context: Annotated[int, typer.Option(help="Committed positions of each request, for bytes and time.")] = 4096,
    gpu: Annotated[str, typer.Option(help="GPU whose bandwidth the projected time uses.")] = "mi355x",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: stages, regions, LDS, blocks, cost.")] = False,
    picture: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Draw the plan to this file.")] = None,
) -> None:
    """Print who does what in the one-launch draft step, every hand-off, and what a step costs on paper.

    The order of all stages on all CTAs of all ranks is checked first: no wait can deadlock while all CTAs are resident,
    and nothing is overwritten that somebody may still read. Times are projected from bytes and stated assumptions.
    """
    config = read_config(folder)
    positions = min(config.max_positions, max(8192, context + config.block_size))
    shape = StepShape(config, ranks=ranks, ctas=ctas, requests=requests, positions=positions)
    check_device(shape, ctas)
    plan = Plan(shape)
    speed = find_gpu(gpu)
    checked = check_order(plan)
    costs, total = stage_costs(plan, context), projection(plan, context, speed)
    layer = layer_projection(plan, context, speed)
    if picture is not None:
        write_text(picture, svg(plan, costs, total, speed.name))
    if as_json:
        print(json.dumps(described(plan, costs, total, layer, checked), indent=1))
        return
    console = Console()
    console.print(_stages(plan, costs))
    console.print(_regions(plan))
    console.print(_layers(plan, layer, speed.name))
    for line in _summary(plan, total, checked, speed.name):
        console.print(line, highlight=False)
    if picture is not None:
        console.print(f"drawn to {picture}", markup=False)


def described(plan: Plan, costs: list[Any], total: Any, layer: Any, checked: int) -> dict[str, Any]:
    """The plan for a script."""
    shape = plan.shape
    return {
        "ranks": shape.ranks,
        "ctas": shape.ctas,
        "requests": shape.requests,
        "rows": shape.rows,
        "context_rows": shape.context_rows,
        "stages": [asdict(stage) for stage in plan.stages],
        "sites": {name: first for name, (first, _) in plan.sites.items()},
        "regions": [asdict(region) for region in regions(plan)],
        "lds_words": asdict(lds_map(shape)),
        "weights": [asdict(array) for array in weight_block(shape).arrays],
        "weight_layer_bytes": weight_block(shape).layer_bytes,
        "bytes": {
            "weights": weight_block(shape).nbytes,
            "local": local_block(shape).nbytes,
            "exchange": exchange_block(shape).nbytes,
        },
        "cost": [asdict(cost) for cost in costs],
        "projection": asdict(total),
        "layer": asdict(layer),
        "published_layers": [asdict(each) for each in VLLM_MONO],
        "ordered_pairs": checked,
    }


def _stages(plan: Plan, costs: list[Any]) -> Table:
    table = Table(title="stages, in order", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("stage", "runs", "tasks", "CTAs", "waits for", "writes", "MB"):
        table.add_column(name, justify="right" if name in ("runs", "CTAs", "MB") else "left")
    for stage, cost in zip(plan.stages, costs, strict=True):
        waits = ", ".join(f"{wait.region} of {wait.producer}" for wait in stage.waits)
        writes = ", ".join(name for name in stage.writes if not name.endswith(".scales"))
        moved = (cost.weight_bytes + cost.kv_bytes) / 1e6
        row = (stage.name, str(cost.runs), f"{stage.tasks} x {stage.unit}", str(stage.owners), waits, writes)
        table.add_row(*row, f"{moved:.2f}")
    return table


def _regions(plan: Plan) -> Table:
    table = Table(title="regions", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("region", "written by", "read by", "KB x sets", "scope"):
        table.add_column(name, justify="right" if name == "KB x sets" else "left")
    for region in regions(plan):
        size = f"{region.words * 4 / 1024:.1f} x {region.sets}"
        owners, readers = ", ".join(region.owners), ", ".join(region.readers) or "the host"
        table.add_row(region.name, owners, readers, size, region.scope)
    return table


def _layers(plan: Plan, layer: Any, gpu: str) -> Table:
    table = Table(
        title="one layer, side by side", box=SIMPLE_HEAD, padding=(0, 1, 0, 0),
        caption="ours projected from bytes and hand-offs, vLLM's stated in its source: other weights, other attention",
    )  # fmt: skip
    for name in ("layer", "ranks", "rows", "MB a rank", "hand-offs", "us"):
        table.add_column(name, justify="left" if name == "layer" else "right")
    shape, moved = plan.shape, (layer.weight_bytes + layer.kv_bytes) / 1e6
    ours = (f"this plan ({gpu})", str(shape.ranks), str(shape.rows), f"{moved:.1f}", str(layer.hand_offs))
    table.add_row(*ours, f"{layer.least_us:.1f} to {layer.most_us:.1f}")
    for each in VLLM_MONO:
        us = f"{each.least_us:.1f} to {each.most_us:.1f}"
        table.add_row(each.kernel, "4", str(each.tokens), "not stated", "not stated", us)
    return table


def _summary(plan: Plan, total: Any, checked: int, gpu: str) -> list[str]:
    shape = plan.shape
    return [
        f"order: no cycle; {checked} pairs of a read and the next write in order ({shape.ranks} ranks, two launches)",
        f"LDS {lds_map(shape).nbytes / 1024:.1f} of {LDS_BYTES // 1024} KB a CTA; a rank holds"
        f" {weight_block(shape).nbytes / 1e6:.1f} MB of weights, {local_block(shape).nbytes / 1e6:.2f} MB of scratch,"
        f" {exchange_block(shape).nbytes / 1e6:.2f} MB that peers write",
        f"a step reads {total.weight_bytes / 1e6:.1f} MB of weights and {total.kv_bytes / 1e6:.2f} MB of K/V a rank:"
        f" {total.bytes_us:.0f} us at {total.tb_s} TB/s ({gpu})",
        f"{total.hand_offs} hand-offs of 2 to 5 us, none hidden: {total.least_us:.0f} to {total.most_us:.0f} us."
        " Projected, not measured.",
    ]
