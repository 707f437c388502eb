"""Public bug reports about DSpark drafters (their numbers in the specification, section 6), one test each."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from monodraft.checkpoint.config import DraftConfig, Family, MarkovKind, Norm, Rotary
from monodraft.checkpoint.weights import DraftWeights
from monodraft.drafter import Anchor, ContextRows
from monodraft.reference import ReferenceDrafter
from monodraft.reference.attention import Keys, attend
from monodraft.reference.norms import RmsNorm
from monodraft.reference.numerics import Bf16, Exact
from monodraft.reference.rope import Rope
from monodraft.testing import random_weights
from reference.cases import SIXTEEN_BIT, propose_one, random_features, same_bits, small_config, start

pytestmark = pytest.mark.numbers

CPU = torch.device("cpu")


def final_rows(config: DraftConfig, weights: DraftWeights, features: torch.Tensor, **options: Any) -> torch.Tensor:
    """Final rows [g, H] of a greedy block after all of `features`."""
    drafter = ReferenceDrafter(config, weights, **options)
    start(drafter, 0, features)
    with drafter.recording() as record:
        propose_one(drafter, 0, 5)
    return record["final"]


def changed_rows(config: DraftConfig, at: int, length: int) -> list[bool]:
    """Which block rows change when the features of position `at` do."""
    weights = random_weights(config, seed=2)
    features = random_features(config, length)
    other = features.clone()
    other[at] = -other[at]
    before, after = (final_rows(config, weights, f) for f in (features, other))
    return (before != after).any(-1).tolist()


def test_1_block_stands_at_the_anchors_position() -> None:
    """Rows L .. L + g - 1: keys keep their place when all positions move together, so only distances matter.

    A block one position early would see the anchor's neighbour at distance 0.
    """
    config = small_config(num_layers=1, windows=(None,))
    drafter = ReferenceDrafter(config, random_weights(config, seed=2), "exact")
    start(drafter, 0, random_features(config, 9))
    with drafter.recording() as record:
        propose_one(drafter, 0, 5)
    rope = Rope(config, CPU)
    raw = record["layer0.q_linear"]
    norm = RmsNorm(random_weights(config, seed=2).layers[0].q_norm, config.rms_norm_eps, config.norm)
    wanted = rope.rotate(norm(Exact(), raw), rope.tables(Exact(), torch.arange(9, 13)))
    assert torch.equal(record["layer0.q"], wanted)


@pytest.mark.parametrize("window", [3, 6])
def test_2_3_5_window_reaches_back_w_minus_1_and_no_further(window: int) -> None:
    """|q - key| <= W - 1: row j at L + j sees context from L + j - (W - 1) on. One layer, so nothing leaks."""
    config, length = small_config(num_layers=1, windows=(window,)), 12
    rows = range(config.block_size)
    for at in range(length):
        wanted = [length + j - at <= window - 1 for j in rows]
        # Rows that see a changed row of the context change; the window hides it from the others.
        assert changed_rows(config, at, length) == wanted, at


def test_4_no_window_is_not_a_window_of_zero() -> None:
    config = small_config(num_layers=1, windows=(None,))
    assert changed_rows(config, 0, 12) == [True] * config.block_size


@pytest.mark.parametrize(("window", "seen"), [(None, 3), (4, 3), (3, 2), (2, 1), (1, 0)])
def test_5_6_earlier_rows_see_later_rows_within_the_window(window: int | None, seen: int) -> None:
    """Attention of row 0 alone: v of block row j changes it exactly when j < W."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(4, 2, 8, generator=generator).bfloat16() for _ in range(3))
    empty = Keys(9, q[:0], q[:0])

    def row_zero(values: torch.Tensor) -> torch.Tensor:
        return attend(Bf16(), q, empty, Keys(9, k, values), window, 1.0)[0]

    for j in range(1, 4):
        other = v.clone()
        other[j] += 1
        assert torch.equal(row_zero(v), row_zero(other)) == (j > seen)


def test_6_a_later_block_row_changes_an_earlier_one() -> None:
    """The mask token's embedding stands in rows 1 .. g - 1 only; row 0 sees it through attention."""
    config = small_config()
    weights = random_weights(config, seed=2)
    embed = weights.embed.clone()
    embed[config.mask_token_id] = -embed[config.mask_token_id]
    features = random_features(config, 9)
    before = final_rows(config, weights, features)
    after = final_rows(config, replace(weights, embed=embed), features)
    assert not torch.equal(before[0], after[0])


def test_9_a_fork_has_its_prefix() -> None:
    """A restored prefix without context K/V drafts differently: the fork is not such a one."""
    config = small_config()
    drafter = ReferenceDrafter(config, random_weights(config, seed=2))
    start(drafter, 0, random_features(config, 9))
    drafter.fork(0, 1, 9)
    drafter.open(2)
    assert same_bits(propose_one(drafter, 1, 5), propose_one(drafter, 0, 5))
    assert not same_bits(propose_one(drafter, 1, 5), propose_one(drafter, 2, 5))


@pytest.mark.parametrize("accepted", [0, 1, 4])
@pytest.mark.parametrize("numerics", SIXTEEN_BIT)
def test_18_rounds_with_few_or_no_accepted_rows(numerics: str, accepted: int) -> None:
    """After a round only the anchor's and the accepted rows are committed; nothing of the block stays."""
    config = small_config(windows=(6, None))
    weights, features = random_weights(config, seed=2), random_features(config, 30)
    drafter = ReferenceDrafter(config, weights, numerics, page_size=4)
    start(drafter, 0, features[:9])
    length = 9
    for _ in range(3):
        propose_one(drafter, 0, 5)
        drafter.commit([ContextRows(0, length, features[length : length + accepted + 1])])
        length += accepted + 1
    alone = ReferenceDrafter(config, weights, numerics)
    start(alone, 0, features[:length])
    assert same_bits(propose_one(drafter, 0, 6), propose_one(alone, 0, 6))


def test_stale_slots_are_never_read() -> None:
    """Every slot that holds no committed row is NaN at every step; a single read would make the draft NaN."""
    config = small_config(windows=(6, None))
    weights, features = random_weights(config, seed=2), random_features(config, 30)
    drafter = ReferenceDrafter(config, weights, "bf16", pages=9, page_size=4)
    drafter.open(0)
    written = torch.zeros(9 * 4, dtype=torch.bool)
    for length in range(30):
        for pool in (drafter.pool.keys, drafter.pool.values):
            pool.flatten(1, 2)[:, ~written] = torch.nan
        draft = propose_one(drafter, 0, 5)
        assert draft.logits is not None
        assert draft.logits.isfinite().all()
        before = drafter.pool.keys.flatten(1, 2).clone()
        drafter.commit([ContextRows(0, length, features[length : length + 1])])
        after = drafter.pool.keys.flatten(1, 2)
        fresh = ((before != after) & ~(before.isnan() & after.isnan())).any(-1).any(-1).any(0)
        assert fresh.sum() == 1, "a commit of one row writes one slot"
        written |= fresh


def test_proposing_writes_nothing() -> None:
    config = small_config()
    drafter = ReferenceDrafter(config, random_weights(config, seed=2), pages=4, page_size=4)
    drafter.pool.keys.zero_()
    drafter.pool.values.zero_()
    start(drafter, 0, random_features(config, 9))
    before = drafter.pool.keys.clone(), drafter.pool.values.clone()
    propose_one(drafter, 0, 5)
    assert torch.equal(before[0], drafter.pool.keys)
    assert torch.equal(before[1], drafter.pool.values)


@pytest.mark.parametrize(("weight", "factor"), [(2.0**-9, 1 + 2.0**-9), (-1.0, 0.0), (0.0, 1.0)])
def test_24_gemma_adds_one_in_float32(weight: float, factor: float) -> None:
    """1 + 2^-9 is 1 in bf16; w = -1 switches a channel off."""
    x = torch.tensor([[3.0, -1.0, 2.0, 0.5]])
    norm = RmsNorm(torch.full((4,), weight).bfloat16(), 0.0, Norm.GEMMA)
    plain = RmsNorm(None, 0.0, Norm.GEMMA)
    assert torch.equal(norm(Bf16(), x), plain(Bf16(), x) * factor)
    as_rms = RmsNorm(torch.full((4,), weight).bfloat16(), 0.0, Norm.RMS)
    assert torch.equal(as_rms(Bf16(), x), plain(Bf16(), x) * weight)


@pytest.mark.parametrize("markov", list(MarkovKind))
@pytest.mark.parametrize("numerics", ["exact", *SIXTEEN_BIT])
def test_25_nan_gives_ids_of_the_vocabulary(numerics: str, markov: MarkovKind) -> None:
    config = small_config(markov=markov)
    drafter = ReferenceDrafter(config, random_weights(config, seed=2), numerics)
    start(drafter, 0, random_features(config, 9) * torch.nan)
    for temperature in (0.0, 1.0):
        draft = drafter.propose([Anchor(0, 5, 9, temperature=temperature)], logits=True)[0]
        assert draft.logits is not None
        assert draft.logits.isnan().all()
        assert draft.tokens.tolist() == [0] * config.block_size


def test_25_a_nan_row_of_the_vocabulary_is_never_drafted() -> None:
    config = small_config()
    weights = random_weights(config, seed=2)
    drafter = ReferenceDrafter(config, weights)
    start(drafter, 0, random_features(config, 9))
    chosen = int(propose_one(drafter, 0, 5).tokens[0])
    head = weights.lm_head.clone()
    head[chosen] = torch.nan
    other = ReferenceDrafter(config, replace(weights, lm_head=head))
    start(other, 0, random_features(config, 9))
    draft = propose_one(other, 0, 5)
    assert draft.logits is not None
    assert draft.logits[:, chosen].isnan().all()
    assert chosen not in draft.tokens.tolist()


@pytest.mark.parametrize("length", [0, 1, 2])
def test_28_windows_at_the_first_positions(length: int) -> None:
    """Positions 0, 1, 2 with a window longer than what there is: the same as full attention."""
    config = small_config(windows=(6, 6))
    weights, features = random_weights(config, seed=2), random_features(config, length)
    wide = replace(config, windows=(None, None))
    assert torch.equal(final_rows(config, weights, features), final_rows(wide, weights, features))


def test_31_theta_changes_the_draft() -> None:
    config = small_config()
    weights, features = random_weights(config, seed=2), random_features(config, 30)
    other = replace(config, rope_theta=1e4)
    assert not torch.equal(final_rows(config, weights, features), final_rows(other, weights, features))


def test_15_rope_turns_pairs_and_keeps_their_length() -> None:
    """cos^2 + sin^2 of two float32 is 1 within 2^-23, so a pair's length within 2^-24, and some for float64."""
    config = small_config(Family.QWEN3, rotary_dim=32)
    rope = Rope(config, CPU)
    x = torch.randn(6, 2, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = rope.rotate(x, rope.tables(Exact(), torch.tensor([0, 1, 2, 77, 4095, 100_000])))
    before, after = (torch.hypot(v[..., :16], v[..., 16:]) for v in (x, y))
    assert ((after - before).abs() <= before * 2.0**-23).all()


def test_32_the_window_is_that_of_the_layer() -> None:
    """A row of the context out of the first layer's window is seen where the second has none, and the other way."""
    for windows, seen in (((3, None), True), ((None, 3), True), ((3, 3), False)):
        config = small_config(num_layers=2, windows=windows)
        assert changed_rows(config, 0, 12) == [seen] * config.block_size, windows


@pytest.mark.parametrize("rotary", list(Rotary))
def test_partial_rope_leaves_the_rest_untouched(rotary: Rotary) -> None:
    """Head 32, 8 dims turned: (d, d + 4), or (d, d + 16) for Gemma4; all other dims keep their bits."""
    family = Family.MINIMAX_M31 if rotary is Rotary.LEADING else Family.GEMMA4
    config = small_config(family, rotary_dim=8, rotary=rotary)
    rope = Rope(config, CPU)
    x = torch.randn(5, 2, 32, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([0, 1, 7, 1000, 4095])
    y = rope.rotate(x, rope.tables(Bf16(), positions))
    gap = 4 if rotary is Rotary.LEADING else 16
    turned = [*range(4), *range(gap, gap + 4)]
    rest = [d for d in range(32) if d not in turned]
    assert torch.equal(y[..., rest], x[..., rest])
    assert torch.equal(y[0], x[0]), "position 0 turns nothing"
    for d in range(4):
        frequency = config.rope_theta ** (-2 * d / (8 if rotary is Rotary.LEADING else 32))
        for row, position in enumerate(positions.tolist()):
            cos, sin = math.cos(position * frequency), math.sin(position * frequency)
            a, b = x[row, :, d].double(), x[row, :, d + gap].double()
            # float32 angle: 3 roundings of at most 2^-24 of the angle, then those of the products and their sum.
            bound = (a.abs() + b.abs()) * (4 * position * frequency + 4) * 2.0**-24
            assert ((y[row, :, d] - (a * cos - b * sin)).abs() <= bound).all()
            assert ((y[row, :, d + gap] - (b * cos + a * sin)).abs() <= bound).all()


def test_rope_frequencies_are_those_of_transformers() -> None:
    """inv_freq bit for bit, from an independent implementation."""
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    parameters = {"rope_type": "default", "rope_theta": 5e6}
    theirs = Qwen3RotaryEmbedding(Qwen3Config(head_dim=128, rope_parameters=parameters))
    config = small_config(Family.QWEN3, head_dim=128, rotary_dim=128, rope_theta=5e6)
    assert torch.equal(Rope(config, CPU).inv_freq, theirs.inv_freq)


def test_ties_go_to_the_lowest_id() -> None:
    """Two ids with the same rows of LM head and w2 tie exactly; the lower one is drafted."""
    config = small_config()
    weights = random_weights(config, seed=2)
    drafter = ReferenceDrafter(config, weights)
    start(drafter, 0, random_features(config, 9))
    chosen = int(propose_one(drafter, 0, 5).tokens[0])
    twin = 0 if chosen else config.vocab_size - 2
    head, w2 = weights.lm_head.clone(), weights.markov_w2.clone()
    head[twin], w2[twin] = head[chosen], w2[chosen]
    other = ReferenceDrafter(config, replace(weights, lm_head=head, markov_w2=w2))
    start(other, 0, random_features(config, 9))
    proposal = other.propose_with_margins([Anchor(0, 5, 9)], logits=True)[0]
    assert int(proposal.draft.tokens[0]) == min(chosen, twin)
    assert float(proposal.margins[0]) == 0.0
