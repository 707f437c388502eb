"""Builds, checks and times the Hopper backend in one call on a Hopper GPU; a short table last, JSON under --out.

    PYTHONPATH=. python3 benchmarks/hopper/device_run.py small full time --out results

Sections: `small` (stages, repeats, forms, bounds on small drafters and the shipped pair), `pair` (whole generations
of the shipped pair), `families` (rounds of random drafters of every family), `ranks` (rank groups: 2, 4 and 8 on this
GPU), `full` (released shapes, one step each against the reference), `time` (kernels alone), `compare` (kernels and
PyTorch in one run).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
import checks
import generation
import rank_checks
import sampled_checks
import sampled_run

from monodraft.checkpoint import load_drafter
from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.weights import DraftWeights
from monodraft.hopper.bench import shapes, timing
from monodraft.hopper.bench.kernels import PEER, longest, prepared, pytorch_times, timed
from monodraft.hopper.build import build, toolkit_version
from monodraft.hopper.drafter import HopperDrafter
from monodraft.hopper.geometry import Geometry
from monodraft.hopper.plan import CONTEXT_STAGES
from monodraft.hopper.step import Form
from monodraft.testing import nvidia_m3_config, random_config
from monodraft.testing import random_weights as small_weights

RESULTS: dict[str, object] = {}
START = time.monotonic()
EXTRA = "--extra" in sys.argv
SECTIONS = ("small", "pair", "families", "ranks", "full", "time", "compare")


def record(name: str, value: object) -> None:
    RESULTS[name] = value
    shown = (
        {k: round(v, 5) if isinstance(v, float) else v for k, v in value.items()} if isinstance(value, dict) else value
    )
    print(f"[{time.monotonic() - START:6.1f}] {name}: {shown}", flush=True)


def guarded(name: str, function: checks.Check) -> None:
    """Runs a part and records its result or its traceback; the run goes on."""
    try:
        record(name, function())
    except Exception as error:
        traceback.print_exc()
        record(name, f"FAILED {type(error).__name__}: {str(error)[:400]}")


def shipped(name: str) -> tuple[DraftConfig, DraftWeights]:
    """Config and weights of a drafter of the shipped pair."""
    folder = resources.files("monodraft") / "pair"
    return load_drafter(str(folder / name), str(folder / "target"))


SMALL = {
    "minimax-m31": random_config("minimax-m31", head_dim=128),
    "minicpm5": random_config("minicpm5", head_dim=128),
    "gemma4": random_config("gemma4", head_dim=128, logit_softcap=2.0),  # logits are of order 1: one of 30 hardly shows
    "gemma4, heads of 512": random_config("gemma4", head_dim=512, num_heads=16, num_kv_heads=1),
}
"""Random drafters whose every stage `small` compares."""


def small() -> None:
    """Stages of the shipped drafters and of random ones; forms, repeats and bounds on the shipped M3.1 drafter."""
    drafters: dict[str, tuple[DraftConfig, DraftWeights]] = {
        "pair m3.1": shipped("drafter"),
        "pair qwen3": shipped("drafter-qwen3"),
    }
    for name in SMALL:
        drafters[f"random {name}"] = (SMALL[name], small_weights(SMALL[name]))
    for name, (config, weights) in drafters.items():
        for mxfp8 in (False, True):
            label = f"stages {name} {'w8a16' if mxfp8 else 'bf16'}"
            guarded(label, lambda c=config, w=weights, m=mxfp8: checks.stages(c, w, m, [75]))  # type: ignore[misc]
    config, weights = drafters["pair m3.1"]
    guarded("stages pair m3.1 w8a16, context 900", lambda: checks.stages(config, weights, True, [900]))
    guarded("stages pair m3.1 w8a16, 2 requests", lambda: checks.stages(config, weights, True, [130, 33], rows=16))
    config_512, weights_512 = drafters["random gemma4, heads of 512"]
    guarded(
        "stages gemma4, heads of 512, 2 requests",
        lambda: checks.stages(config_512, weights_512, True, [900, 33], rows=16),
    )
    guarded("stages pair m3.1 bf16, empty context", lambda: checks.stages(config, weights, False, [0]))
    for mxfp8 in (False, True):
        ours, anchors = prepared(config, weights, mxfp8, 600, max_positions=2048, bound_seconds=0.05)
        label = "w8a16" if mxfp8 else "bf16"
        guarded(f"forms agree {label}", lambda o=ours, a=anchors: checks.forms_agree(o, a))  # type: ignore[misc]
        guarded(f"100 repeats differing {label}", lambda o=ours, a=anchors: checks.repeats(o, a))  # type: ignore[misc]
        guarded(f"bounded chain {label}", lambda o=ours: checks.bounded_chain(o, 600))  # type: ignore[misc]
    for name, changed in skewed(weights).items():
        ours, anchors = prepared(config, changed, True, 40, max_positions=2048, bound_seconds=0.05)
        guarded(f"bounded chain, {name}", lambda o=ours: checks.bounded_chain(o, 40))  # type: ignore[misc]
        record(f"first tokens, {name}", ours.propose(anchors)[0].tokens.tolist())
    ours, anchors = prepared(config, weights, True, 600, max_positions=2048, bound_seconds=0.05)
    for cta, stage in (
        (5, CONTEXT_STAGES),
        (131, CONTEXT_STAGES + 1),
        (0, CONTEXT_STAGES + 9),
        (77, len(ours.step.plan) - 4),
    ):
        guarded(f"bound, CTA {cta} stage {stage}", lambda c=cta, s=stage: checks.bounded(ours, anchors, c, s))  # type: ignore[misc]
    guarded("sampled drafts", lambda: sampled_run.run(guarded, config, weights, skewed(weights)))


def prebuild(sections: list[str], names: list[str], contexts: list[int]) -> float:
    """Compiles every build of the run side by side; seconds."""
    begin = time.monotonic()
    wanted: list[tuple[DraftConfig, int, bool, int, int]] = []
    pairs = [shipped("drafter")[0], shipped("drafter-qwen3")[0]]
    if {"small", "pair"} & set(sections):
        configs = [*pairs, *SMALL.values()]
        wanted += [(config, 8, mxfp8, 2048, 1) for config in configs for mxfp8 in (False, True)]
        wanted += [(config, 16, True, 2048, 1) for config in (configs[0], SMALL["gemma4, heads of 512"])]
    if {"families", "ranks"} & set(sections):
        drafters = [random_drafter(family)[0] for family in FAMILIES]
        counts = ({1} if "families" in sections else set()) | (set(RANKS) if "ranks" in sections else set())
        wanted += [(config, 8, mxfp8, 512, n) for config in drafters for mxfp8 in (False, True) for n in counts]
        wanted += [(shipped("drafter")[0], 8, True, 2048, n) for n in counts - {1}]
    if "full" in sections:
        wanted += [(shapes.config_of(n), 16, mxfp8, 2048, 1) for n in names for mxfp8 in (False, True)]
    if {"full", "time", "compare"} & set(sections):
        at = {longest(context) for context in contexts} | {2048}
        wanted += [(shapes.config_of(n), 8, mxfp8, end, 1) for n in names for mxfp8 in (False, True) for end in at]

    def one(item: tuple[DraftConfig, int, bool, int, int]) -> None:
        config, rows, mxfp8, end, count = item
        geometry = Geometry.choose(config, rows=rows, mxfp8=mxfp8, max_positions=end, ranks=count)
        build(geometry, quiet=True)
        if config in pairs and end == 2048:
            build(replace(geometry, sampled=True), quiet=True)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, wanted))
    return time.monotonic() - begin


def skewed(weights: DraftWeights) -> dict[str, DraftWeights]:
    """Weights whose logits are hard on the bound: all equal, bias alone, bias far above the base, NaN."""
    zero, head, w2 = torch.zeros_like(weights.lm_head), weights.lm_head, weights.markov_w2
    return {
        "all logits equal": replace(weights, lm_head=zero, markov_w2=torch.zeros_like(w2)),
        "bias alone": replace(weights, lm_head=zero),
        "bias times 64": replace(weights, markov_w2=w2 * 64),
        "bias times 1 / 64": replace(weights, markov_w2=w2 / 64),
        "few bits": replace(weights, lm_head=(head * 4).round() / 4),
        "all NaN": replace(weights, lm_head=torch.full_like(head, float("nan"))),
    }


def pair() -> None:
    """Whole generations of the shipped pair: drafts beside the reference's; tokens per second."""
    for name in ("drafter", "drafter-qwen3"):
        for mxfp8 in (False, True):
            label = f"{name} {'w8a16' if mxfp8 else 'bf16'}"
            guarded(f"generations {label}", lambda n=name, m=mxfp8: generation.shadowed(n, m))  # type: ignore[misc]
            guarded(
                f"sampled generations {label}",
                lambda n=name, m=mxfp8: generation.shadowed(n, m, temperature=0.7),  # type: ignore[misc]
            )
    guarded("speed drafter w8a16", lambda: generation.speed("drafter", True))


FAMILIES = ("minimax-m31", "qwen3", "nvidia-m3", "minicpm5", "gemma4", "gemma4-512")
RANKS = (2, 4, 8)


def random_drafter(family: str) -> tuple[DraftConfig, DraftWeights]:
    """A small random drafter of a family that 8 ranks divide. `nvidia-m3`: its dialect of the Qwen3 layer.
    `gemma4-512`: heads of 512, one of keys."""
    sizes = {"head_dim": 128, "num_heads": 16, "num_kv_heads": 8, "vocab_size": 2048}
    if family == "gemma4-512":
        family, sizes = "gemma4", sizes | {"head_dim": 512, "num_kv_heads": 1}
    config = nvidia_m3_config(**sizes) if family == "nvidia-m3" else random_config(family, **sizes)
    return config, small_weights(config)


def families() -> None:
    """Rounds of random drafters of every family, both formats, one rank."""
    for family in FAMILIES:
        config, weights = random_drafter(family)
        for mxfp8 in (False, True):
            label = f"rounds {family} {'w8a16' if mxfp8 else 'bf16'}"
            guarded(label, lambda c=config, w=weights, m=mxfp8: generation.rounds(c, w, m))  # type: ignore[misc]


def ranks() -> None:
    """Rank groups: rounds of random drafters, generations of the shipped one, equal bytes, failures by name, times."""
    for count in RANKS:
        for family in FAMILIES:
            config, weights = random_drafter(family)
            for mxfp8 in (False, True):
                label = f"rounds {family} {'w8a16' if mxfp8 else 'bf16'}, {count} ranks"
                guarded(
                    label,
                    lambda c=config, w=weights, m=mxfp8, r=count: generation.rounds(c, w, m, count=12, ranks=r),  # type: ignore[misc]
                )
        guarded(
            f"generations drafter w8a16, {count} ranks",
            lambda r=count: generation.shadowed("drafter", True, prompts=2, ranks=r),  # type: ignore[misc]
        )
        guarded(
            f"sampled generations drafter w8a16, {count} ranks",
            lambda r=count: generation.shadowed("drafter", True, prompts=2, temperature=0.7, ranks=r),  # type: ignore[misc]
        )
        config, weights = shipped("drafter")
        ours, anchors = prepared(config, weights, True, 600, max_positions=2048, bound_seconds=0.05, ranks=count)
        warm = sampled_checks.drawn(anchors, 0.7, 1)
        guarded(f"repeats and forms, {count} ranks", lambda o=ours, a=anchors: rank_checks.repeats_and_forms(o, a))  # type: ignore[misc]
        guarded(f"sampled repeats and forms, {count} ranks", lambda o=ours, w=warm: rank_checks.repeats_and_forms(o, w))  # type: ignore[misc]
        for stage in ("layers.1.o", "layers.2.down_sum", "markov.3"):
            guarded(
                f"silent CTA at {stage}, {count} ranks",
                lambda o=ours, a=anchors, r=count, s=stage: rank_checks.silent_cta(o, a, r - 1, 3, s),  # type: ignore[misc]
            )
        guarded(f"late rank, {count} ranks", lambda o=ours, a=anchors: rank_checks.late_rank(o, a, 1))  # type: ignore[misc]


def full(names: list[str]) -> None:
    """Released shapes with random weights, one step against the reference."""
    for name in names:
        config = shapes.config_of(name)
        weights = shapes.random_weights(config)
        for mxfp8 in (False, True):
            label = f"full {name} {'w8a16' if mxfp8 else 'bf16'}"
            guarded(label, lambda c=config, w=weights, m=mxfp8: checks.stages(c, w, m, [200]))  # type: ignore[misc]
            torch.cuda.empty_cache()
            guarded(
                f"{label}, 2 requests in 16 rows",
                lambda c=config, w=weights, m=mxfp8: checks.stages(c, w, m, [200, 77], rows=16),  # type: ignore[misc]
            )
            torch.cuda.empty_cache()
            guarded(
                f"{label}, forms and 20 repeats in 16 rows",
                lambda c=config, w=weights, m=mxfp8: forms_and_repeats(c, w, m),  # type: ignore[misc]
            )
            torch.cuda.empty_cache()


def forms_and_repeats(config: DraftConfig, weights: DraftWeights, mxfp8: bool) -> dict[str, object]:
    """Of the build of 16 rows: whether launch and chain agree in every byte, and how many of 20 repeats differ."""
    ours, anchors = prepared(config, weights, mxfp8, 200, max_positions=2048, rows=16)
    return {"forms agree": checks.forms_agree(ours, anchors), "differing": checks.repeats(ours, anchors, 20)}


def profile(ours: HopperDrafter) -> dict[str, float]:
    """Microseconds of each kind of stage, alone in a graph of ten dependent launches (their boundary included)."""
    times: dict[str, float] = {}
    for index, stage in enumerate(ours.step.plan[CONTEXT_STAGES:], CONTEXT_STAGES):
        kind = stage.name.split(".")[-1] if stage.name.startswith("layers.1.") else stage.name
        if stage.name.startswith("layers.") and not stage.name.startswith("layers.1."):
            continue
        if stage.name.startswith("markov.") and stage.name != "markov.1":
            continue
        args = ours.step.arguments(index, 1)

        def ten(args: object = args) -> None:
            for _ in range(10):
                ours.step.kernel.launch(args, dependent=True)  # type: ignore[arg-type]

        times[kind] = timing.microseconds(timing.captured(ten).replay, 10, 2)["median"] / 10
    return times


def stamped(ours: HopperDrafter) -> dict[str, dict[str, float]]:
    """From clocks inside the one launch: microseconds by kind of stage, summed over the step. `work` of the median CTA
    and of the slowest; `handoff`, the median from a CTA's end of a stage to its start of the next."""
    ours.step.form = Form.ONE_LAUNCH
    stamps = ours.workspace.keep_stamps()
    graph = ours.step.capture(context=False)
    median = timing.microseconds(graph.replay, 5)["median"]
    clocks = stamps[:, CONTEXT_STAGES:].double().cpu()
    ours.workspace.stamps = None
    scale = median / float((clocks[:, -1, 1] - clocks[:, 0, 0]).median())  # cycles to microseconds
    work = (clocks[:, :, 1] - clocks[:, :, 0]) * scale
    handoff = (clocks[:, 1:, 0] - clocks[:, :-1, 1]) * scale
    result: dict[str, dict[str, float]] = {}
    for index, stage in enumerate(ours.step.plan[CONTEXT_STAGES:]):
        kind = stage.name.split(".")[-1] if stage.name.startswith("layers.") else stage.name.split(".")[0]
        entry = result.setdefault(kind, {"work": 0.0, "slowest": 0.0, "handoff": 0.0})
        entry["work"] += float(work[:, index].median())
        entry["slowest"] += float(work[:, index].max())
        entry["handoff"] += float(handoff[:, index].median()) if index < handoff.shape[1] else 0.0
    return {kind: {name: round(value, 1) for name, value in entry.items()} for kind, entry in result.items()}


def other_ring(name: str, context: int, weights: DraftWeights, mxfp8: bool, slots: int) -> dict[str, object]:
    """Time of one launch with another depth of the weight ring."""
    config = shapes.config_of(name)
    ours, _ = prepared(config, weights, mxfp8, context, max_positions=longest(context), slots=(slots,))
    g, down = ours.geometry, ours.geometry.linears["layers.0.down"]
    median = timed(ours, Form.ONE_LAUNCH, context)["median"]
    return {"median": median, "part": g.part_size, "down parts": down.parts, "resident": g.markov_resident}


def kernels(name: str, context: int, weights: DraftWeights) -> dict[str, float]:
    """Times of the kernels of one shape: chain and one launch, bf16 and MXFP8."""
    config, medians = shapes.config_of(name), {}
    for mxfp8 in (False, True):
        weight_label = "MXFP8" if mxfp8 else "bf16"
        ours, anchors = prepared(config, weights, mxfp8, context, max_positions=longest(context))
        for form in (Form.CHAIN, Form.ONE_LAUNCH):
            label = f"{name} {context} {form.value} {weight_label}"
            result = timed(ours, form, context)
            record(f"time {label}", result)
            medians[f"{form.value} {weight_label}"] = float(result["median"])  # type: ignore[arg-type]
        ours.step.form, ours.step.bounded = Form.ONE_LAUNCH, False
        record(
            f"time {name} {context} one-launch {weight_label}, full Markov scan", timed(ours, Form.ONE_LAUNCH, context)
        )
        ours.step.bounded = True
        guarded(
            f"time {name} {context} one-launch {weight_label}, sampled",
            lambda o=ours, a=anchors: sampled_run.time(o, a, context),  # type: ignore[misc]
        )
        record(f"bounded chain {name} {weight_label}", checks.bounded_chain(ours, context, 20))
        record(f"forms agree {name} {context} {weight_label}", checks.forms_agree(ours, anchors))
        record(f"100 repeats differing {name} {context} {weight_label}", checks.repeats(ours, anchors))
        ours.workspace.drop_logits()
        record(f"stamps {name} {context} {weight_label}", stamped(ours))
        if EXTRA:
            for slots in (2, 3, 4):
                guarded(
                    f"time {name} {context} {weight_label}, {slots} slots",
                    lambda s=slots, m=mxfp8: other_ring(name, context, weights, m, s),
                )  # type: ignore[misc]
            record(f"stage us {name} {context} {weight_label}", profile(ours))
        del ours
        torch.cuda.empty_cache()
    return medians


def pytorch(name: str, context: int, weights: DraftWeights) -> dict[str, float]:
    """Times of the PyTorch step."""
    medians = pytorch_times(name, context, weights)
    record(f"time {name} {context} pytorch", medians)
    return medians


def times(names: list[str], contexts: list[int], peers: bool) -> list[str]:
    """Times every shape and context; the lines of the last table."""
    lines = []
    for name in names:
        weights = shapes.random_weights(shapes.config_of(name))
        for context in contexts:
            medians: dict[str, float] = {}
            for part in (pytorch, kernels) if peers else (kernels,):
                try:
                    medians |= part(name, context, weights)
                except Exception as error:
                    traceback.print_exc()
                    record(f"FAILED {part.__name__} {name} {context}", f"{type(error).__name__}: {str(error)[:300]}")
            peer = medians.get(PEER)
            for label, median in medians.items():
                ratio = f"{peer / median:5.2f}x" if peer else ""
                lines.append(f"{name:12s} {context:5d} {label:20s} {median:8.1f} us {ratio}")
        del weights
        torch.cuda.empty_cache()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="+", choices=SECTIONS)
    parser.add_argument("--shapes", nargs="+", default=["qwen3-8b", "m3.1"], choices=shapes.NAMES)
    parser.add_argument("--contexts", nargs="+", type=int, default=[1024])
    parser.add_argument("--extra", action="store_true", help="also other ring depths and single stages")
    parser.add_argument("--out", type=Path, default=Path())
    options = parser.parse_args()
    properties = torch.cuda.get_device_properties(0)
    record("device", f"{properties.name}, {properties.multi_processor_count} SMs")
    record("date", datetime.now(UTC).isoformat(timespec="seconds"))
    record("software", f"torch {torch.__version__}, NVRTC {toolkit_version()}, CUDA {torch.version.cuda}")
    record("protocol", "CUDA-graph replay between events, 5 warm-ups, median of 30; one request, no new context rows")
    record("seconds to compile all builds", prebuild(options.sections, options.shapes, options.contexts))
    lines: list[str] = []
    if "small" in options.sections:
        small()
    if "pair" in options.sections:
        pair()
    if "families" in options.sections:
        families()
    if "ranks" in options.sections:
        ranks()
    if "full" in options.sections:
        full(options.shapes)
    for section in ("time", "compare"):
        if section in options.sections:
            lines += times(options.shapes, options.contexts, section == "compare")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"hopper-{'-'.join(options.sections)}.json").write_text(json.dumps(RESULTS, indent=1) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
