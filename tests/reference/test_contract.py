"""Calls that break the contract are refused with all faults at once, and leave no trace."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from monodraft.drafter import Anchor, ContextRows, Drafter
from monodraft.errors import InputError
from monodraft.reference import ReferenceDrafter
from monodraft.testing import random_weights
from reference.cases import propose_one, random_features, same_bits, small_config, start

pytestmark = pytest.mark.numbers

CONFIG = small_config(max_positions=64)
WEIGHTS = random_weights(CONFIG, seed=1)
FEATURES = random_features(CONFIG, 70)


@pytest.fixture
def drafter() -> ReferenceDrafter:
    """Request 0 with 9 positions, request 1 with none."""
    made = ReferenceDrafter(CONFIG, WEIGHTS, "bf16", pages=20, page_size=4, max_requests=3)
    start(made, 0, FEATURES[:9])
    made.open(1)
    return made


def test_it_is_a_drafter(drafter: ReferenceDrafter) -> None:
    assert isinstance(drafter, Drafter)
    assert drafter.config is CONFIG


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ContextRows(7, 0, FEATURES[:1]), r"rows\[1\].request: found 7, wanted an open request"),
        (ContextRows(0, 8, FEATURES[:1]), r"rows\[1\].start: found 8, wanted 9"),
        (ContextRows(0, 10, FEATURES[:1]), r"rows\[1\].start: found 10, wanted 9"),
        (ContextRows(1, 0, FEATURES[:2]), r"rows\[1\].start: found 0, wanted 2"),
        (ContextRows(0, 9, FEATURES[:1, :-1]), r"features: found torch.bfloat16 \[1, 191\], wanted .*\[S, 192\]"),
        (ContextRows(0, 9, FEATURES[0]), r"features: found torch.bfloat16 \[192\]"),
        (ContextRows(0, 9, FEATURES[:1].int()), "features: found torch.int32"),
        (ContextRows(0, 9, FEATURES[:56]), "positions up to 64, wanted at most 64"),
    ],
)
def test_bad_commits_store_nothing(drafter: ReferenceDrafter, rows: ContextRows, message: str) -> None:
    """Also not the good row that comes first."""
    before = propose_one(drafter, 0, 5)
    free = drafter.pool.free_pages
    with pytest.raises(InputError, match=message):
        drafter.commit([ContextRows(1, 0, FEATURES[:2]), rows])
    assert drafter.pool.length(1) == 0
    assert drafter.pool.free_pages == free
    assert same_bits(propose_one(drafter, 0, 5), before)


def test_commit_beyond_the_pool_stores_nothing() -> None:
    drafter = ReferenceDrafter(CONFIG, WEIGHTS, "bf16", pages=2, page_size=4)
    drafter.open(0)
    drafter.open(1)
    with pytest.raises(InputError, match="3 more pages of 4 positions needed, 2 free"):
        drafter.commit([ContextRows(0, 0, FEATURES[:4]), ContextRows(1, 0, FEATURES[:5])])
    assert drafter.pool.free_pages == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"request": 7}, r"anchors\[1\].request: found 7"),
        ({"position": 8}, r"anchors\[1\].position: found 8, wanted 9: positions 0..8 are committed"),
        ({"position": 10}, "found 10, wanted 9"),
        ({"token": -1}, r"token: found -1, wanted 0..95"),
        ({"token": 96}, "found 96"),
        ({"temperature": -0.1}, "temperature: found -0.1"),
        ({"temperature": math.nan}, "temperature: found nan"),
        ({"temperature": math.inf}, "temperature: found inf"),
        ({"seed": -1}, "seed: found -1"),
        ({"seed": 2**64}, "seed: found"),
    ],
)
def test_bad_anchors_are_refused(drafter: ReferenceDrafter, changes: dict[str, Any], message: str) -> None:
    good = {"request": 0, "token": 5, "position": 9}
    with pytest.raises(InputError, match=message):
        drafter.propose([Anchor(**good), Anchor(**(good | changes))])


def test_all_faults_are_said_at_once(drafter: ReferenceDrafter) -> None:
    with pytest.raises(InputError) as caught:
        drafter.propose([Anchor(0, 96, 8, temperature=-1.0), Anchor(7, 0, 0)])
    assert [fault.where for fault in caught.value.faults] == [
        "anchors[0].position",
        "anchors[0].token",
        "anchors[0].temperature",
        "anchors[1].request",
    ]


def test_last_position_drafts_and_the_one_after_is_refused() -> None:
    drafter = ReferenceDrafter(CONFIG, WEIGHTS, "bf16")
    start(drafter, 0, FEATURES[:63])
    propose_one(drafter, 0, 5)
    drafter.commit([ContextRows(0, 63, FEATURES[63:64])])
    with pytest.raises(InputError, match="position: found 64, wanted below 64"):
        propose_one(drafter, 0, 5)


def test_closed_requests_are_unknown(drafter: ReferenceDrafter) -> None:
    drafter.close(0)
    for call in (lambda: drafter.close(0), lambda: drafter.fork(0, 2, 0)):
        with pytest.raises(InputError, match="found 0, wanted an open request"):
            call()
    drafter.open(0)
    assert drafter.pool.length(0) == 0


def test_no_anchors_no_drafts(drafter: ReferenceDrafter) -> None:
    assert drafter.propose([]) == []
    drafter.commit([])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"numerics": "fp16"}, r"numerics: found 'fp16', wanted exact \| bf16 \| w8a16 \| mxfp8"),
        ({"ranks": 3}, "ranks: found 3, wanted a divisor of num_heads 4"),
        ({"ranks": 0}, "ranks: found 0"),
        ({"ranks": 8}, "ranks: found 8"),
        ({"pages": 0}, "pages: found 0, wanted at least 1"),
    ],
)
def test_impossible_drafters_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ReferenceDrafter(CONFIG, WEIGHTS, **options)


def test_mxfp8_needs_whole_blocks() -> None:
    config = small_config(head_dim=8, num_heads=6, num_kv_heads=2, mxfp8_linears=False)
    weights = random_weights(config)
    ReferenceDrafter(config, weights, "bf16")
    with pytest.raises(InputError, match=r"num_heads \* head_dim / ranks: found 48, wanted a multiple of 32"):
        ReferenceDrafter(config, weights, "mxfp8")


def test_greedy_drafts_carry_logits_only_when_asked(drafter: ReferenceDrafter) -> None:
    plain, sampled = drafter.propose([Anchor(0, 5, 9), Anchor(0, 5, 9, temperature=1.0)])
    assert plain.logits is None
    assert sampled.logits is not None
    assert sampled.logits.shape == (4, 96)
    assert sampled.logits.dtype is torch.float32
    assert sampled.tokens.dtype is torch.int64
    assert sampled.confidence is not None
    assert sampled.confidence.dtype is torch.float32


def test_no_confidence_head_no_confidence() -> None:
    config = small_config(has_confidence=False)
    drafter = ReferenceDrafter(config, random_weights(config))
    drafter.open(0)
    assert propose_one(drafter, 0, 5).confidence is None


def test_margins_are_the_lead_of_the_chosen_id(drafter: ReferenceDrafter) -> None:
    both = drafter.propose_with_margins([Anchor(0, 5, 9), Anchor(0, 5, 9, temperature=1.0)], logits=True)
    logits = both[0].draft.logits
    assert logits is not None
    top = logits.sort(-1, descending=True).values
    assert torch.equal(both[0].margins, top[:, 0] - top[:, 1])
    assert (both[1].margins > 0).all()
    assert not torch.equal(both[0].margins, both[1].margins)
