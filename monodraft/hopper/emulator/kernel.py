"""Launches of the draft step on a CPU: what `monodraft.hopper.launch.Kernel` is for a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import torch

from monodraft.hopper.emulator.build import RACES, build
from monodraft.hopper.emulator.places import with_places
from monodraft.hopper.geometry import THREADS, Geometry
from monodraft.hopper.launch import Args, Captured
from monodraft.hopper.workspace import Workspace

Arguments: TypeAlias = Args | ctypes.Array


class EmulatorError(RuntimeError):
    """A launch that no GPU could end well: deadlock, livelock, divergence, a stray access. The text says where."""


class Grid(ctypes.Structure):
    """`struct Launch` of machine.cpp: one grid of a run. `after`: the one that it depends on, or -1."""

    _fields_ = (
        ("arguments", ctypes.c_void_p),
        ("ctas", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("shared_bytes", ctypes.c_uint32),
        ("after", ctypes.c_int32),
    )


class Library:
    """A compiled kernel and the scheduler that runs it. One run at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._run = self._library.emulator_run
        self._run.restype = ctypes.c_char_p
        self._run.argtypes = (ctypes.POINTER(Grid), ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64)

    def watch(self, arrays: Mapping[str, torch.Tensor]) -> None:
        """In a build that looks for races: the arrays of global memory to look at from now on, by names for reports."""
        addresses = [array.data_ptr() for array in arrays.values()]
        count = len(addresses)
        self._library.emulator_watch(
            (ctypes.c_void_p * count)(*addresses),
            (ctypes.c_uint64 * count)(*(array.nbytes for array in arrays.values())),
            (ctypes.c_char_p * count)(*(name.encode() for name in arrays)),
            count,
        )

    def run(self, grids: Sequence[Grid], *, seed: int = 0, jump: int = 1) -> None:
        """Runs grids at once in one scheduler. `jump`: cycles that pass when nothing else can happen. EmulatorError."""
        error = self._run((Grid * len(grids))(*grids), len(grids), seed, jump)
        if error is not None:
            raise EmulatorError(with_places(error.decode(), self.path))


@dataclass
class Emulator:
    """A CPU in place of a GPU of `ctas` multiprocessors.

    `seed` 0 runs the warps round robin; another one draws the order of warps and lanes, where they lose their turn, and
    when asynchronous copies read and land. `races`: look for accesses to shared memory and the workspace that nothing
    orders (about ten times slower). `flags`: further ones of the C++ compiler.
    """

    ctas: int = 8
    seed: int = 0
    races: bool = False
    flags: tuple[str, ...] = field(default=())

    def kernel(self, geometry: Geometry) -> EmulatedKernel:
        """The compiled step of a geometry. CompilerMissing where there is no C++ compiler."""
        return EmulatedKernel(geometry, self)


@dataclass
class _Recorded:
    """Launches of one `capture`, as arguments of `EmulatedKernel.run`."""

    kernel: EmulatedKernel
    launches: list[tuple[list[tuple[Arguments, int]], bool]]

    def replay(self) -> None:
        for launches, chain in self.launches:
            self.kernel.run(launches, chain=chain)


class EmulatedKernel:
    """The compiled step on the CPU. A launch has ended when `launch` returns."""

    def __init__(self, geometry: Geometry, emulator: Emulator) -> None:
        self.geometry, self.emulator = geometry, emulator
        flags = (*emulator.flags, RACES) if emulator.races else emulator.flags
        self._compiled = Library(build(geometry, flags=flags))
        self._recorded: _Recorded | None = None
        self._watched: dict[str, torch.Tensor] = {}

    def watch(self, workspaces: Sequence[Workspace]) -> None:
        """Where the emulator looks for races: the workspaces that the CTAs of launches share."""
        self._watched = {
            f"rank {workspace.rank}'s {name}": buffer
            for workspace in workspaces
            for name, buffer in workspace.buffers.items()
        }

    @cached_property
    def sampled(self) -> EmulatedKernel:
        """The build of the same geometry that also draws."""
        made = EmulatedKernel(replace(self.geometry, sampled=True), self.emulator)
        made._watched = self._watched
        return made

    def launch(self, args: Arguments, *, dependent: bool) -> None:
        """Runs one launch; `args`: a block, or `rank_launch`'s of all rank groups. EmulatorError."""
        self.run([(args, self.geometry.grid * self.geometry.ranks)])

    def launch_chain(self, blocks: Sequence[Arguments]) -> None:
        """Runs launches of which each may start before the one in front of it ends, as `griddepcontrol` says."""
        self.run([(block, self.geometry.grid * self.geometry.ranks) for block in blocks], chain=True)

    def capture(self, run: Callable[[], None]) -> Captured:
        """What `run` launches, recorded instead of run."""
        self._recorded = recorded = _Recorded(self, [])
        try:
            run()
        finally:
            self._recorded = None
        return recorded

    def run(self, launches: Sequence[tuple[Arguments, int]], *, chain: bool = False) -> None:
        """Runs grids (arguments, CTAs) at once in one scheduler, or as a chain of dependent launches. EmulatorError."""
        if self._recorded is not None:
            self._recorded.launches.append((list(launches), chain))
            return
        if not launches:
            return
        grids = [
            Grid(ctypes.addressof(block), ctas, THREADS, self.geometry.shared_bytes, i - 1 if chain else -1)
            for i, (block, ctas) in enumerate(launches)
        ]
        first = launches[0][0]
        bound = (first if isinstance(first, Args) else first[0]).bound
        if self.emulator.races:
            self._compiled.watch(self._watched)  # each time: kernels of one geometry share the library
        # Where nothing can happen, an eighth of the bound passes: waits end in the order of their bounds.
        self._compiled.run(grids, seed=self.emulator.seed, jump=max(1, bound // 8))
