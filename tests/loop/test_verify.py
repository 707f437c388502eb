"""Acceptance rules on hand-made logits."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scripted import ScriptedDrafter, ScriptedTarget, right_then_wrong, run

from monodraft.errors import InputError, StepFailed
from monodraft.loop.request import Request
from monodraft.loop.sampling import Sampling, derive_seed, target_probabilities
from monodraft.loop.session import Session
from monodraft.loop.verify import (
    Finish,
    Verdict,
    accept_greedy,
    accept_sampled,
    confident_prefix,
    kept_tokens,
    usable_prefix,
)

pytestmark = pytest.mark.numbers

NAN, INFINITY = float("nan"), float("inf")


def one_hot_logits(*tokens: int, vocab: int = 6) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(tokens), vocab).float() * 5


@pytest.mark.parametrize(
    ("drafted", "verdict"),
    [
        ([1, 2, 3], Verdict(3, 4)),
        ([1, 2, 0], Verdict(2, 3)),
        ([0, 2, 3], Verdict(0, 1)),
        ([1, 0, 3], Verdict(1, 2)),  # a right token behind a wrong one does not count
        ([], Verdict(0, 1)),
    ],
)
def test_greedy_accepts_the_leading_argmaxes(drafted: list[int], verdict: Verdict) -> None:
    assert accept_greedy(drafted, one_hot_logits(1, 2, 3, 4)[: len(drafted) + 1]) == verdict


def test_greedy_takes_the_lowest_id_of_a_tie() -> None:
    assert accept_greedy([], torch.tensor([[0.0, 3.0, 3.0, 1.0]])) == Verdict(0, 1)


@given(seed=st.integers(0, 10**9), count=st.integers(0, 4))
def test_sampled_accepts_all_of_a_drafter_that_is_the_target(seed: int, count: int) -> None:
    """p = q: u < 1 always; and the bonus is a token that p allows."""
    logits = torch.randn(count + 1, 6, generator=torch.Generator().manual_seed(seed))
    logits[:, 3] = -math.inf
    verdict = accept_sampled([0, 1, 2, 4][:count], logits[:count], logits, Sampling(1.3), seed=seed, position=7)
    assert verdict.accepted == count
    assert verdict.next_token != 3


@pytest.mark.parametrize("count", [0, 1, 3])
def test_bonus_comes_from_the_row_behind_the_last_draft(count: int) -> None:
    logits = one_hot_logits(1, 2, 3, 4)[: count + 1] * 20
    verdict = accept_sampled([1, 2, 3][:count], logits[:count], logits, Sampling(1.0), seed=1, position=5)
    assert verdict == Verdict(count, count + 1)


@given(seed=st.integers(0, 10**9))
def test_sampled_rejects_what_the_target_cannot_say(seed: int) -> None:
    p = torch.tensor([[0.0, 1.0, -math.inf]] * 2)
    q = torch.tensor([[0.0, 0.0, 9.0]])
    verdict = accept_sampled([2], q, p, Sampling(1.0), seed=seed, position=0)
    assert verdict.accepted == 0
    assert verdict.next_token in (0, 1)


def test_correction_never_repeats_a_token_that_q_overrates() -> None:
    """max(p - q, 0) is 0 where q >= p: the corrections all come from the ids that q underrates."""
    p = torch.tensor([[0.5, 0.3, 0.2]]).log().repeat(2, 1)
    q = torch.tensor([[0.1, 0.1, 0.8]]).log()
    verdicts = [accept_sampled([2], q, p, Sampling(1.0), seed=s, position=0) for s in range(300)]
    rejected = [v for v in verdicts if v.accepted == 0]
    assert 200 < len(rejected) < 250  # 1 - 0.2 / 0.8 = 3 in 4; three sigma is 22
    assert {v.next_token for v in rejected} == {0, 1}


def test_residual_without_mass_falls_back_to_p() -> None:
    """q >= p everywhere up to rounding, and still a rejection: the correction is drawn from p."""
    p = torch.tensor([[0.5, 0.5, 1e-12]], dtype=torch.float64).log().repeat(2, 1)
    q = torch.tensor([[0.5, 0.5, 2e-9]], dtype=torch.float64).log()
    verdicts = [accept_sampled([2], q, p, Sampling(1.0), seed=s, position=0) for s in range(40)]
    assert {v.accepted for v in verdicts} == {0}
    assert {v.next_token for v in verdicts} == {0, 1}


def test_top_k_and_top_p_shape_the_target_before_it_judges() -> None:
    logits = torch.tensor([[4.0, 3.0, 2.0, 1.0]])
    p = logits.double().softmax(-1)[0]
    k2 = target_probabilities(logits, Sampling(1.0, top_k=2))[0]
    assert k2.tolist() == pytest.approx([*(p[:2] / p[:2].sum()).tolist(), 0, 0])
    assert target_probabilities(logits, Sampling(1.0, top_p=0.5))[0].tolist() == [1, 0, 0, 0]
    assert target_probabilities(logits, Sampling(0.5))[0].tolist() == pytest.approx(
        (logits * 2).softmax(-1)[0].tolist()
    )
    for seed in range(50):  # drafts outside the top-k are rejected, however sure the drafter is
        verdict = accept_sampled(
            [3], torch.tensor([[0, 0, 0, 9.0]]), logits.repeat(2, 1), Sampling(1.0, top_k=2), seed=seed, position=0
        )
        assert verdict.accepted == 0
        assert verdict.next_token in (0, 1)


def test_draws_of_draft_and_verification_never_share_a_seed() -> None:
    seeds = {derive_seed(s, purpose, at) for s in range(50) for purpose in ("draft", "verify") for at in range(50)}
    assert len(seeds) == 50 * 2 * 50
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(
    ("tokens", "room", "kept", "finish"),
    [
        ([1, 2, 3], 9, [1, 2, 3], None),
        ([1, 2, 3], 3, [1, 2, 3], Finish.LENGTH),
        ([1, 2, 3], 2, [1, 2], Finish.LENGTH),
        ([7, 2, 3], 9, [7], Finish.STOP),
        ([1, 7, 3], 9, [1, 7], Finish.STOP),
        ([1, 2, 7], 9, [1, 2, 7], Finish.STOP),
        ([1, 2, 7], 3, [1, 2, 7], Finish.STOP),  # both at once: it stopped by itself
        ([1, 2, 7], 2, [1, 2], Finish.LENGTH),
    ],
)
def test_text_is_cut_behind_a_stop_token_and_at_the_limit(
    tokens: list[int], room: int, kept: list[int], finish: Finish | None
) -> None:
    assert kept_tokens(tokens, frozenset({7}), room) == (kept, finish)


@pytest.mark.parametrize(
    ("logits", "threshold", "width"),
    [
        ([2.0, 2.0, -2.0, 2.0], 0.5, 2),
        ([-2.0, 2.0], 0.5, 0),
        ([2.0, 2.0], 0.5, 2),
        ([0.0, 0.0], 0.5, 2),  # equal to the threshold is confident
        ([2.0, NAN, 2.0], 0.5, 1),
        ([-9.0, -9.0], 0.0, None),
        (None, 0.9, None),
    ],
)
def test_confident_prefix(logits: list[float] | None, threshold: float, width: int | None) -> None:
    confidence = None if logits is None else torch.tensor(logits)
    assert confident_prefix(confidence, threshold) == width


def test_pitfall_25_ids_outside_the_vocabulary_and_nan_logits_cut_the_block() -> None:
    assert usable_prefix([1, 2, 6, 3], None, 6) == 2
    assert usable_prefix([1, -1, 2], None, 6) == 1
    for bad in ([0.0, NAN], [0.0, INFINITY], [INFINITY, INFINITY], [-INFINITY, -INFINITY]):
        assert usable_prefix([1, 2, 3], torch.tensor([[0.0, 1.0], bad, [0.0, -INFINITY]]), 6) == 1
    assert usable_prefix([1, 2], torch.tensor([[0.0, 1.0], [-INFINITY, 0.0]]), 6) == 2
    assert usable_prefix([1, 2, 3], torch.zeros(3, 1), 6) == 3


def test_pitfall_25_a_wild_id_costs_drafts_and_never_the_text() -> None:
    target = ScriptedTarget()
    good = right_then_wrong(target, 4, lambda _a: 4)
    script = lambda anchor, text: ([*good(anchor, text)[0][:2], 2**40, -3], None, None)  # noqa: E731
    session = Session(target, ScriptedDrafter(target, script))
    [output] = run(session, Request((1, 2), 20))
    assert output == target.continuation((1, 2), 20)
    statistics = session.statistics(0)
    assert statistics.accepted[:2] == statistics.verified[:2] == [statistics.accepted[0]] * 2
    assert statistics.accepted[2:] == [0, 0]
    assert statistics.unusable_drafts > 0


@pytest.mark.parametrize("bad", [NAN, INFINITY, -INFINITY])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0)])
def test_pitfall_25_nan_in_the_target_is_an_error_and_not_a_token(sampling: Sampling, bad: float) -> None:
    target = ScriptedTarget(logits=lambda history: torch.full((11,), bad if len(history) > 4 else 0.0))
    session = Session(target, ScriptedDrafter(target, right_then_wrong(target, 4, lambda _a: 0)))
    with pytest.raises(StepFailed, match="NaN"):
        run(session, Request((1, 2, 3), 20, sampling=sampling))


@pytest.mark.parametrize(
    "bad", [{"temperature": -1.0}, {"temperature": NAN}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}]
)
def test_sampling_options_out_of_range_are_refused_by_name(bad: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(bad))):
        Sampling(**bad)  # type: ignore[arg-type]
