"""What a run hands back."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Wait:
    """A stretch in which a wave did not advance: at a barrier, or polling. Times in 10 ns ticks."""

    kind: str
    line: str
    rank: int
    cta: int
    wave: int
    start: float
    end: float


@dataclass(frozen=True)
class Span:
    """A CTA's life, or a stage of it between two barriers. Times in 10 ns ticks."""

    name: str
    rank: int
    cta: int
    start: float
    end: float


@dataclass
class Report:
    """Counts, times and, where asked for, the trace of one run.

    `ticks` is the 100 MHz clock at the end, `wave_ops` the operations executed (one per wave, whatever its mask),
    `instructions` the same by kind, `bytes` loaded and stored by scope ("load device", "store plain", ...),
    `decisions` what the schedule chose, for `Schedule.replay`. `resident` is the most CTAs at once on any rank.
    """

    engine: str
    seed: int | None = None
    ticks: float = 0.0
    wave_ops: int = 0
    switches: int = 0
    resident: int = 0
    instructions: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    waits: list[Wait] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    decisions: list[int] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
