"""Public bug reports of other engines, each as the smallest test of the right behaviour (numbers: docs of the spec)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scripted import ScriptedDrafter, ScriptedTarget, right_then_wrong, run
from tiny_models import LAYERS, tiny_draft_config, tiny_model

from monodraft.checkpoint.config import Family
from monodraft.drafter import Anchor, ContextRows
from monodraft.errors import InputError
from monodraft.loop.request import Request
from monodraft.loop.session import Session
from monodraft.loop.target import Target
from monodraft.loop.target_model import TargetOutput, TargetRows
from monodraft.reference import ReferenceDrafter
from monodraft.testing import random_weights

pytestmark = pytest.mark.numbers


class Recorder(ScriptedTarget):
    """Remembers every call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[TargetRows] = []

    def forward(self, rows: list[TargetRows]) -> list[TargetOutput]:  # type: ignore[override]
        self.calls += rows
        return super().forward(rows)


def test_pitfall_1_the_anchor_sits_behind_the_committed_rows() -> None:
    target = ScriptedTarget()
    drafter = ScriptedDrafter(target, right_then_wrong(target, 4, lambda _a: 2))
    prompt = (1, 2, 3, 4, 5)
    [output] = run(Session(target, drafter), Request(prompt, 9))
    text = [*prompt, *output]
    assert [anchor.position for anchor in drafter.proposed] == [5, 8, 11]  # L = P, then two drafts and a correction on
    assert all(text[anchor.position] == anchor.token for anchor in drafter.proposed)


def test_pitfalls_11_12_and_13_the_verified_width_varies_by_round_and_the_text_does_not() -> None:
    target = ScriptedTarget()
    widths = iter([4, 0, 1, 3, 2, 4, 0, 0, 4] * 9)
    session = Session(target, ScriptedDrafter(target, right_then_wrong(target, 4, lambda _a: next(widths))))
    [output] = run(session, Request((7,), 40))
    assert output == target.continuation((7,), 40)


def test_pitfall_18_a_fully_rejected_block_commits_the_old_anchor_alone() -> None:
    target = Recorder()
    committed: list[ContextRows] = []

    class Watching(ScriptedDrafter):
        def commit(self, rows) -> None:  # type: ignore[no-untyped-def]
            committed.extend(rows)
            super().commit(rows)

    run(Session(target, Watching(target, right_then_wrong(target, 4, lambda _a: 0))), Request((1, 2, 3), 6))
    assert [(rows.start, len(rows.features)) for rows in committed] == [(0, 3), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1)]
    assert all(len(cache) == 8 for cache in target.caches.values())  # no rejected row stays in the target either


def test_pitfall_20_row_0_of_the_verify_pass_is_the_anchor_and_judges_the_first_draft() -> None:
    target = Recorder()
    drafter = ScriptedDrafter(target, right_then_wrong(target, 4, lambda _a: 4))
    [output] = run(Session(target, drafter), Request((1, 2, 3), 6))
    prefill, verify = target.calls
    assert (prefill.start, prefill.tokens, prefill.logits) == (0, (1, 2, 3), 1)
    assert (verify.start, verify.tokens, verify.logits) == (3, tuple(output[:5]), 5)  # g + 1 rows; row 4 is the bonus


def test_pitfall_28_a_prompt_of_one_token_starts_the_window_at_position_0() -> None:
    session = Session(Target(tiny_model(), LAYERS), windowed_drafter(4))
    plain = Session(Target(tiny_model(), LAYERS), windowed_drafter(4))
    assert run(session, Request((5,), 20)) == run(plain, Request((5,), 20, confidence_threshold=1.0))


def windowed_drafter(window: int) -> ReferenceDrafter:
    config = tiny_draft_config(Family.MINIMAX_M31)
    config = replace(config, windows=(window,) * config.num_layers)
    return ReferenceDrafter(config, random_weights(config), "bf16", page_size=2, windowed=True)


def test_pitfall_9_a_prefix_whose_draft_window_is_gone_is_refused_and_opens_nothing() -> None:
    """The pool kept the last window only: a fork far behind it would draft from rows that are not there."""
    drafter = windowed_drafter(4)
    target = Target(tiny_model(), LAYERS)
    session = Session(target, drafter)
    prompt = tuple(range(1, 31))
    [output] = run(session, Request(prompt, 10))
    with pytest.raises(InputError, match="window"):
        session.add(Request((*prompt[:12], 90), 5, prefix_of=0))
    assert not session.running
    id = session.add(Request((*prompt, *output, 3), 5, prefix_of=0))  # the end of the text is still there
    while session.running:
        session.step()
    assert session.statistics(id).restored_positions == 39
    assert target.length(id) == drafter.pool.length(id) == 39 + 2 + 4


def test_pitfall_35_the_drafter_always_runs_its_whole_block() -> None:
    """Only the verified prefix is cut: a block of fewer rows would show its rows something else than in training."""
    target = ScriptedTarget()
    drafter = ScriptedDrafter(target, right_then_wrong(target, 4, lambda _a: 4))
    session = Session(target, drafter)
    run(session, Request((1,), 4))  # three tokens behind the first: a block of 4, of which 2 are verified
    assert session.statistics(0).drafted == [1, 1, 1, 1]
    assert session.statistics(0).verified == [1, 1, 0, 0]


def test_pitfall_14_finished_and_joining_requests_do_not_disturb_a_running_one() -> None:
    target = ScriptedTarget()

    def right(anchor: Anchor) -> int:
        return anchor.request % 3

    session = Session(target, ScriptedDrafter(target, right_then_wrong(target, 4, right)), prefill_chunk=2)
    prompts = [(i, 2 * i % 11, 3) * (i + 1) for i in range(6)]
    ids = []
    for i, prompt in enumerate(prompts):
        ids.append(session.add(Request(prompt, 1 + 7 * (i % 3))))
        session.step()
        if i == 3:
            session.release(ids[0])
    while session.running:
        session.step()
    for id, prompt in list(zip(ids, prompts, strict=True))[1:]:
        assert session.output(id) == target.continuation(prompt, len(session.output(id)))
        assert len(session.output(id)) == 1 + 7 * (id % 3)
