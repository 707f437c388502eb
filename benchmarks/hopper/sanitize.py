"""A few steps of the shipped drafter in both forms, to be run under NVIDIA's compute-sanitizer.

    PYTHONPATH=. compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 \
        python3 benchmarks/hopper/sanitize.py

    PYTHONPATH=. compute-sanitizer --tool racecheck --report-api-errors no \
        python3 benchmarks/hopper/sanitize.py --every-arrives

With --every-arrives, all threads that stored to shared memory arrive on the mbarrier that readers wait for, instead of
one after a named barrier, whose order racecheck does not follow. API errors are left out: cuda-bindings newer than the
driver looks up symbols that it does not have, at every start.

The bound of the waits is a minute, since the checkers slow a step down a thousandfold. Exit code 1 where the two
forms disagree, 9 (as asked for above) where the checker found something.
"""

from __future__ import annotations

import argparse
import sys

import torch

from monodraft.checkpoint import load_drafter
from monodraft.checkpoint.shipped import DRAFTER, TARGET
from monodraft.drafter import Anchor, ContextRows
from monodraft.hopper.drafter import HopperDrafter
from monodraft.hopper.geometry import Geometry
from monodraft.hopper.step import Form

LENGTH = 80
"""Committed positions: more than one tile of keys, and no multiple of one."""


def let_every_thread_arrive() -> None:
    """All builds of this process with -DEVERY_ARRIVES (stages/exchange.cuh)."""
    plain = vars(Geometry)["options"].fget
    Geometry.options = property(lambda geometry: [*plain(geometry), "-DEVERY_ARRIVES=1"])  # type: ignore[assignment]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every-arrives", action="store_true", help="every storing thread arrives on the mbarrier")
    parser.add_argument(
        "--temperature", type=float, default=0.0, help="above 0: sampled drafts, by the build that draws"
    )
    options = parser.parse_args()
    if options.every_arrives:
        let_every_thread_arrive()
    config, weights = load_drafter(DRAFTER, TARGET)
    features = torch.randn(LENGTH, config.feature_size, generator=torch.Generator().manual_seed(1)).bfloat16()
    for mxfp8 in (False, True):
        drafter = HopperDrafter(config, weights, mxfp8=mxfp8, max_requests=1, max_positions=512, bound_seconds=60.0)
        drafter.open(0)
        drafter.commit([ContextRows(0, 0, features)])
        seen = []
        for form in (Form.ONE_LAUNCH, Form.CHAIN):
            drafter.step.form = form
            (draft,) = drafter.propose([Anchor(0, 17, LENGTH, options.temperature, seed=5)])
            seen.append(draft.tokens.tolist())
        print("w8a16" if mxfp8 else "bf16", *seen, flush=True)
        if seen[0] != seen[1]:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
