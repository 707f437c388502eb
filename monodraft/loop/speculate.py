"""Run requests through a session to their end, timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from monodraft.loop.plain import generate_plain
from monodraft.loop.report import Report
from monodraft.loop.request import Emission, Request
from monodraft.loop.session import Session
from monodraft.loop.statistics import total

WARM_UP_PROMPT = 16
"""Tokens of the first prompt that the warm-up reads."""


class Speculation:
    """Requests on their way through a session. Its figures can be read at any time, also after an interrupt."""

    def __init__(self, session: Session, requests: Sequence[Request]) -> None:
        self.session = session
        self.requests = tuple(requests)
        self.ids = [session.add(request) for request in requests]
        self.seconds = 0.0

    def run(self, on_emission: Callable[[Emission], None] = lambda _emission: None) -> None:
        """Step until all requests are finished; only the steps count as time, not `on_emission`."""
        while self.session.running:
            start = time.perf_counter()
            emissions = self.session.step()
            self.seconds += time.perf_counter() - start
            for emission in emissions:
                on_emission(emission)

    def outputs(self) -> list[list[int]]:
        """Tokens of each request so far."""
        return [self.session.output(id) for id in self.ids]

    def report(self) -> Report:
        """Figures so far, without a comparison."""
        statistics = total(self.session.statistics(id) for id in self.ids)
        tokens = sum(len(output) for output in self.outputs())
        return Report(statistics, len(self.ids), tokens, self.seconds)

    def release(self) -> None:
        """Free what the requests hold."""
        for id in self.ids:
            self.session.release(id)


def warm_up(session: Session, request: Request) -> None:
    """A few tokens with and without speculation: the first calls of torch cost many times the later ones."""
    longest = session.longest_text or WARM_UP_PROMPT + 8
    prompt = request.prompt[: max(1, min(WARM_UP_PROMPT, longest - 8))]
    short = replace(request, prompt=prompt, max_new_tokens=3, stop_tokens=frozenset(), prefix_of=None)
    speculation = Speculation(session, [short])
    speculation.run()
    speculation.release()
    generate_plain(session.target, short, limit=session.longest_text)
