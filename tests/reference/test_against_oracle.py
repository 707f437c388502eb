"""`exact` against an independent float64 drafter, for every family, Markov kind and window."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from monodraft.checkpoint.config import DraftConfig, Family, MarkovKind
from monodraft.drafter import Anchor
from monodraft.reference import ReferenceDrafter
from monodraft.testing import random_weights
from reference import oracle
from reference.cases import propose_one, random_features, small_config, start

pytestmark = pytest.mark.numbers

# float64 rounding through two layers: hundreds of operations at 2^-53, amplified by the softmax; seen: 2e-14.
TOLERANCE = 1e-11


def compare(config: DraftConfig, anchors: list[int], mxfp8: bool | None = None, ranks: int = 1) -> None:
    """Drafts at each anchor of one sequence: one at a time here, all blocks of the sequence at once in the oracle."""
    weights = random_weights(config, seed=3, mxfp8=mxfp8)
    features = random_features(config, max(anchors))
    tokens = [(17 * i + 5) % config.vocab_size for i in range(len(anchors))]
    wanted = oracle.draft(config, weights, features, anchors, tokens)
    drafter = ReferenceDrafter(config, weights, "exact", ranks=ranks, page_size=4)
    for index, (length, token) in enumerate(zip(anchors, tokens, strict=True)):
        start(drafter, index, features[:length])
        with drafter.recording() as record:
            draft = propose_one(drafter, index, token)
        np.testing.assert_allclose(record["final"], wanted.final[index], rtol=0, atol=TOLERANCE)
        assert draft.tokens.tolist() == wanted.tokens[index].tolist()
        assert draft.logits is not None
        np.testing.assert_allclose(draft.logits, wanted.logits[index].astype(np.float32), rtol=2e-7, atol=1e-6)
        if config.has_confidence:
            assert draft.confidence is not None
            np.testing.assert_allclose(draft.confidence, wanted.confidence[index], rtol=2e-7, atol=1e-6)


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("markov", list(MarkovKind))
@pytest.mark.parametrize("family", list(Family))
def test_drafts_as_the_independent_drafter(family: Family, markov: MarkovKind, window: int | None) -> None:
    compare(small_config(family, markov=markov, windows=(window, window)), [0, 1, 5, 6, 7, 14])


@pytest.mark.parametrize("window", [1, 2, 3, 5])
def test_windows_shorter_than_the_block(window: int) -> None:
    """A window of 1 sees only itself, one below the block also hides block rows, on both sides."""
    compare(small_config(windows=(window, window)), [0, 1, 2, 9])


def test_layers_may_have_different_windows() -> None:
    compare(small_config(windows=(3, None)), [0, 11])


@pytest.mark.parametrize("mxfp8", [False, True])
def test_both_kinds_of_linear(mxfp8: bool) -> None:
    compare(small_config(mxfp8_linears=mxfp8), [9], mxfp8=mxfp8)


def test_ranks_do_not_change_exact_results() -> None:
    compare(small_config(), [9], ranks=2)


def test_confidence_without_the_markov_row() -> None:
    compare(small_config(confidence_with_markov=False), [9])


@pytest.mark.parametrize("theta", [1e4, 5e6])
def test_theta_is_the_configs(theta: float) -> None:
    compare(small_config(rope_theta=theta), [3000 // 100], mxfp8=False)


def test_float32_exact_is_near_float64_exact() -> None:
    from monodraft.reference import Exact

    config = small_config(mxfp8_linears=False)
    weights, features = random_weights(config, seed=3), random_features(config, 9)
    finals = []
    for numerics in (Exact(), Exact(torch.float32)):
        drafter = ReferenceDrafter(config, weights, numerics)
        start(drafter, 0, features)
        with drafter.recording() as record:
            drafter.propose([Anchor(0, 5, 9)])
        finals.append(record["final"].double())
    error = float((finals[0] - finals[1]).abs().max())
    # 2^-24 per operation, of the order of a hundred operations in a row on values of order 1.
    assert 0 < error < 500 * 2.0**-24
