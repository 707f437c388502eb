"""Keyed noise, sampled choices and the probabilities they are said to follow."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from monodraft.drafter import Anchor
from monodraft.reference import ReferenceDrafter, draft_probabilities, sampling
from monodraft.testing import random_weights
from reference.cases import random_features, small_config, start

pytestmark = pytest.mark.numbers

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("counter", "key", "wanted"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_has_the_published_answers(counter: str, key: str, wanted: str) -> None:
    """Known-answer vectors of Random123 (kat_vectors, philox4x32 10)."""
    words = [torch.tensor([int(word, 16)]) for word in counter.split()]
    k0, k1 = (int(word, 16) for word in key.split())
    assert [f"{int(word):08x}" for word in sampling.philox4x32(words, (k0, k1))] == wanted.split()


def test_uniform_is_keyed_as_documented() -> None:
    seed, position, token = 0x123456789ABCDEF0, 77, 4095
    u = sampling.uniform(seed, position, 4097, CPU)
    words = [torch.tensor([value]) for value in (token // 4, position, 0, 0)]
    x = int(sampling.philox4x32(words, (0x9ABCDEF0, 0x12345678))[token % 4])
    assert float(u[token]) == (x + 0.5) / 2**32
    assert u.shape == (4097,)
    assert float(u.min()) > 0
    assert float(u.max()) < 1


def test_noise_changes_with_seed_position_and_stream() -> None:
    base = sampling.uniform(1, 2, 8, CPU)
    others = [sampling.uniform(2, 2, 8, CPU), sampling.uniform(1, 3, 8, CPU), sampling.uniform(1, 2, 8, CPU, stream=1)]
    others.append(sampling.uniform(1 + 2**32, 2, 8, CPU))
    assert all(not torch.equal(base, other) for other in others)
    assert torch.equal(base[:5], sampling.uniform(1, 2, 5, CPU))


def test_largest_and_smallest_uniform_give_finite_noise() -> None:
    for u in (2.0**-33, 1 - 2.0**-33):
        assert math.isfinite(-math.log(-math.log(u)))


def noise(seed: int, positions: int, count: int) -> torch.Tensor:
    """float32 [positions, count]: the noise of positions 0.. of one seed, all at once."""
    ids, places = torch.arange(count), torch.arange(positions)[:, None]
    zero = torch.zeros(positions, count, dtype=torch.int64)
    words = torch.stack(sampling.philox4x32([zero + ids // 4, zero + places, zero, zero], (seed, 0)), -1)
    x = words.gather(-1, (zero + ids % 4)[..., None])[..., 0]
    return (-torch.log(-torch.log((x.double() + 0.5) * 2.0**-32))).float()


def test_noise_of_this_file_is_the_drafters() -> None:
    table = noise(3, 40, 10)
    assert all(torch.equal(table[place], sampling.gumbel(3, place, 10, CPU)) for place in (0, 1, 39))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_choices_follow_q(temperature: float) -> None:
    """Chi-square of 20,000 draws over 12 ids: false alarm once in 10^4 for each temperature; seeds are fixed."""
    logits = torch.randn(12, generator=torch.Generator().manual_seed(4))
    draws = torch.cat([(logits / temperature + noise(seed, 1000, 12)).argmax(-1) for seed in range(20)])
    score = sampling.scores(logits, temperature, 7, 123)
    assert int(score.argmax()) == int(draws[7 * 1000 + 123])
    counts = np.bincount(draws.numpy(), minlength=12)
    q = draft_probabilities(logits, temperature).numpy()
    assert stats.chisquare(counts, q * len(draws)).pvalue > 1e-4
    wrong = draft_probabilities(logits, temperature * 1.15).numpy()
    assert stats.chisquare(counts, wrong * len(draws)).pvalue < 1e-4, "the test could not see a wrong temperature"


def test_neighbouring_positions_and_seeds_draw_independently() -> None:
    """Chi-square of pairs over 6 x 6 ids against the product of the margins; error rate 1e-4 each."""
    choices = torch.stack([noise(seed, 200, 6).argmax(-1) for seed in range(60)])
    for first, second in ((choices[:, :-1], choices[:, 1:]), (choices[:-1], choices[1:])):
        pairs = np.histogram2d(first.flatten().numpy(), second.flatten().numpy(), bins=6)[0]
        assert stats.chi2_contingency(pairs).pvalue > 1e-4


def test_drafter_samples_from_the_logits_that_it_returns() -> None:
    config = small_config()
    weights, features = random_weights(config, seed=2), random_features(config, 11)
    drafter = ReferenceDrafter(config, weights, "bf16")
    start(drafter, 0, features)
    anchor = Anchor(0, 5, 11, temperature=0.7, seed=99)
    draft = drafter.propose([anchor])[0]
    assert draft.logits is not None
    for slot in range(config.block_size):
        noise = sampling.gumbel(99, 11 + slot, config.vocab_size, CPU)
        assert int(draft.tokens[slot]) == int((draft.logits[slot] / 0.7 + noise).argmax())
    again = drafter.propose([anchor])[0]
    assert torch.equal(again.tokens, draft.tokens)
    greedy = drafter.propose([Anchor(0, 5, 11)])[0]
    assert greedy.logits is None
    seeds = {tuple(drafter.propose([Anchor(0, 5, 11, temperature=2.0, seed=s)])[0].tokens.tolist()) for s in range(8)}
    assert len(seeds) == 8


def test_tiny_temperature_is_greedy() -> None:
    logits = torch.tensor([0.0, 1e-6, 0.0])
    assert int(sampling.scores(logits, 9e-6, 3, 4).argmax()) == 1
    assert draft_probabilities(logits, 9e-6).tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_strange_logits_give_an_id_of_the_vocabulary(temperature: float) -> None:
    nan, inf = math.nan, math.inf
    rows = torch.tensor([[nan] * 3, [-inf] * 3, [nan, -inf, 1.0], [inf, 0.0, nan], [1.0, inf, 0.0]])
    wanted = [0, 0, 2, 0, 1]
    assert [int(sampling.lowest_argmax(sampling.scores(row, temperature, 1, 2))) for row in rows] == wanted
    q = draft_probabilities(rows, temperature)
    assert q.argmax(-1).tolist() == wanted
    assert q.sum(-1).tolist() == [1.0] * 5


def test_ties_go_to_the_lowest_id() -> None:
    assert sampling.lowest_argmax(torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [-0.0, 0.0, -1.0]])).tolist() == [
        1,
        0,
        0,
    ]
