"""The comparison with the reference refuses kernels that are broken on purpose, executed on a CPU."""

import pytest
from emulated import MARKS, benchmark
from hopper_shapes import small

from monodraft.hopper.emulator import Emulator, build
from monodraft.testing import random_weights

pytestmark = MARKS
generation = benchmark("generation")
real = build.sources

AFTER_SUM = "  return round_bf16(x);\n#endif\n}"
NORM = "rsqrtf(sum * (1.f / HIDDEN) + NORM_EPS)"
BROKEN = {
    "logits off by a quarter": (
        "stages/linear.cuh",
        AFTER_SUM,
        AFTER_SUM.replace("round_bf16(x)", "round_bf16(__float_as_uint(x) & 64u ? x + 0.25f : x - 0.25f)"),
    ),
    "logits cut to bf16": (
        "stages/linear.cuh",
        AFTER_SUM,
        AFTER_SUM.replace("round_bf16(x)", "__uint_as_float(__float_as_uint(x) & 0xffff0000u)"),
    ),
    "biases not rounded": (
        "stages/markov.cuh",
        "round_bf16(acc[n][half * 2 + c] * (1.f / ACTIVATION_SCALE))",
        "acc[n][half * 2 + c] * (1.f / ACTIVATION_SCALE)",
    ),
    "a choice that sees four bits of a logit": (
        "stages/markov.cuh",
        "candidate(criterion, FIRST_ID",
        "candidate(__uint_as_float(__float_as_uint(criterion) & 0xfff80000u), FIRST_ID",
    ),
    "factors of rows off by 2^-7": ("stages/linear.cuh", NORM, f"1.0078125f * {NORM}"),
    "attention of sharper scores": ("stages/attention.cuh", "* SCORE_SCALE", "* (1.25f * SCORE_SCALE)"),
}
"""name: file, what stands there, what stands there instead."""


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_kernel_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file, old, new = BROKEN[name]
    files = real()
    assert old in files[file]
    monkeypatch.setattr(build, "sources", lambda step=None: files | {file: files[file].replace(old, new)})
    config = small()
    found = generation.rounds(config, random_weights(config), True, count=6, emulator=Emulator(8, 1))
    assert found["refused"]
