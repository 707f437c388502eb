"""The kernels of a shape made ready and timed, chain and one launch, bf16 and MXFP8; the PyTorch step beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.weights import DraftWeights
from monodraft.drafter import Anchor, ContextRows
from monodraft.hopper.bench import shapes, timing
from monodraft.hopper.bench.baselines import draft_step
from monodraft.hopper.drafter import HopperDrafter
from monodraft.hopper.plan import step_bytes
from monodraft.hopper.step import Form

PEER = "compile+graph"
"""What the ratios are against: torch.compile captured into a CUDA graph, as serving engines run a drafter."""


def features(config: DraftConfig, rows: int, seed: int, device: torch.device | str = "cuda") -> torch.Tensor:
    """bf16 [rows, m H] random target features on the device."""
    generator = torch.Generator(device=device).manual_seed(seed)
    return torch.randn(rows, config.feature_size, device=device, generator=generator).bfloat16()


def longest(context: int) -> int:
    """The plan's longest context: one build for the checks and for the times at 1k."""
    return max(2048, context + 64)


def prepared(
    config: DraftConfig, weights: DraftWeights, mxfp8: bool, length: int, **options: Any
) -> tuple[HopperDrafter, list[Anchor]]:
    """A drafter with one request of `length` committed positions, projected already, and where it drafts from."""
    ours = HopperDrafter(config, weights, mxfp8=mxfp8, max_requests=2, **options)
    ours.open(0)
    for start in range(0, length, 256):
        ours.commit([ContextRows(0, start, features(config, min(256, length - start), start, ours.workspace.device))])
    anchors = [Anchor(0, 11, length)]
    ours.propose(anchors)
    return ours, anchors


@dataclass(frozen=True)
class Timing:
    """Time of a draft step without new context rows. `megabytes`: what it must read (0 where unknown: PyTorch)."""

    shape: str
    context: int
    variant: str
    microseconds: float
    megabytes: float

    @property
    def gigabytes_per_second(self) -> float:
        return self.megabytes / self.microseconds * 1e3

    @property
    def of_ceiling(self) -> float:
        """Share of the measured read ceiling (`timing.CEILING`)."""
        return self.gigabytes_per_second * 1e9 / timing.CEILING


def timed(ours: HopperDrafter, form: Form, context: int) -> dict[str, Any]:
    """Time of a step by graph replay, and what it reads. StepFailed where a wait ran out."""
    ours.step.form = form
    graph = ours.step.capture(context=False)
    result: dict[str, Any] = dict(timing.microseconds(graph.replay))
    ours.workspace.results()
    total = sum(step_bytes(ours.geometry, context=context, bounded=ours.step.bounded).values())
    rate = total / result["median"]  # megabytes per second
    return result | {"MB": total / 1e6, "GB/s": rate / 1e3, "of ceiling": rate * 1e6 / timing.CEILING}


def pytorch_times(name: str, context: int, weights: DraftWeights) -> dict[str, float]:
    """Microseconds of the PyTorch step: eager and torch.compile, in CUDA graphs."""
    step, medians = draft_step(shapes.config_of(name), weights, context), {}
    with torch.no_grad():
        medians["eager+graph"] = timing.microseconds(timing.captured(step).replay)["median"]
        compiled = torch.compile(step, dynamic=False, options={"triton.cudagraphs": False})
        medians[PEER] = timing.microseconds(timing.captured(compiled).replay)["median"]
    return medians


def compare(name: str, context: int, *, peers: bool) -> Iterator[Timing]:
    """Times of one shape and context with random weights, one after another, in this process and on this GPU."""
    config = shapes.config_of(name)
    weights = shapes.random_weights(config)
    if peers:
        for variant, median in pytorch_times(name, context, weights).items():
            yield Timing(name, context, variant, median, 0.0)
    for mxfp8 in (False, True):
        ours, _ = prepared(config, weights, mxfp8, context, max_positions=longest(context))
        for form in (Form.CHAIN, Form.ONE_LAUNCH):
            result = timed(ours, form, context)
            variant = f"{form.value} {'MXFP8' if mxfp8 else 'bf16'}"
            yield Timing(name, context, variant, result["median"], result["MB"])
        del ours
        torch.cuda.empty_cache()
