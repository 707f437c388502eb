"""Launches: a launcher or Program with its arguments, resolved to grid, block and argument words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monodraft.errors import Fault
from monodraft.executor.arguments import Words, argument_words
from monodraft.executor.errors import BadLaunch
from monodraft.executor.gpu import WAVE, Gpu
from monodraft.executor.host import evaluate_host
from monodraft.executor.lower import lower
from monodraft.executor.memory import Memory
from monodraft.executor.program import Program

Dims = tuple[int, int, int]


@dataclass(frozen=True)
class Launch:
    """One kernel launch on one rank.

    `program` is a @flyc.jit launcher or what `lower` made of one; `args` are the launcher's arguments without the
    stream: numbers, `Region`s (their address, or a tensor where the launcher takes fx.Tensor), NumPy arrays (placed in
    the rank's memory under the parameter's name and written back after the run), in order or by name. `grid` and
    `block` override what the launcher computes.
    """

    program: Any
    args: Sequence[Any] | Mapping[str, Any] = ()
    rank: int = 0
    grid: Dims | None = None
    block: Dims | None = None


@dataclass(frozen=True)
class Dispatch:
    """A launch with everything known. `words` are the kernel's arguments as bit patterns, one per scalar leaf."""

    program: Program
    rank: int
    grid: Dims
    block: Dims
    words: tuple[int, ...]
    lds_bytes: int

    @property
    def ctas(self) -> int:
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        return math.prod(self.block)

    @property
    def waves(self) -> int:
        """Waves of one CTA."""
        return -(-self.threads // WAVE)


def resolve(launch: Launch, memory: Memory, gpu: Gpu) -> tuple[Dispatch, list[Words]]:
    """Check a launch and work out its grid, block and argument words. Raises BadLaunch naming what is wrong."""
    if not 0 <= launch.rank < memory.ranks:
        raise BadLaunch("launch", faults=[Fault("rank", str(launch.rank), f"0 to {memory.ranks - 1}")])
    program = launch.program if isinstance(launch.program, Program) else lower_launch(launch)
    arguments = argument_words(program, launch.args, launch.rank, memory)
    host = evaluate_host(program, [word for each in arguments for word in each.words])
    grid, block = launch.grid or host.grid, launch.block or host.block
    dispatch = Dispatch(program, launch.rank, grid, block, host.arguments, program.lds_bytes + host.dynamic_lds)
    check_dispatch(dispatch, gpu)
    return dispatch, arguments


def lower_launch(launch: Launch) -> Program:
    """Trace the launcher with the launch's own arguments."""
    if isinstance(launch.args, Mapping):
        return lower(launch.program, **launch.args)
    return lower(launch.program, *launch.args)


def check_dispatch(dispatch: Dispatch, gpu: Gpu) -> None:
    """Sizes that no GPU takes."""
    name, faults = dispatch.program.name, []
    for label, dims in (("grid", dispatch.grid), ("block", dispatch.block)):
        if len(dims) != 3 or any(not 1 <= each < 1 << 31 for each in dims):
            faults.append(Fault(f"{name}: {label}", str(dims), "three positive sizes below 2^31"))
    if not faults and dispatch.threads > gpu.max_threads:
        faults.append(Fault(f"{name}: block", f"{dispatch.threads} threads", f"at most {gpu.max_threads}"))
    known = dispatch.program.known_block
    if known is not None and tuple(dispatch.block) != known:
        faults.append(Fault(f"{name}: block", str(dispatch.block), f"{known}, which the kernel was compiled for"))
    if dispatch.lds_bytes > gpu.lds_per_cu:
        faults.append(Fault(f"{name}: LDS", f"{dispatch.lds_bytes} bytes", f"at most {gpu.lds_per_cu}"))
    if faults:
        raise BadLaunch("cannot launch", faults=faults)
