"""Runs FlyDSL kernels for gfx950 on a CPU: the very module that FlyDSL traces, under a harsh memory model.

    import monodraft.executor as ex

    memory = ex.Memory(ranks=2)                                  # one address space for all ranks' GPUs
    x = memory.array(0, "x", np.zeros(256, np.int32))            # a Region: .address to pass, .array to read afterwards
    report = ex.run(
        [ex.Launch(launcher, (x, 256), rank=0)],                 # a @flyc.jit launcher, or ex.lower(launcher, ...)
        memory=memory,
        gpu=ex.Gpu.mi355x(cus=8),
        schedule=ex.Schedule.random(seed=7),                     # round_robin(), adversarial(seed, starve=, delay=)
        model=ex.MemoryModel.harsh(),                            # .sequential(), .without("l1"), .only("torn")
        engine="reference",                                      # or "fast"
    )

A wrong kernel raises an `ExecutorError` that says the kernel line, rank, CTA, wave, lanes and the seed that replays it.
`docs/executor.md` states the memory model and the numbers of each operation.
"""

from monodraft.executor.engine import Limits, run
from monodraft.executor.errors import (
    BadLaunch,
    BarrierMismatch,
    Deadlock,
    ExecutorError,
    Livelock,
    NotResident,
    OutOfBounds,
    Race,
    UninitialisedRead,
    UnknownOperation,
    Where,
)
from monodraft.executor.gpu import Cost, Gpu
from monodraft.executor.launch import Launch
from monodraft.executor.lower import lower, read_mlir
from monodraft.executor.memory import Memory, Region
from monodraft.executor.model import MemoryModel
from monodraft.executor.program import Program
from monodraft.executor.report import Report
from monodraft.executor.schedule import Pick, Schedule
from monodraft.executor.shrink import shrink
from monodraft.executor.trace import perfetto, summary, write_perfetto

__all__ = [
    "BadLaunch",
    "BarrierMismatch",
    "Cost",
    "Deadlock",
    "ExecutorError",
    "Gpu",
    "Launch",
    "Limits",
    "Livelock",
    "Memory",
    "MemoryModel",
    "NotResident",
    "OutOfBounds",
    "Pick",
    "Program",
    "Race",
    "Region",
    "Report",
    "Schedule",
    "UninitialisedRead",
    "UnknownOperation",
    "Where",
    "lower",
    "perfetto",
    "read_mlir",
    "run",
    "shrink",
    "summary",
    "write_perfetto",
]
