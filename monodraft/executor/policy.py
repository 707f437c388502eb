"""Makes the choices of a schedule and records them, so that a run can be replayed decision by decision."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable

from monodraft.executor.schedule import Pick, Schedule

# A wave's speed is 10^-u, u uniform up to one of these, drawn for each run; after a turn it is redrawn with probability
# 1 / REDRAW, so that a wave that ran on may stop for long at any point.
SPEED_DECADES = (1.0, 3.0, 5.0)
REDRAW = 12
MOST_WEIGHED = 128  # beyond so many live waves, rejection sampling is cheaper than weights
SLICES = (1, 2, 4, 20)  # the longest turn in scheduling points, drawn for each run
VICTIM_SPEED = 1e-5
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
        self.speeds: list[float] = []
        self.victims: frozenset[int] = frozenset()
        self.victim_place: tuple[int, int] | None = None
        self.next = -1
        self.decades = SPEED_DECADES[self.random.randrange(len(SPEED_DECADES))]
        self.longest = SLICES[self.random.randrange(len(SLICES))]
        # How often a pending store becomes visible, log-uniform over 2.5 decades, fixed for the run.
        self.commit_rate = 10 ** (-2.5 * self.random.random())

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
        self.speeds = [self.draw_speed() for _ in names]
        starve = self.schedule.starve
        if starve is None or not names:
            return
        if isinstance(starve, str):
            rank, cta, wave = names[self.random.randrange(len(names))]
            starve = {"rank": Pick(rank), "cta": Pick(rank, cta), "wave": Pick(rank, cta, wave)}[starve]
        self.victims = frozenset(i for i, name in enumerate(names) if starve.matches(*name))
        for victim in self.victims:
            self.speeds[victim] = VICTIM_SPEED

    def next_wave(self, live: list[int]) -> int:
        """The position in `live` of the wave that goes on. Recorded as the distance from the next in turn, so that 0
        is round robin."""
        turn = self.next + 1 if self.next + 1 < len(live) else 0
        ahead = 0 if self.fair else self.decide(len(live), lambda: (self.draw_wave(live) - turn) % len(live))
        self.next = (turn + ahead) % len(live)
        return self.next

    def draw_wave(self, live: list[int]) -> int:
        """By speed, among those that can run."""
        if len(live) <= MOST_WEIGHED:
            position = self.random.choices(range(len(live)), [self.speeds[wave] for wave in live])[0]
        else:
            position = self.draw_by_rejection(live)
        if self.random.randrange(REDRAW) == 0 and live[position] not in self.victims:
            self.speeds[live[position]] = self.draw_speed()
        return position

    def draw_by_rejection(self, live: list[int]) -> int:
        while True:
            position = self.random.randrange(len(live))
            if self.random.random() < self.speeds[live[position]]:
                return position
            self.speeds[live[position]] *= 1.02  # so that it ends

    def draw_speed(self) -> float:
        return float(10 ** (-self.decades * self.random.random()))

    def hesitate(self, wave: int) -> None:
        """A wave that has a load in flight slows down, half of the time: between the moments at which its loads look
        at memory, others get far."""
        if self.schedule.kind != "replay" and self.random.random() < 0.5:
            self.speeds[wave] = 10 ** (-1 - 2 * self.random.random())

    def slice(self) -> int:
        """How many scheduling points the wave may pass in this turn."""
        if self.fair:
            return ROUND_ROBIN_SLICE
        longest = SLICES[-1] if self.schedule.kind == "replay" else self.longest
        return 1 + self.decide(longest, lambda: self.random.randrange(longest))

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
