"""Who runs next and what memory does meanwhile: seeded, replayable, recorded."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from monodraft.errors import Fault
from monodraft.executor.errors import BadLaunch

Kind = Literal["round_robin", "random", "adversarial", "replay"]
Starved = Literal["wave", "cta", "rank"]


@dataclass(frozen=True)
class Pick:
    """Selects waves; None matches any. `wave` counts within the CTA, `cta` within the launch."""

    rank: int | None = None
    cta: int | None = None
    wave: int | None = None

    def matches(self, rank: int, cta: int, wave: int) -> bool:
        pairs = ((self.rank, rank), (self.cta, cta), (self.wave, wave))
        return all(wanted is None or wanted == value for wanted, value in pairs)


@dataclass(frozen=True)
class Schedule:
    """A schedule; make one with `round_robin`, `random`, `adversarial` or `replay`.

    `starve` names who gets next to no turns: "wave", "cta" or "rank" (which one is drawn from the seed) or a `Pick`.
    `delay` names a store that stays invisible as long as the model allows: "store" (the seed draws a source line for
    every run) or the name of a region. `decisions` of an earlier report are replayed as they are.
    """

    kind: Kind = "round_robin"
    seed: int | None = None
    starve: Starved | Pick | None = None
    delay: str | None = None
    decisions: tuple[int, ...] = ()

    @classmethod
    def round_robin(cls) -> Schedule:
        """Every wave in turn; stores and loads take effect at once. The plainest run, always the same."""
        return cls()

    @classmethod
    def random(cls, seed: int) -> Schedule:
        """Waves get random speeds over three decades, redrawn now and then; memory effects happen at random times."""
        return cls("random", check_seed(seed))

    @classmethod
    def adversarial(cls, seed: int, *, starve: Starved | Pick | None = None, delay: str | None = None) -> Schedule:
        """`random`, and one victim: a starved wave, CTA or rank, a delayed store, or both. Neither: the seed picks."""
        check_seed(seed)
        if isinstance(starve, str) and starve not in ("wave", "cta", "rank"):
            raise BadLaunch("schedule", faults=[Fault("starve", repr(starve), "wave, cta, rank or a Pick")])
        if starve is None and delay is None:
            choice = random.Random(f"victim {seed}").randrange(4)
            starve, delay = ("wave", "cta", "rank", None)[choice], "store" if choice == 3 else None
        return cls("adversarial", seed, starve, delay)

    @classmethod
    def replay(cls, decisions: Sequence[int], seed: int | None = None) -> Schedule:
        """The recorded decisions of a run, one by one; where they run out, waves in turn and nothing else happens."""
        return cls("replay", seed, decisions=tuple(decisions))


def check_seed(seed: int) -> int:
    """A seed is a non-negative integer below 2^63, so that every engine can take it."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 1 << 63:
        raise BadLaunch("schedule", faults=[Fault("seed", repr(seed), "an integer from 0 to 2^63 - 1")])
    return seed
