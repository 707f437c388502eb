"""The plan as a picture: stages down the page, CTAs across, hand-offs as arrows. Plain SVG."""

from __future__ import annotations

from html import escape

from monodraft.plan.cost import Projection, StageCost
from monodraft.plan.step import Plan, Repeat, Stage

ROW, TOP, LEFT, WIDTH, RIGHT = 44, 96, 190, 560, 470
COLOURS = {Repeat.ONCE: "#4c78a8", Repeat.LAYER: "#54a24b", Repeat.SLOT: "#e45756"}
STYLE = "font-family:sans-serif;font-size:12px"


def svg(plan: Plan, costs: list[StageCost], total: Projection, gpu: str) -> str:
    """An SVG document: one row a stage, its busy CTAs as a bar, arrows for what its waits wait for, bytes beside it."""
    stages = plan.stages
    height = TOP + ROW * len(stages) + 40
    places = {stage.name: TOP + ROW * index for index, stage in enumerate(stages)}
    by_name = {cost.stage: cost for cost in costs}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + RIGHT}" height="{height}" style="{STYLE}">',
        '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">'
        '<path d="M0,0 L7,3 L0,6 z" fill="#444"/></marker></defs>',
        f'<rect width="100%" height="{height}" fill="white"/>',
        *_title(plan, total, gpu),
    ]
    for stage in stages:
        parts += _row(plan, stage, places[stage.name], by_name[stage.name])
    for stage in stages:
        parts += _arrows(stage, places)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" {more}>{escape(text)}</text>'


def _title(plan: Plan, total: Projection, gpu: str) -> list[str]:
    shape = plan.shape
    lines = (
        f"{shape.config.family} on {shape.ranks} ranks x {shape.ctas} CTAs,"
        f" {shape.requests} requests x {shape.block} rows, up to {shape.context_rows} context rows",
        f"a rank and step: {total.weight_bytes / 1e6:.1f} MB of weights, {total.kv_bytes / 1e6:.2f} MB of K/V,"
        f" {total.hand_offs} hand-offs",
        f"bandwidth floor {total.bytes_us:.0f} us at {total.tb_s} TB/s ({gpu}); with 2 to 5 us a hand-off, none hidden:"
        f" {total.least_us:.0f} to {total.most_us:.0f} us. Projected, not measured.",
    )
    return [
        _text(12, 22 + 20 * index, line, 'font-weight="bold"' if not index else "") for index, line in enumerate(lines)
    ]


def _row(plan: Plan, stage: Stage, y: int, cost: StageCost) -> list[str]:
    """Name, bar over the owners among all CTAs, and figures."""
    times = {Repeat.ONCE: "", Repeat.LAYER: f" x {plan.shape.layers}", Repeat.SLOT: f" x {plan.shape.block}"}[
        stage.repeat
    ]
    bar = max(3.0, WIDTH * stage.owners / plan.shape.ctas)
    moved = cost.weight_bytes + cost.kv_bytes
    figures = f"{stage.tasks} x {stage.unit} on {stage.owners} CTA{'s' if stage.owners != 1 else ''}"
    writes = ", ".join(name for name in stage.writes if not name.endswith(".scales"))
    return [
        _text(12, y + 15, stage.name + times),
        f'<rect x="{LEFT}" y="{y}" width="{WIDTH}" height="22" fill="#eee"/>',
        f'<rect x="{LEFT}" y="{y}" width="{bar:.1f}" height="22" fill="{COLOURS[stage.repeat]}"/>',
        _text(LEFT + WIDTH + 12, y + 10, f"{figures}, {moved / 1e6:.2f} MB"),
        _text(LEFT + WIDTH + 12, y + 25, f"writes {writes}" if writes else "", 'fill="#666"'),
    ]


def _arrows(stage: Stage, places: dict[str, int]) -> list[str]:
    """One arrow a wait, from the producer's row; backward ones (the next layer, the next slot) bow to the left."""
    lines = []
    for index, wait in enumerate(stage.waits):
        x = LEFT + 24 + 30 * index
        start, end = places[wait.producer] + 22, places[stage.name]
        colour = "#b279a2" if wait.poll else "#444"
        shape = f"M{x},{start} L{x},{end}"
        if start == end + 22:
            shape = f"M{LEFT},{end + 3} C{LEFT - 46},{end - 6} {LEFT - 46},{end + 28} {LEFT},{end + 19}"
        elif start > end:
            shape = f"M{LEFT},{start - 11} C{LEFT - 46},{start - 11} {LEFT - 46},{end + 11} {LEFT},{end + 11}"
        lines.append(f'<path d="{shape}" stroke="{colour}" fill="none" marker-end="url(#head)"/>')
        if start <= end:
            lines.append(_text(x + 6, end - 6, wait.region, f'fill="{colour}" font-size="10"'))
    return lines
