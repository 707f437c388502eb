"""Requests that the session takes or refuses, and what one request may not do to another."""

from __future__ import annotations

import pytest
from scripted import ScriptedDrafter, ScriptedTarget, right_then_wrong, run, sampled_script

from monodraft.errors import InputError
from monodraft.loop.request import Request, Source
from monodraft.loop.sampling import Sampling
from monodraft.loop.session import Session
from monodraft.loop.statistics import RequestStatistics, total
from monodraft.loop.verify import Finish

pytestmark = pytest.mark.numbers


def make(target: ScriptedTarget, right: int = 2, **options: int) -> Session:
    return Session(target, ScriptedDrafter(target, right_then_wrong(target, 4, lambda _a: right), **options))


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request(()), "prompt.*no tokens"),
        (Request((1, 11, 12)), r"id 11 at place 1 \(2 in all\).*0 to 10"),
        (Request((1, -1)), "id -1 at place 1"),
        (Request((1,) * 16), "16 tokens, wanted at most 15"),
        (Request((1,), 0), "max_new_tokens.*0"),
        (Request((1,), confidence_threshold=1.5), "confidence_threshold"),
        (Request((1,), confidence_threshold=0.5), "no confidence head"),
        (Request((1,), prefix_of=3), r"prefix_of.*3, wanted one of \[\]"),
    ],
)
def test_bad_requests_are_refused_before_anything_opens(request_: Request, words: str) -> None:
    target = ScriptedTarget(max_positions=16)
    session = make(target)
    with pytest.raises(InputError, match=words):
        session.add(request_)
    assert not target.caches
    assert not session.running


def test_all_faults_of_a_request_are_named_at_once() -> None:
    with pytest.raises(InputError) as caught:
        make(ScriptedTarget()).add(Request((99,), 0, prefix_of=5))
    assert len(caught.value.faults) == 3


def test_sampled_text_does_not_depend_on_the_company() -> None:
    """A request alone, among others, chunked otherwise, joining late: the same tokens."""

    def outputs(chunk: int, before: int) -> list[int]:
        target = ScriptedTarget(5)
        drafter = ScriptedDrafter(target, sampled_script(target, 3, 0.8), block=3)
        session = Session(target, drafter, prefill_chunk=chunk)
        for seed in range(before):
            session.add(Request((seed, 1), 30, sampling=Sampling(0.8), seed=100 + seed))
            session.step()
        id = session.add(Request((1, 2, 3, 4), 40, sampling=Sampling(0.8), seed=7))
        while session.running:
            session.step()
        return session.output(id)

    alone = outputs(512, 0)
    assert alone == outputs(1, 3) == outputs(3, 5)
    assert len(alone) == 40


def test_seeds_make_the_difference() -> None:
    target = ScriptedTarget(5)
    session = Session(target, ScriptedDrafter(target, sampled_script(target, 3, 1.0), block=3))
    a, b, c = run(session, *(Request((1,), 30, sampling=Sampling(1.0), seed=seed) for seed in (1, 2, 1)))
    assert a == c != b


def test_anchors_carry_the_temperature_that_q_is_judged_by_and_a_seed_of_their_own() -> None:
    """q is softmax(logits / T) of the request's T: a drafter that drew at another one would bend the distribution."""
    target = ScriptedTarget()
    drafter = ScriptedDrafter(target, sampled_script(target, 4, 0.7))
    requests = [
        Request((1, 2), 9, sampling=Sampling(0.7), seed=5),
        Request((2, 3), 9, sampling=Sampling(1.3, top_k=3), seed=6),
        Request((3, 4), 9, sampling=Sampling(1e-6), seed=7),
    ]
    run(Session(target, drafter), *requests)
    of_each = [{(a.temperature, a.seed) for a in drafter.proposed if a.request == id} for id in range(3)]
    assert [len(anchors) for anchors in of_each] == [1, 1, 1], "the same in every round"
    temperatures, seeds = zip(*(anchors.pop() for anchors in of_each), strict=True)
    assert temperatures == (0.7, 1.3, 0.0)
    assert len({*seeds, 5, 6, 7}) == 6, "verification draws by the request's seed, and must not share the draft's draws"


def test_every_token_knows_where_it_comes_from() -> None:
    for right, expected in ((4, [Source.ACCEPTED] * 4 + [Source.TARGET]), (1, [Source.ACCEPTED, Source.CORRECTED])):
        session = make(ScriptedTarget(), right)
        session.add(Request((3,), 12))
        [first] = session.step()
        assert first.sources == (Source.TARGET,)
        [round_] = session.step()
        assert list(round_.sources) == expected


def test_finished_requests_are_inert_and_serve_as_a_prefix() -> None:
    target = ScriptedTarget()
    session = make(target)
    [first] = run(session, Request((1, 2), 5))
    calls = len(session.drafter.proposed)  # type: ignore[attr-defined]
    prompt = (1, 2, *first, 4)
    id = session.add(Request(prompt, 6, prefix_of=0))
    while session.running:
        session.step()
    assert session.output(id) == target.continuation(prompt, 6)
    assert session.statistics(id).restored_positions == 6  # all but the last token of the old text, which had no row
    assert session.statistics(id).prefilled_positions == 2
    assert {anchor.request for anchor in session.drafter.proposed[calls:]} == {id}  # type: ignore[attr-defined]
    assert session.output(0) == first


def test_a_finished_request_cannot_be_cancelled_any_more() -> None:
    target = ScriptedTarget()
    session = Session(target, ScriptedDrafter(target, right_then_wrong(target, 4, lambda _a: 4)))
    run(session, Request((1, 2), 5))
    session.cancel(0)
    assert session.finish(0) is Finish.LENGTH


def test_a_text_that_fills_the_context_says_so() -> None:
    target = ScriptedTarget(max_positions=16)
    session = make(target)
    [output] = run(session, Request((1, 2), 99))
    assert output == target.continuation((1, 2), 14)
    assert session.finish(0) is Finish.CONTEXT


def test_a_block_that_would_leave_the_drafters_positions_is_not_drafted() -> None:
    target = ScriptedTarget(max_positions=40)
    session = make(target, max_positions=20)
    [output] = run(session, Request((1, 2), 99))
    assert output == target.continuation((1, 2), 18)
    assert max(anchor.position for anchor in session.drafter.proposed) <= 16  # type: ignore[attr-defined]


def test_zero_acceptance_is_counted_pitfalls_10_and_27() -> None:
    session = make(ScriptedTarget(), right=0)
    run(session, Request((1,), 11))
    statistics = session.statistics(0)
    assert statistics.never_accepted
    assert statistics.zero_accept_rounds == statistics.longest_zero_streak == 9  # 10 rounds; the last verifies no draft
    assert statistics.tokens_per_round == 1.0


def test_a_few_rejected_drafts_are_no_sign_of_a_wrong_drafter() -> None:
    session = make(ScriptedTarget(), right=0)
    run(session, Request((1,), 6))
    assert session.statistics(0).verified[0] == 4
    assert not session.statistics(0).never_accepted


def test_a_streak_of_zero_acceptance_ends_with_an_accepted_draft_and_not_with_an_undrafted_round() -> None:
    statistics = RequestStatistics(4)
    for verified, accepted in ((4, 0), (4, 0), (4, 3), (4, 0), (0, 0), (4, 0), (4, 0), (4, 1)):
        statistics.count_round(drafted=4, verified=verified, accepted=accepted, tokens=accepted + 1)
    assert statistics.zero_accept_rounds == 5
    assert statistics.longest_zero_streak == 3
    assert statistics.accepted == [2, 1, 1, 0]
    both = total([statistics, statistics])
    assert (both.accepted, both.zero_accept_rounds, both.longest_zero_streak) == ([4, 2, 2, 0], 10, 3)
    assert (both.rounds, both.round_tokens) == (16, 24)
