"""The loop's state machine against a brute-force model: requests join, fork, leave and end at any round.

The oracle is the target's greedy continuation, cut behind a stop token and at the limits, and a five-line simulation
of the rounds. `ScriptedDrafter` and `ScriptedTarget` check the invariant of every call themselves.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scripted import ScriptedDrafter, ScriptedTarget, right_then_wrong, run

from monodraft.drafter import Anchor
from monodraft.loop.request import Request
from monodraft.loop.session import Session
from monodraft.loop.verify import Finish

pytestmark = pytest.mark.numbers

VOCAB = 11
quick = settings(suppress_health_check=list(HealthCheck))


def expected_output(target: ScriptedTarget, request: Request, longest: int | None) -> tuple[list[int], Finish]:
    """Greedy text without speculation, and why it ends."""
    limit = len(request.prompt) + request.max_new_tokens
    context = longest is not None and longest < limit
    count = (longest if context and longest is not None else limit) - len(request.prompt)
    text: list[int] = []
    for token in target.continuation(request.prompt, count):
        text.append(token)
        if token in request.stop_tokens:
            return text, Finish.STOP
    return text, Finish.CONTEXT if context else Finish.LENGTH


class Loop(RuleBasedStateMachine):
    """Random schedules of a session; every draft's number of right tokens is drawn anew."""

    @initialize(
        block=st.integers(1, 5),
        chunk=st.integers(1, 4),
        longest=st.one_of(st.none(), st.integers(8, 20)),
        rights=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    )
    def start(self, block: int, chunk: int, longest: int | None, rights: list[int]) -> None:
        self.target = ScriptedTarget(VOCAB, max_positions=longest)
        self.count = 0

        def right(_anchor: Anchor) -> int:
            self.count += 1
            return min(rights[self.count % len(rights)], block)

        self.drafter = ScriptedDrafter(self.target, right_then_wrong(self.target, block, right), block=block)
        self.session = Session(self.target, self.drafter, prefill_chunk=chunk)
        self.requests: dict[int, Request] = {}
        self.streamed: dict[int, list[int]] = {}

    @rule(
        prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=7),
        new=st.integers(1, 12),
        stop=st.frozensets(st.integers(0, VOCAB - 1), max_size=3),
        data=st.data(),
    )
    @precondition(lambda self: len(self.requests) < 5)
    def add(self, prompt: list[int], new: int, stop: frozenset[int], data: st.DataObject) -> None:
        source = data.draw(st.sampled_from([None, *self.requests]))
        if source is not None:  # continue a prefix of another request's text, then part from it
            text = [*self.requests[source].prompt, *self.session.output(source)]
            prompt = [*text[: data.draw(st.integers(0, len(text)))], *prompt[:2]]
            prompt = prompt[: (self.target.max_positions or 99) - 1]
        request = Request(tuple(prompt), new, stop_tokens=stop, prefix_of=source)
        id = self.session.add(request)
        self.requests[id] = request
        self.streamed[id] = []

    @rule()
    def step(self) -> None:
        for emission in self.session.step():
            self.streamed[emission.request] += emission.tokens
            assert len(emission.tokens) == len(emission.sources) > 0
            assert emission.finish == self.session.finish(emission.request)

    @rule(data=st.data())
    @precondition(lambda self: self.requests)
    def cancel(self, data: st.DataObject) -> None:
        self.session.cancel(data.draw(st.sampled_from(list(self.requests))))

    @rule(data=st.data())
    @precondition(lambda self: self.requests)
    def release(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(list(self.requests)))
        self.session.release(id)
        del self.requests[id], self.streamed[id]

    @invariant()
    def texts_are_prefixes_of_the_oracle(self) -> None:
        for id, request in getattr(self, "requests", {}).items():
            output = self.session.output(id)
            expected, finish = expected_output(self.target, request, self.session.longest_text)
            assert output == self.streamed[id] == expected[: len(output)]
            if self.session.finish(id) not in (None, Finish.CANCELLED):
                assert output == expected
                assert self.session.finish(id) == finish

    def teardown(self) -> None:
        if not hasattr(self, "session"):
            return
        while self.session.running:
            self.step()
        self.texts_are_prefixes_of_the_oracle()
        for id in list(self.requests):
            self.session.release(id)
        assert (self.target.caches, self.drafter.rows) == ({}, {}), "a released request left state behind"


TestLoop = Loop.TestCase
TestLoop.settings = settings(quick, stateful_step_count=30)


@given(
    block=st.integers(1, 6),
    new=st.integers(1, 20),
    rights=st.lists(st.integers(0, 6), min_size=1, max_size=8),
    stop=st.frozensets(st.integers(0, VOCAB - 1), max_size=2),
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9),
)
@quick
def test_counts_are_those_of_a_brute_force_simulation(
    block: int, new: int, rights: list[int], stop: frozenset[int], prompt: list[int]
) -> None:
    target = ScriptedTarget(VOCAB)
    calls = iter(rights * 30)
    drafter = ScriptedDrafter(target, right_then_wrong(target, block, lambda _a: min(next(calls), block)), block=block)
    session = Session(target, drafter)
    request = Request(tuple(prompt), new, stop_tokens=stop)
    [output] = run(session, request)
    statistics = session.statistics(0)

    text, _ = expected_output(target, request, None)
    done, rounds, accepted, drafts = 1, 0, [0] * block, iter(rights * 30)  # the first token comes from the prompt
    while done < len(text):
        room = new - done
        kept = min(next(drafts), block, room - 1) if room > 1 else 0
        tokens = min(kept + 1, len(text) - done)  # less where a stop token ends the text
        for position in range(min(kept, tokens)):
            accepted[position] += 1
        done, rounds = done + tokens, rounds + 1
    assert output == text
    assert (statistics.rounds, statistics.accepted, statistics.round_tokens) == (rounds, accepted, len(text) - 1)


@given(
    conf=st.lists(st.floats(0.01, 0.99), min_size=4, max_size=4),
    threshold=st.floats(0.0, 1.0),
    right=st.integers(0, 4),
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4),
)
@quick
def test_confidence_cuts_the_verified_rows_and_never_the_text(
    conf: list[float], threshold: float, right: int, prompt: list[int]
) -> None:
    target = ScriptedTarget(VOCAB)
    plain = right_then_wrong(target, 4, lambda _a: right)
    logits = torch.tensor(conf, dtype=torch.float64).logit()
    script = lambda anchor, text: (plain(anchor, text)[0], None, logits)  # noqa: E731
    session = Session(target, ScriptedDrafter(target, script, block=4, confidence=True))
    request = Request(tuple(prompt), 15, confidence_threshold=threshold)
    [output] = run(session, request)
    assert output == target.continuation(request.prompt, 15)
    confidences = logits.sigmoid().tolist()
    width = 4 if threshold <= 0 else next((i for i, c in enumerate(confidences) if c < threshold), 4)
    verified = session.statistics(0).verified
    assert all(count == 0 for count in verified[width:])
    if width:
        assert verified[0] > 0
    assert max(target.widths[1:]) <= width + 1
