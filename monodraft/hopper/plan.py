"""The stages of a draft step in their order, and the bytes each must read. Plain data, no GPU."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from monodraft.hopper.geometry import Geometry, Linear


class Kind(IntEnum):
    """`enum Kind` of stages/plan.cuh."""

    LINEAR = 0
    PREPARE = 1
    ATTEND = 2
    COMBINE = 3
    MARKOV = 4
    FINISH = 5
    MARKOV_BOUNDED = 6
    SUM = 7
    JOIN = 8


class Out(IntEnum):
    """`enum Out` of stages/plan.cuh: where the result of a linear goes."""

    ROWS = 0
    CONTEXT = 1
    RESIDUAL = 2
    GATED = 3
    LOGITS = 4
    HEADS = 5
    PARTIAL = 6
    DELTA = 7


@dataclass(frozen=True)
class Stage:
    """One stage. `linear` and `out` for linears; `layer` where it belongs to one; `step` of the Markov chain, or which
    exchange between ranks (0 of o, 1 of down).

    `input` names the buffer that a linear reads, `normed` which partial sums of squares scale it ("" for none).
    """

    name: str
    kind: Kind
    linear: Linear | None = None
    out: Out = Out.ROWS
    input: str = ""
    output: str = ""
    normed: str = ""
    layer: int = 0
    step: int = 0

    @property
    def weight_bytes(self) -> int:
        return self.linear.bytes if self.linear else 0


CONTEXT_STAGES = 2
"""Stages before `prepare` that only a step with new context rows needs."""


def stages(geometry: Geometry, *, bounded: bool = False) -> list[Stage]:
    """All stages of a step: context projection, prepare, the layers, LM head, the Markov chain, finish.

    `bounded`: the chain scans w2 in MXFP8 and reads only candidates in bf16 (stages/markov_bounded.cuh); same tokens.
    """
    c, linears = geometry.config, geometry.linears
    plan = [
        Stage("context.fc", Kind.LINEAR, linears["fc"], Out.CONTEXT, "features", "context"),
        Stage("context.kv", Kind.LINEAR, linears["context_kv"], Out.ROWS, "context", "context_kv", "context"),
        Stage("prepare", Kind.PREPARE),
    ]
    for i in range(c.num_layers):
        name = f"layers.{i}."
        plan += [
            Stage(name + "qkv", Kind.LINEAR, linears[name + "qkv"], Out.HEADS, "hidden", "qkv", "hidden", layer=i),
            Stage(name + "attend", Kind.ATTEND, layer=i),
            Stage(name + "combine", Kind.COMBINE, layer=i),
            *_to_residual(geometry, name + "o", "attended", i),
            Stage(
                name + "gate_up",
                Kind.LINEAR,
                linears[name + "gate_up"],
                Out.GATED,
                "hidden",
                "gated",
                "hidden",
                layer=i,
            ),
            *_to_residual(geometry, name + "down", "gated", i),
        ]
    plan.append(Stage("lm_head", Kind.LINEAR, linears["lm_head"], Out.LOGITS, "hidden", "logits", "hidden"))
    kind, linear = (Kind.MARKOV_BOUNDED, "markov_scan") if bounded else (Kind.MARKOV, "markov")
    plan += [Stage(f"markov.{j}", kind, linears[linear], step=j) for j in range(c.block_size)]
    plan.append(Stage("finish", Kind.FINISH))
    return plan


def _to_residual(geometry: Geometry, name: str, source: str, layer: int) -> list[Stage]:
    """A linear whose result is added to the residual; over several ranks partial sums, then their sum. Where it is
    normed first, a join does that and the addition."""
    linear = geometry.linears[name]
    out, output = (Out.DELTA, "delta") if geometry.joins else (Out.RESIDUAL, "hidden")
    if geometry.ranks == 1:
        plan = [Stage(name, Kind.LINEAR, linear, out, source, output, layer=layer)]
    else:
        exchange = int(name.endswith("down"))
        plan = [
            Stage(name, Kind.LINEAR, linear, Out.PARTIAL, source, layer=layer, step=exchange),
            Stage(f"{name}_sum", Kind.SUM, None, out, "", output, layer=layer, step=exchange),
        ]
    if geometry.joins:
        plan.append(Stage(f"{name}_join", Kind.JOIN, None, Out.RESIDUAL, "delta", "hidden", "delta", layer=layer))
    return plan


def step_bytes(geometry: Geometry, *, context: int, new_rows: int = 0, bounded: bool = False) -> dict[str, int]:
    """Bytes that a step must read, at least: layer weights, LM head, Markov (w2 once a slot), K/V of `context`
    positions (or the window), and the context projection where there are new rows."""
    c = geometry.config
    by_name = geometry.linears
    layers = sum(linear.bytes for name, linear in by_name.items() if name.startswith("layers."))
    seen = [context if window is None else min(context, window - 1) for window in c.windows]
    result = {
        "layers": layers,
        "lm_head": by_name["lm_head"].bytes,
        "markov": c.block_size * by_name["markov_scan" if bounded else "markov"].bytes,
        "kv": sum(seen) * 2 * c.kv_size * 2,
    }
    if new_rows:
        result["context"] = by_name["fc"].bytes + by_name["context_kv"].bytes
    return result
