"""Runs the probe kernels of `monodraft.device.probes` on the executor."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

import monodraft.executor as ex
from monodraft.device import probes
from monodraft.device.geometry import Geometry

M3 = Geometry()
SMALL = Geometry(hidden=256, ranks=2)
FAR = 2**40
"""A deadline that no test reaches."""
BASES = ("a", "b", "c", "d")


@functools.cache
def program(name: str, geo: Geometry = M3) -> Any:
    """The lowered probe of a word."""
    return body_program(probes.PROBES[name], geo)


def body_program(body: probes.Body, geo: Geometry = M3) -> Any:
    """The lowered kernel of any body with a probe's arguments."""
    return ex.lower(probes.launcher(body, geo))


def arguments(
    memory: ex.Memory,
    regions: dict[str, ex.Region],
    *,
    ctas: int = 1,
    n: int = 0,
    tag: int = 0,
    rank: int = 0,
    deadline: int = FAR,
    health: int = 0,
) -> list[Any]:
    """A probe's arguments on rank 0; `regions` gets what it lacks of `a` .. `d` and `health`."""
    for name in BASES:
        if name not in regions:
            regions[name] = memory.array(0, name, np.zeros(64, np.int32))
    if "health" not in regions:
        regions["health"] = memory.array(0, "health", np.array([health], np.uint64))
    return [*(regions[name] for name in BASES), n, signed(tag), regions["health"], rank, deadline, ctas]


def run(
    kernel: Any,
    *,
    schedule: ex.Schedule | None = None,
    engine: str = "reference",
    model: ex.MemoryModel | None = None,
    **given: Any,
) -> dict[str, NDArray[Any]]:
    """Run a probe (a Program) on one rank. Arrays `a` .. `d` and the scalars of `arguments` are given by name.

    Returns what the arrays and `health` hold afterwards.
    """
    memory = ex.Memory(ranks=1)
    regions = {name: memory.array(0, name, given.pop(name)) for name in BASES if name in given}
    launch = ex.Launch(kernel, arguments(memory, regions, **given))
    ex.run(launch, memory=memory, schedule=schedule, engine=engine, model=model)  # type: ignore[arg-type]
    return {name: region.array for name, region in regions.items()}


def run_word(name: str, geo: Geometry = M3, **options: Any) -> dict[str, NDArray[Any]]:
    """Run the probe of a word."""
    return run(program(name, geo), **options)


def signed(word: int) -> int:
    """A 32-bit pattern as the int32 that FlyDSL takes."""
    return word - 2**32 if word >= 2**31 else word
