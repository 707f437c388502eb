"""Records waits and stages of a run for its trace."""

from __future__ import annotations

from monodraft.executor.report import Span, Wait
from monodraft.executor.run_state import Cta, RunState
from monodraft.executor.wave import Wave


class Timeline(RunState):
    """Called where something ends, if the run is traced."""

    def trace_barrier(self, cta: Cta) -> None:
        rank = cta.dispatch.rank
        for each in cta.waiting:
            wave = self.waves[each]
            line = cta.dispatch.program.kernel.places[wave.place]
            start = self.standings[each].start
            self.report.waits.append(Wait("barrier", str(line), rank, cta.number, wave.number, start, self.ticks))
        line = cta.dispatch.program.kernel.places[self.waves[cta.waiting[0]].place]
        self.trace_stage(cta, f"to the barrier at {line}")

    def trace_stage(self, cta: Cta, name: str) -> None:
        span = Span(f"{cta.stage} {name}", cta.dispatch.rank, cta.number, cta.stage_start, self.ticks)
        self.report.spans.append(span)
        cta.stage += 1
        cta.stage_start = self.ticks

    def follow_poll(self, wave: Wave) -> None:
        """Note a poll's beginning, or its end once the wave itself got something new."""
        standing = self.standings[wave.identity]
        if wave.progress == standing.seen:
            standing.rounds += 1
            if standing.rounds == 2:  # by now it is in the loop
                standing.place = wave.place
            return
        if standing.rounds > 1:
            line = wave.cta.dispatch.program.kernel.places[standing.place]
            rank, cta = wave.cta.dispatch.rank, wave.cta.number
            wait = Wait("poll", str(line), rank, cta, wave.number, standing.start, self.ticks)
            self.report.waits.append(wait)
        standing.rounds = 0
        standing.seen = wave.progress
        standing.start = self.ticks
