"""Makes the choices of a schedule and records them, so that a run can be replayed decision by decision."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable

from monodraft.executor.schedule import Pick, Schedule

# A wave's speed is 10^-u, u uniform up to this; redrawn every EPOCH turns.
SPEED_DECADES = 3.0
EPOCH = 500
SLICE = 20
VICTIM_SPEED = 1e-3
ROUND_ROBIN_SLICE = 256


class Policy:
    """The choices of one run. `delays` says whether memory effects may be late at all."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.random = random.Random(schedule.seed if schedule.seed is not None else 0)
        self.delays = schedule.kind != "round_robin"
        self.fair = schedule.kind == "round_robin"
        self.recorded = array("q")
        self.position = 0
        self.turns = 0
        self.speeds: list[float] = []
        self.victims: frozenset[int] = frozenset()
        self.victim_place: tuple[int, int] | None = None
        self.next = 0
        # How often a pending store becomes visible, log-uniform over three decades, fixed for the run.
        self.commit_rate = 10 ** -(0.3 + 2.7 * self.random.random())

    def decide(self, count: int, draw: Callable[[], int]) -> int:
        """A number below `count`: drawn and recorded, or the recorded one."""
        if self.schedule.kind == "replay":
            value = self.schedule.decisions[self.position] if self.position < len(self.schedule.decisions) else 0
            self.position += 1
            value = min(max(value, 0), count - 1)
        else:
            value = draw()
        self.recorded.append(value)
        return value

    def start(self, names: list[tuple[int, int, int]]) -> None:
        """Waves by (rank, cta, wave). Draws the victims of an adversarial schedule."""
        self.speeds = [1.0] * len(names)
        starve = self.schedule.starve
        if starve is None or not names:
            return
        if isinstance(starve, str):
            rank, cta, wave = names[self.random.randrange(len(names))]
            starve = {"rank": Pick(rank), "cta": Pick(rank, cta), "wave": Pick(rank, cta, wave)}[starve]
        self.victims = frozenset(i for i, name in enumerate(names) if starve.matches(*name))

    def next_wave(self, live: list[int]) -> int:
        """The position in `live` of the wave that goes on."""
        self.turns += 1
        if self.fair:
            self.next = (self.next + 1) % len(live) if self.next + 1 < len(live) else 0
            return self.next
        return self.decide(len(live), lambda: self.draw_wave(live))

    def draw_wave(self, live: list[int]) -> int:
        """Rejection sampling by speed; a rejected wave gains a little, so that none starves for ever."""
        if self.turns % EPOCH == 1:
            self.speeds = [10 ** (-SPEED_DECADES * self.random.random()) for _ in self.speeds]
            for victim in self.victims:
                self.speeds[victim] = VICTIM_SPEED
        while True:
            position = self.random.randrange(len(live))
            wave = live[position]
            if self.random.random() < self.speeds[wave]:
                return position
            self.speeds[wave] *= 1.02 if wave not in self.victims else 1.002

    def slice(self) -> int:
        """How many scheduling points the wave may pass in this turn."""
        if self.fair:
            return ROUND_ROBIN_SLICE
        return 1 + self.decide(SLICE, lambda: self.random.randrange(SLICE))

    def commits(self) -> bool:
        """Whether some pending store becomes visible now."""
        return bool(self.decide(2, lambda: self.random.random() < self.commit_rate))

    def below(self, count: int) -> int:
        """A uniform choice below `count`."""
        return self.decide(count, lambda: self.random.randrange(count))

    def load_moment(self) -> int:
        """When a load samples memory: 0 at issue, 1 when it is waited for, 2 some lanes and pieces each."""
        return self.decide(3, lambda: self.random.choices((0, 1, 2), (2, 1, 1))[0])

    def shuffled(self, count: int) -> list[int]:
        """A random order of `count` lanes, from one recorded seed."""
        order = list(range(count))
        random.Random(self.below(1 << 30)).shuffle(order)
        return order

    def may_commit(self, region: str | None, place: tuple[int, int]) -> bool:
        """Whether a pending store may become visible by itself; the delayed one of the schedule may not."""
        delay = self.schedule.delay
        if delay is None:
            return True
        if delay != "store":
            return region != delay
        if self.victim_place is None and self.random.random() < 0.3:
            self.victim_place = place
        return place != self.victim_place
