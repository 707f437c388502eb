"""The machine that is modelled: compute units, XCDs, LDS, and how long work takes."""

from __future__ import annotations

from dataclasses import dataclass, field

from monodraft.errors import Fault
from monodraft.executor.errors import BadLaunch

WAVE = 64


@dataclass(frozen=True)
class Cost:
    """Work in 10 ns ticks of the 100 MHz clock. Rough figures for time-outs to mean something, not a timing model."""

    operation: float = 0.4
    store: float = 2.0
    load: float = 20.0
    coherent_load: float = 60.0  # past the L2: the round of a poll
    barrier: float = 10.0
    sleep: float = 2.7  # one unit of s_sleep, 64 cycles at 2.4 GHz


@dataclass(frozen=True)
class Gpu:
    """One GPU; every rank has one of these.

    A CTA lives on one compute unit. CTAs go round-robin to the `xcds`, as the hardware dispatches them, and within an
    XCD to the compute unit with most room. A compute unit holds `waves_per_cu` waves and `lds_per_cu` bytes.
    """

    cus: int = 256
    xcds: int = 8
    waves_per_cu: int = 32
    lds_per_cu: int = 160 * 1024
    max_threads: int = 1024
    cost: Cost = field(default_factory=Cost)

    def __post_init__(self) -> None:
        faults = [
            Fault(name, str(getattr(self, name)), "at least 1")
            for name in ("cus", "xcds", "waves_per_cu", "lds_per_cu")
            if getattr(self, name) < 1
        ]
        if self.cus % self.xcds:
            faults.append(Fault("cus", str(self.cus), f"a multiple of xcds = {self.xcds}"))
        if faults:
            raise BadLaunch("gpu", faults=faults)

    @classmethod
    def mi355x(cls, *, cus: int = 256, xcds: int | None = None) -> Gpu:
        """AMD Instinct MI355X: 8 XCDs of 32 compute units, 160 KiB of LDS each. Fewer `cus` for small tests."""
        return cls(cus=cus, xcds=xcds if xcds is not None else next(n for n in (8, 4, 2, 1) if cus % n == 0))

    def resident(self, waves: int, lds: int) -> int:
        """How many CTAs of `waves` waves and `lds` bytes fit on the GPU at once."""
        by_lds = self.lds_per_cu // lds if lds else self.waves_per_cu
        return self.cus * min(self.waves_per_cu // waves, by_lds)
