"""Runs the probe kernels of `monodraft.device.probes` on the executor."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

import monodraft.executor as ex
from monodraft.device import probes
from monodraft.device.geometry import Geometry

SMALL = Geometry(hidden=256, ranks=2)
M3 = Geometry()
FAR = 2**40
"""A deadline that no test reaches."""
BASES = ("a", "b", "c", "d")


@functools.cache
def program(name: str, geo: Geometry = M3) -> Any:
    """The lowered probe of a word."""
    return ex.lower(probes.launcher(probes.PROBES[name], geo))


def run(
    kernel: Any,
    *,
    ctas: int = 1,
    n: int = 0,
    tag: int = 0,
    rank: int = 0,
    deadline: int = FAR,
    health: int = 0,
    schedule: ex.Schedule | None = None,
    engine: str = "fast",
    model: ex.MemoryModel | None = None,
    **arrays: NDArray[Any],
) -> dict[str, NDArray[Any]]:
    """Run a probe (a Program) on one rank; `arrays` are `a` .. `d`. Returns what they and `health` hold afterwards."""
    memory = ex.Memory(ranks=1)
    regions = {name: memory.array(0, name, arrays.get(name, np.zeros(64, np.int32))) for name in BASES}
    regions["health"] = memory.array(0, "health", np.array([health], np.uint64))
    bases = [regions[name] for name in BASES]
    arguments = [*bases, n, signed(tag), regions["health"], rank, deadline, ctas]
    ex.run(ex.Launch(kernel, arguments), memory=memory, schedule=schedule, engine=engine, model=model)
    return {name: region.array for name, region in regions.items()}


def run_word(name: str, geo: Geometry = M3, **options: Any) -> dict[str, NDArray[Any]]:
    """Run the probe of a word."""
    return run(program(name, geo), **options)


def signed(word: int) -> int:
    """A 32-bit pattern as the int32 that FlyDSL takes."""
    return word - 2**32 if word >= 2**31 else word
