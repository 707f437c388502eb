#!/usr/bin/env python3
"""Acceptance by position, and tokens a second with and without speculation, on the shipped pair, in one run.

    python benchmarks/speculation.py [--prompts 32] [--new-tokens 96] [--repeats 2] [--numerics exact] [--threads 1]

Protocol: held-out prompts of the shipped pair, greedy, the same target object for both sides. Each prompt runs alone
(batch 1). After a warm-up of both sides, each repeat runs all prompts with speculation and then all without; a side's
figure is the median over repeats of (tokens behind the first) / (seconds in its decode steps, prompt excluded), and
the ratio is the median of the repeats' ratios. The machine's load average is recorded: a busy machine shows in the
spread. Acceptance does not depend on the machine's speed and is the same in every repeat.

The exit code is 1 where a text differs from the target's own, or where there are fewer tokens a round (counting the
target's own) than --at-least, 2.5 by default: what the pair was made to reach on files that it was not trained on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.progress import track

import monodraft
from monodraft.checkpoint import load_drafter
from monodraft.checkpoint.shipped import DRAFTER, TARGET
from monodraft.loop.backends import make_drafter
from monodraft.loop.pair import load_target, load_tokenizer
from monodraft.loop.plain import compare, generate_plain
from monodraft.loop.prompts import held_out_prompts
from monodraft.loop.report import Report
from monodraft.loop.request import Request
from monodraft.loop.session import Session
from monodraft.loop.speculate import Speculation, warm_up
from monodraft.loop.statistics import total

RESULTS = Path(__file__).parent / "results"
WANTED_TOKENS_PER_ROUND = 2.5
"""Greedy, on held-out files, counting the target's own."""


def cpu_name() -> str:
    """Model name of the CPU, as Linux tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def make_session(numerics: str, device: str) -> tuple[Session, Any]:
    """The shipped pair, the target in float32, and its tokenizer."""
    transformers.utils.logging.disable_progress_bar()
    config, weights = load_drafter(DRAFTER, TARGET)
    drafter = make_drafter("reference", config, weights, numerics=numerics, device=device)
    target = load_target(TARGET, config, dtype=torch.float32, device=device)
    return Session(target, drafter), load_tokenizer(TARGET)


def speculate_alone(session: Session, request: Request) -> tuple[Report, list[int]]:
    """One request by itself: its figures and tokens."""
    speculation = Speculation(session, [request])
    speculation.run()
    report, [output] = speculation.report(), speculation.outputs()
    speculation.release()
    return report, output


def one_repeat(session: Session, requests: list[Request]) -> dict[str, Any]:
    """All prompts with speculation, then all without."""
    reports, outputs = zip(*(speculate_alone(session, request) for request in requests), strict=True)
    plain = [generate_plain(session.target, request, limit=session.longest_text) for request in requests]
    whole = Report(
        total(report.statistics for report in reports),
        len(reports),
        sum(report.tokens for report in reports),
        sum(report.seconds for report in reports),
    )
    plain_rate = sum(len(run.tokens) - 1 for run in plain) / sum(run.decode_seconds for run in plain)
    differing = sum(not compare(output, run).equal for output, run in zip(outputs, plain, strict=True))
    return {
        "with": whole.tokens_per_second,
        "without": plain_rate,
        "ratio": whole.tokens_per_second / plain_rate,
        "texts_that_differ": differing,
        "statistics": whole.statistics.as_dict(),
        "plain_step_ms": 1e3 / plain_rate,
    }


def milliseconds_a_round(statistics: dict[str, Any]) -> dict[str, float]:
    """Mean time of a round by phase."""
    return {name: 1e3 * statistics[f"{name}_seconds"] / statistics["rounds"] for name in ("draft", "verify", "commit")}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=len(held_out_prompts()), help="held-out excerpts; default all")
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--at-least", type=float, default=WANTED_TOKENS_PER_ROUND, help="tokens a round; default 2.5")
    parser.add_argument("--numerics", default="exact", help="of the drafter: exact, bf16, w8a16, mxfp8")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, help="default: benchmarks/results/speculation-NUMERICS-DEVICE.json")
    return parser.parse_args()


def main() -> int:
    options = parse()
    console = Console()
    torch.set_num_threads(options.threads)
    session, tokenizer = make_session(options.numerics, options.device)
    texts = list(held_out_prompts().items())[: options.prompts]
    requests = [Request(tuple(tokenizer(text)["input_ids"]), options.new_tokens) for _, text in texts]
    warm_up(session, requests[0])
    load = os.getloadavg()[0]
    repeats = [one_repeat(session, requests) for _ in track(range(options.repeats), "repeats", console=console)]
    medians = {name: statistics.median(repeat[name] for repeat in repeats) for name in ("with", "without", "ratio")}
    last = repeats[-1]
    result = {
        "what": "tokens a second on the shipped pair, greedy, one request at a time",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "monodraft": monodraft.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cpu": cpu_name(),
        "device": torch.cuda.get_device_name() if options.device.startswith("cuda") else "cpu",
        "threads": options.threads,
        "load_average": load,
        "numerics": options.numerics,
        "target_dtype": "float32",
        "prompts": [path for path, _ in texts],
        "new_tokens": options.new_tokens,
        "repeats": options.repeats,
        "tokens_per_second": {"with_speculation": medians["with"], "without": medians["without"]},
        "ratio": medians["ratio"],
        "ratio_of_each_repeat": [repeat["ratio"] for repeat in repeats],
        "tokens_per_round": last["statistics"]["tokens_per_round"],
        "tokens_per_round_wanted": options.at_least,
        "rounds": last["statistics"]["rounds"],
        "verified_by_position": last["statistics"]["verified"],
        "accepted_by_position": last["statistics"]["accepted"],
        "accepted_share_of_rounds": [n / last["statistics"]["rounds"] for n in last["statistics"]["accepted"]],
        "round_ms": milliseconds_a_round(last["statistics"]),
        "plain_step_ms": last["plain_step_ms"],
        "texts_that_differ": max(repeat["texts_that_differ"] for repeat in repeats),
    }
    output = options.output or RESULTS / f"speculation-{options.numerics}-{options.device.split(':')[0]}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, indent=1) + "\n")
    console.print_json(data=result)
    return failures(result, console)


def failures(result: dict[str, Any], console: Console) -> int:
    """1 after saying what the run did not reach, else 0."""
    said = []
    if result["texts_that_differ"]:
        said.append(f"{result['texts_that_differ']} texts differ from the target's own")
    if result["tokens_per_round"] < result["tokens_per_round_wanted"]:
        said.append(f"{result['tokens_per_round']:.2f} tokens a round, wanted {result['tokens_per_round_wanted']}")
    for line in said:
        console.print(f"[bold red]failed:[/] {line}")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
