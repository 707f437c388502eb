"""What the executor reports: each failure with its seed and the place where it happened.

Two families. `BadLaunch`, `UnknownOperation` and `NotResident` are refusals, raised before anything runs. The others
are findings: the program ran and did something wrong; replaying the same seed gives the same finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from monodraft.errors import Fault, MonodraftError


@dataclass(frozen=True)
class Where:
    """Where a wave stood: `line` is the kernel source line (with its callers), `lanes` the lanes concerned."""

    line: str = ""
    rank: int | None = None
    cta: int | None = None
    wave: int | None = None
    lanes: tuple[int, ...] = ()

    def __str__(self) -> str:
        parts = [self.line] if self.line else []
        parts += [f"{name} {value}" for name in ("rank", "cta", "wave") if (value := getattr(self, name)) is not None]
        if self.lanes:
            parts.append(f"lanes {lane_ranges(self.lanes)}")
        return ", ".join(parts)


def lane_ranges(lanes: Sequence[int]) -> str:
    """`(0, 1, 2, 5)` as `0-2,5`."""
    runs: list[list[int]] = []
    for lane in sorted(lanes):
        if runs and lane == runs[-1][1] + 1:
            runs[-1][1] = lane
        else:
            runs.append([lane, lane])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


class ExecutorError(MonodraftError):
    """Base of everything the executor raises.

    `places` says where, the culprit first; `seed` replays it, and so do `decisions`, which `shrink` takes.
    """

    def __init__(
        self, message: str, places: Sequence[Where] = (), seed: int | None = None, faults: Sequence[Fault] = ()
    ) -> None:
        self.places = tuple(places)
        self.seed = seed
        self.decisions: tuple[int, ...] = ()
        self.detail = message
        lines = [message, *(f"  at {place}" for place in self.places)]
        if seed is not None:
            lines.append(f"  seed {seed}")
        super().__init__("\n".join(lines), faults)

    @property
    def where(self) -> Where:
        """The first place, or an empty one."""
        return self.places[0] if self.places else Where()


class BadLaunch(ExecutorError):
    """An argument, array, grid or option that cannot be launched; names it, its value and the limit."""


class UnknownOperation(ExecutorError):
    """The kernel uses operations that the engine does not know; each is named with its source line. Nothing ran."""


class NotResident(ExecutorError):
    """The grid needs more CTAs at once than the GPU holds (compute units, waves, LDS)."""


class Deadlock(ExecutorError):
    """No wave can ever go on: all wait at barriers or poll memory that nobody will write, without a bound."""


class Livelock(ExecutorError):
    """Waves go on for ever (or beyond the work limit) without finishing."""


class Race(ExecutorError):
    """Two accesses to the same plain memory, at least one a store, that nothing orders. Both lines are in `places`."""


class OutOfBounds(ExecutorError):
    """An access outside every region, outside the LDS of the CTA, or misaligned for its width."""


class UninitialisedRead(ExecutorError):
    """A load of bytes that nobody ever wrote."""


class BarrierMismatch(ExecutorError):
    """A barrier that not all waves of the CTA, or not all lanes of a wave, reach."""
