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
ENGINES = ("reference", "fast")


def program(name: str, geo: Geometry = M3) -> Any:
    """The lowered probe of a word."""
    return _lowered(probes, name, geo)


@functools.cache
def _lowered(package: Any, name: str, geo: Geometry) -> Any:
    return body_program(package.PROBES[name], geo)


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
    kernel: Any, *, schedule: ex.Schedule | None = None, engine: str | None = None, **given: Any
) -> dict[str, NDArray[Any]]:
    """Run a probe (a Program) on one rank. Arrays `a` .. `d` and the scalars of `arguments` are given by name.

    Returns what the arrays and `health` hold afterwards. Without an `engine`, both run and must leave the same bits.
    """
    if engine is not None:
        return _run(kernel, schedule, engine, given)
    found, *others = (_run(kernel, schedule, each, given) for each in ENGINES)
    for other in others:
        for name, array in found.items():
            assert same_bits(array, other[name]), f"the engines differ in {name}"
    return found


def same_bits(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Equal bytes, but for sign and payload of a float's NaN: no contract says what they are."""
    if a.dtype.kind == "f":
        a, b = (np.where(np.isnan(x), x.dtype.type(np.nan), x) for x in (a, b))
    return a.tobytes() == b.tobytes()


def _run(kernel: Any, schedule: ex.Schedule | None, engine: str, given: dict[str, Any]) -> dict[str, NDArray[Any]]:
    memory = ex.Memory(ranks=1)
    regions = {name: memory.array(0, name, given[name]) for name in BASES if name in given}
    scalars = {name: value for name, value in given.items() if name not in BASES}
    launch = ex.Launch(kernel, arguments(memory, regions, **scalars))
    ex.run(launch, memory=memory, schedule=schedule, engine=engine, model=model_of(engine))  # type: ignore[arg-type]
    return {name: region.array for name, region in regions.items()}


def model_of(engine: str) -> ex.MemoryModel:
    """Everything that the engine models: the fast one has no race detector."""
    harsh = ex.MemoryModel.harsh()
    return harsh if engine == "reference" else harsh.without("races")


def run_word(name: str, geo: Geometry = M3, **options: Any) -> dict[str, NDArray[Any]]:
    """Run the probe of a word."""
    return run(program(name, geo), **options)


def signed(word: int) -> int:
    """A 32-bit pattern as the int32 that FlyDSL takes."""
    return word - 2**32 if word >= 2**31 else word
