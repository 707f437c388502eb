"""Whether a run gets on: idle polls, deadlock, livelock, and the clock that jumps meanwhile."""

from __future__ import annotations

from inspect import getgeneratorlocals

import numpy as np

from monodraft.executor.errors import Deadlock, Livelock, Where
from monodraft.executor.gpu import WAVE
from monodraft.executor.timeline import Timeline
from monodraft.executor.wave import Wave

# A wave counts as spinning after so many events in a row that brought nothing new.
SPINS = 12
# A loop that looks at nothing (no load, clock or sleep) for so many turns is work, not a poll.
BLANK_TURNS = 8
# When all waves spin, they are stuck after so many more rounds in which none of them looked at the clock; a bounded
# wait looks at it every 64 rounds or so.
BLIND_ROUNDS = 1500


class Progress(Timeline):
    """Tells work from polling."""

    def mark_progress(self, wave: Wave) -> None:
        """Something happened that others may see: nobody is idle."""
        standing = self.standings[wave.identity]
        standing.mark = (wave.progress, self.changes)
        standing.spins = 0
        self.spinning.clear()
        self.jump = 0.0
        self.idled = 0.0
        self.blind = 0

    def move_on(self, wave: Wave) -> None:
        """A wave reached a barrier or its end."""
        wave.progress += 1
        if self.job.trace:
            self.follow_poll(wave)
        self.mark_progress(wave)

    def note_spin(self, wave: Wave) -> None:
        """After a turn that ended in a poll or a loop: does the wave only repeat itself?"""
        standing = self.standings[wave.identity]
        blank = wave.looks == standing.looks
        standing.looks = wave.looks
        standing.blank = standing.blank + 1 if blank else 0
        if self.job.trace:
            self.follow_poll(wave)
        if (wave.progress, self.changes) != standing.mark or standing.blank > BLANK_TURNS:
            self.mark_progress(wave)
            return
        if blank:
            return
        standing.spins += 1
        if standing.spins >= SPINS:
            self.spinning.add(wave.identity)
            if len(self.spinning) == len(self.live):
                self.idle()

    def idle(self) -> None:
        """Every wave that can run only polls. Let a pending store arrive; else let time pass; else it is stuck."""
        self.spinning.clear()
        for wave in self.waves:
            for queue in (wave.pending, wave.pending_lds):
                if queue:
                    wave.commit_with_older(queue, self.policy.below(len(queue)))
                    return
        for each in self.live:
            self.standings[each].spins = SPINS - 2
        if not any(self.waves[each].reads_clock for each in self.live):
            self.blind += 1
            if self.blind > BLIND_ROUNDS:
                self.stuck()
            return
        for each in self.live:
            self.waves[each].reads_clock = False
        self.blind = 0
        self.jump = min(max(self.jump * 2, 100.0), float(self.job.limits.jump))
        self.ticks += self.jump
        self.idled += self.jump
        if self.idled > self.job.limits.idle_ticks:
            raise self.failure(
                Livelock,
                f"only polls for {self.idled / 1e8:.0f} s of the 100 MHz clock: waits without a bound, or a longer one",
                self.stand(self.live),
            )

    def stuck(self) -> None:
        waiting = [each for cta in self.ctas for each in cta.waiting]
        queued = f"; {len(self.queue)} CTAs wait for room on the GPU" if self.queue else ""
        raise self.failure(
            Deadlock,
            f"{len(self.live)} waves poll memory that nobody will write, {len(waiting)} wait at a barrier{queued}",
            self.stand([*self.live, *waiting]),
        )

    def stand(self, waves: list[int], most: int = 8) -> list[Where]:
        """Where waves stand, one for each line of each rank first."""
        first: dict[tuple[int, int], Where] = {}
        for each in waves:
            wave = self.waves[each]
            first.setdefault((wave.cta.dispatch.rank, wave.place), wave.where(lanes=self.lanes(each)))
        return list(first.values())[:most]

    def lanes(self, identity: int) -> tuple[int, ...]:
        """The lanes that a wave between two turns goes on with: the mask in its suspended generator."""
        mask = getgeneratorlocals(self.runs[identity]).get("m")
        return tuple(range(WAVE)) if mask is None else tuple(int(lane) for lane in np.flatnonzero(mask))

    def check_limits(self) -> None:
        if self.ops > self.job.limits.wave_ops:
            raise self.failure(
                Livelock, f"more than {self.job.limits.wave_ops} operations without an end", self.stand(self.live)
            )
