"""A few steps of the shipped drafter in both forms, to be run under NVIDIA's compute-sanitizer.

    PYTHONPATH=. compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 \
        python3 benchmarks/hopper/sanitize.py

API errors are left out: cuda-bindings newer than the driver looks up symbols that it does not have, at every start.

The bound of the waits is a minute, since the checkers slow a step down a thousandfold. Exit code 1 where the two
forms disagree, 9 (as asked for above) where the checker found something.
"""

from __future__ import annotations

import sys

import torch

from monodraft.checkpoint import load_drafter
from monodraft.checkpoint.shipped import DRAFTER, TARGET
from monodraft.drafter import Anchor, ContextRows
from monodraft.hopper.drafter import HopperDrafter
from monodraft.hopper.step import Form

LENGTH = 80
"""Committed positions: more than one tile of keys, and no multiple of one."""


def main() -> int:
    config, weights = load_drafter(DRAFTER, TARGET)
    features = torch.randn(LENGTH, config.feature_size, generator=torch.Generator().manual_seed(1)).bfloat16()
    for mxfp8 in (False, True):
        drafter = HopperDrafter(config, weights, mxfp8=mxfp8, max_requests=1, max_positions=512, bound_seconds=60.0)
        drafter.open(0)
        drafter.commit([ContextRows(0, 0, features)])
        seen = []
        for form in (Form.ONE_LAUNCH, Form.CHAIN):
            drafter.step.form = form
            (draft,) = drafter.propose([Anchor(0, 17, LENGTH)])
            seen.append(draft.tokens.tolist())
        print("w8a16" if mxfp8 else "bf16", *seen, flush=True)
        if seen[0] != seen[1]:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
