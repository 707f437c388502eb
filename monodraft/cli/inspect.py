"""`monodraft inspect`: what a checkpoint is, whether its tensors are right, what a rank reads, how fast that can be."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from monodraft.checkpoint.audit import Audit, audit_folder
from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.finite import check_finite
from monodraft.checkpoint.shipped import DRAFTER, TARGET
from monodraft.checkpoint.stored import StoredTensor
from monodraft.checkpoint.target import shared_tensors
from monodraft.cli.sizes import human_bytes, plural
from monodraft.errors import visible
from monodraft.plan.bytes import Floor, StageBytes, bandwidth_floor, stage_bytes
from monodraft.plan.gpus import GPUS, Gpu, find_gpu


def _windows(config: DraftConfig) -> str:
    kinds = set(config.windows)
    if kinds == {None}:
        return "full attention"
    if len(kinds) == 1:
        return f"sliding window of {kinds.pop()} tokens, both ways"
    return "by layer: " + ", ".join("full" if window is None else str(window) for window in config.windows)


def _confidence(config: DraftConfig) -> str:
    if not config.has_confidence:
        return "none"
    return "hidden state and Markov embedding" if config.confidence_with_markov else "hidden state"


def config_rows(config: DraftConfig) -> list[tuple[str, str]]:
    """The config in words, one fact a row."""
    linears = "MXFP8 (e4m3, one e8m0 scale per 32)" if config.mxfp8_linears else "as the file has them"
    return [
        ("architecture", f"{config.architecture} ({config.family})"),
        ("layers", f"{config.num_layers}, hidden {config.hidden_size}, FFN {config.ffn_size} ({config.activation})"),
        ("heads", f"{config.num_heads} query, {config.num_kv_heads} K/V, of {config.head_dim}"),
        ("attention", _windows(config)),
        ("RoPE", f"theta {config.rope_theta:g}, {config.rotary_dim} of {config.head_dim} dims, {config.rotary}"),
        ("norm", f"{config.norm}, eps {config.rms_norm_eps:g}"),
        ("block", f"{config.block_size} tokens a round, mask token {config.mask_token_id}"),
        ("features", f"target layers {', '.join(map(str, config.target_layer_ids))}"),
        ("Markov head", f"{config.markov}, rank {config.markov_rank}"),
        ("confidence head", _confidence(config)),
        ("vocabulary", str(config.vocab_size)),
        ("linears", linears),
    ]


def _audit_lines(audited: Audit, target: dict[str, StoredTensor] | None, values: bool) -> list[Text]:
    count, files = len(audited.tensors), len({tensor.path for tensor in audited.tensors.values()})
    amount = f"{count} tensors, {human_bytes(audited.total_bytes)} in {plural(files, 'file')}"
    lines = [Text.assemble(("✓ ", "bold green"), f"{amount}: names, shapes and dtypes are what the config asks for")]
    if values:
        lines.append(Text.assemble(("✓ ", "bold green"), "no NaN and no infinity in any of them"))
    for name, reason in audited.ignored.items():
        lines.append(Text.assemble(("• ", "bold yellow"), f"{visible(name)} is not read: {reason}"))
    if audited.from_target:
        what = " and ".join({"embed": "embedding", "lm_head": "LM head"}[role] for role in audited.from_target)
        if target is None:
            lines.append(Text.assemble(("• ", "bold yellow"), f"{what}: the target's (give --target to check it)"))
    if target is not None:
        names = " and ".join(dict.fromkeys(tensor.name for tensor in target.values()))
        lines.append(Text.assemble(("✓ ", "bold green"), f"the target fits: {names}"))
    return lines


def _stage_table(stages: list[StageBytes], floor: Floor) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("stage")
    table.add_column("bytes on the rank", justify="right")
    table.add_column("reads", justify="right")
    table.add_column("share of the round", justify="right")
    table.add_column()
    for stage in stages:
        cached = stage.stage in floor.cached
        share = (stage.held if cached else stage.read) / floor.bytes_read
        reads = f"{stage.reads}, cached" if cached else str(stage.reads)
        table.add_row(stage.stage, human_bytes(stage.held), reads, f"{share:.1%}", f"[cyan]{'█' * round(28 * share)}")
    table.add_section()
    table.add_row("[bold]read in the round", f"[bold]{human_bytes(floor.bytes_read)}")
    return table


def _floor_table(floor: Floor, gpu: Gpu, ranks: int) -> Table:
    where = f"{ranks} {gpu.name}" if ranks > 1 else gpu.name
    table = Table.grid(padding=(0, 2))
    table.add_row(f"at {gpu.spec_tb_s} TB/s, the data sheet's", f"[bold]{floor.spec_us:,.1f} µs[/] a round on {where}")
    if floor.measured_us is not None:
        table.add_row(
            f"at {gpu.measured_tb_s} TB/s, measured", f"[bold]{floor.measured_us:,.1f} µs[/] a round on {where}"
        )
    return table


def _floor_notes(gpu: Gpu) -> list[Text]:
    return [
        Text(f"bandwidth: {gpu.source}", style="dim"),
        Text("bytes over bandwidth: no hand-off between ranks, no launch, no arithmetic is in it", style="dim"),
    ]


def _render(
    audited: Audit,
    checks: list[Text],
    stages: list[StageBytes],
    floor: Floor,
    gpu: Gpu,
    ranks: int,
    context: int,
) -> RenderableType:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column()
    for row in config_rows(audited.config):
        facts.add_row(*row)
    per_rank = f"One draft round, rank 0 of {ranks}, one request with {context} tokens of context"
    return Group(
        Panel(Group(*checks), title=Text(visible(str(audited.folder))), title_align="left", border_style="green"),
        Panel(facts, title="Drafter", title_align="left", border_style="dim"),
        Panel(_stage_table(stages, floor), title=per_rank, title_align="left", border_style="dim"),
        Panel(
            Group(_floor_table(floor, gpu, ranks), *_floor_notes(gpu)),
            title="Bandwidth floor",
            title_align="left",
            border_style="dim",
        ),
    )


def _as_json(
    audited: Audit,
    target: dict[str, StoredTensor] | None,
    stages: list[StageBytes],
    floor: Floor,
    gpu: Gpu,
    ranks: int,
    context: int,
) -> dict[str, Any]:
    return {
        "folder": str(audited.folder),
        "config": asdict(audited.config),
        "tensors": {
            role: {"name": t.name, "file": t.path.name, "dtype": t.dtype, "shape": list(t.shape), "bytes": t.size}
            for role, t in audited.tensors.items()
        },
        "bytes": audited.total_bytes,
        "ignored": dict(audited.ignored),
        "from_target": list(audited.from_target),
        "target": None if target is None else {role: t.name for role, t in target.items()},
        "ranks": ranks,
        "context": context,
        "stages": [asdict(stage) | {"read": stage.read} for stage in stages],
        "gpu": asdict(gpu),
        "floor": asdict(floor),
    }


def inspect(
    folder: Annotated[
        Path | None, typer.Argument(help="Drafter's folder. The shipped pair where left out.", show_default=False)
    ] = None,
    target: Annotated[
        Path | None, typer.Option(help="Target's folder: checks that the two fit together.", show_default=False)
    ] = None,
    ranks: Annotated[int, typer.Option(help="Tensor-parallel ranks: 1, 2, 4 or 8.")] = 1,
    gpu: Annotated[str, typer.Option(help=f"GPU of the bandwidth floor: {', '.join(GPUS)}.")] = "mi355x",
    context: Annotated[
        int, typer.Option(help="Committed tokens whose K/V a round reads (a window caps them).", min=0)
    ] = 4096,
    values: Annotated[
        bool, typer.Option("--values", help="Read every tensor once and look for NaN and infinity.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Audit a drafter's checkpoint and say what a draft round reads.

    Tensors are compared with the config by their headers alone: a checkpoint of
    any size takes an instant and next to no memory. All faults are listed at
    once; the exit code is then 2.

    Examples:

      monodraft inspect

      monodraft inspect MiniMax-M3.1/dspark --target MiniMax-M3.1 --ranks 4 --gpu mi355x
    """
    if folder is None:
        folder, target = DRAFTER, target or TARGET
    device = find_gpu(gpu)
    audited = audit_folder(folder)
    shared = None if target is None else dict(shared_tensors(target, audited.config))
    stages = stage_bytes(audited.config, ranks, context)
    floor = bandwidth_floor(stages, device)
    if values:
        check_finite([*audited.tensors.values(), *(shared or {}).values()])
    if as_json:
        print(json.dumps(_as_json(audited, shared, stages, floor, device, ranks, context), indent=2))
    else:
        checks = _audit_lines(audited, shared, values)
        Console().print(_render(audited, checks, stages, floor, device, ranks, context))
