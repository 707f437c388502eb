"""Bytes on paper against the executor's counters: each weight byte is read once a step (w2: once a slot)."""

from __future__ import annotations

import pytest
from drafts import Case, Conversation, drafters

from monodraft.plan.cost import stage_costs

pytestmark = [pytest.mark.executed, pytest.mark.slow]


def counted(case: Case) -> tuple[int, int]:
    """Bytes that one step loaded without coherence (weights, tables, inputs), and the plan's weight bytes."""
    executed, _ = drafters(case)
    conversation = Conversation((executed,), case.requests)
    try:
        conversation.turn()
        conversation.turn()
        plan, _ = executed.program(case.requests, 16)
        assert executed.report is not None
        weights = sum(cost.weight_bytes for cost in stage_costs(plan, 0))
        return executed.report.bytes["load plain"], case.ranks * weights
    finally:
        conversation.close()


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_a_larger_model_reads_more_is_its_weights_once(ranks: int) -> None:
    """Two drafters that differ in FFN and vocabulary: all else that a step reads is the same, so it cancels out."""
    small = counted(Case(ranks=ranks))
    large = counted(Case(ranks=ranks, overrides=(("ffn_size", 1024), ("vocab_size", 1024))))
    assert large[0] - small[0] == large[1] - small[1]
