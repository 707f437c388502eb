"""Probes compiled once for all compile-only tests."""

from __future__ import annotations

import functools

from monodraft.device import probes
from monodraft.device.geometry import Geometry
from monodraft.device.isa import Kernel, parse

M3 = Geometry()
TINY = Geometry(hidden=256, ranks=2)


@functools.cache
def isa(name: str, geo: Geometry = M3) -> str:
    return probes.probe_isa(name, geo)


@functools.cache
def kernel(name: str, geo: Geometry = M3) -> Kernel:
    return parse(isa(name, geo))[0]
