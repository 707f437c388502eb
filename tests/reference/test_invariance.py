"""Bits that must not move: batch, chunks, pages, forks, threads, decoding, ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from monodraft.checkpoint.config import Family, MarkovKind
from monodraft.checkpoint.weights import LayerWeights
from monodraft.drafter import Anchor, ContextRows, Draft
from monodraft.formats import mxfp8_torch
from monodraft.reference import ReferenceDrafter
from monodraft.reference.matrices import pack
from monodraft.testing import random_weights
from reference.cases import SIXTEEN_BIT, propose_one, random_features, same_bits, small_config, start

pytestmark = pytest.mark.numbers

CONFIG = small_config(windows=(6, None))
WEIGHTS = random_weights(CONFIG, seed=1, mxfp8=False)
FEATURES = random_features(CONFIG, 40)


def fresh(numerics: str, length: int = 23, **options: Any) -> Draft:
    """A draft after one commit of the first `length` rows, by a drafter of its own."""
    drafter = ReferenceDrafter(CONFIG, WEIGHTS, numerics, **options)
    start(drafter, 0, FEATURES[:length])
    return propose_one(drafter, 0, 7)


@pytest.mark.parametrize("numerics", SIXTEEN_BIT)
@pytest.mark.parametrize("cuts", [[1] * 23, [5, 0, 11, 7], [22, 1]])
def test_chunked_commit_is_a_single_commit(numerics: str, cuts: list[int]) -> None:
    drafter = ReferenceDrafter(CONFIG, WEIGHTS, numerics, page_size=4)
    drafter.open(0)
    done = 0
    for rows in cuts:
        drafter.commit([ContextRows(0, done, FEATURES[done : done + rows])])
        done += rows
    assert same_bits(propose_one(drafter, 0, 7), fresh(numerics))


def test_a_request_may_have_several_chunks_in_one_commit() -> None:
    drafter = ReferenceDrafter(CONFIG, WEIGHTS, "bf16", page_size=4)
    drafter.open(0)
    drafter.open(1)
    drafter.commit(
        [
            ContextRows(0, 0, FEATURES[:9]),
            ContextRows(1, 0, FEATURES[:3]),
            ContextRows(0, 9, FEATURES[9:23]),
        ]
    )
    assert same_bits(propose_one(drafter, 0, 7), fresh("bf16"))


@pytest.mark.parametrize("markov", list(MarkovKind))
@pytest.mark.parametrize("numerics", SIXTEEN_BIT)
def test_batch_of_requests_is_one_at_a_time(numerics: str, markov: MarkovKind) -> None:
    """Six requests of different lengths, one of them full of NaN, sampled and greedy mixed, in either order."""
    config = replace(CONFIG, markov=markov)
    weights = random_weights(config, seed=1, mxfp8=False)
    lengths = [0, 1, 23, 40, 6, 17]
    anchors = [Anchor(i, 3 * i + 2, n, temperature=0.8 * (i % 2), seed=i) for i, n in enumerate(lengths)]
    together = ReferenceDrafter(config, weights, numerics, page_size=4)
    for i, length in enumerate(lengths):
        start(together, i, FEATURES[:length] * (torch.nan if i == 5 else 1.0))
    drafts = {d.request: d for d in together.propose(anchors, logits=True)}
    backwards = {d.request: d for d in together.propose(anchors[::-1], logits=True)}
    for i, length in enumerate(lengths[:5]):
        alone = ReferenceDrafter(config, weights, numerics)
        start(alone, i, FEATURES[:length])
        wanted = alone.propose([anchors[i]], logits=True)[0]
        assert same_bits(drafts[i], wanted)
        assert same_bits(backwards[i], wanted)


@pytest.mark.parametrize("numerics", SIXTEEN_BIT)
def test_threads_do_not_matter(numerics: str) -> None:
    threads = torch.get_num_threads()
    one = fresh(numerics)
    try:
        torch.set_num_threads(2 if threads == 1 else 1)
        assert same_bits(one, fresh(numerics))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("options", [{"page_size": 1}, {"page_size": 7}])
def test_pages_do_not_matter(options: dict[str, Any]) -> None:
    assert same_bits(fresh("bf16", **options), fresh("bf16"))


@pytest.mark.parametrize("cuts", [[23], [7, 16], [1] * 23])
def test_windowed_pool_does_not_matter(cuts: list[int]) -> None:
    """Two windows: rows that no later block sees are dropped, or not even projected, and five pages of 2 are enough."""
    config = replace(CONFIG, windows=(6, 4))
    drafts = []
    for options in ({}, {"windowed": True, "pages": 5, "page_size": 2}):
        drafter = ReferenceDrafter(config, WEIGHTS, "bf16", **options)  # type: ignore[arg-type]
        drafter.open(0)
        for index, rows in enumerate(cuts):
            done = sum(cuts[:index])
            drafter.commit([ContextRows(0, done, FEATURES[done : done + rows])])
        drafts.append(propose_one(drafter, 0, 7))
    assert same_bits(*drafts)


@pytest.mark.parametrize("numerics", ["exact", *SIXTEEN_BIT])
def test_decoding_at_each_use_does_not_matter(numerics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = fresh(numerics)
    monkeypatch.setattr("monodraft.reference.matrices.TILE_ELEMENTS", 64 * 5)
    lazy = fresh(numerics, kept_bytes=0)
    if numerics == "exact":
        assert kept.logits is not None
        assert lazy.logits is not None
        torch.testing.assert_close(kept.logits, lazy.logits, rtol=2.0**-22, atol=2.0**-22)
    else:
        assert same_bits(kept, lazy)


@pytest.mark.parametrize("numerics", SIXTEEN_BIT)
@pytest.mark.parametrize("length", [0, 8, 10, 23])
def test_fork_is_recomputation(numerics: str, length: int) -> None:
    """The fork drafts as if recomputed, goes its own way, and source and fork do not disturb each other."""
    drafter = ReferenceDrafter(CONFIG, WEIGHTS, numerics, page_size=4)
    start(drafter, 0, FEATURES[:23])
    drafter.fork(0, 1, length)
    assert same_bits(propose_one(drafter, 1, 7), fresh(numerics, length))
    other = random_features(CONFIG, 40, seed=9)
    drafter.commit([ContextRows(1, length, other[length:])])
    assert same_bits(propose_one(drafter, 0, 7), fresh(numerics))
    drafter.commit([ContextRows(0, 23, FEATURES[23:])])
    drafter.close(0)
    alone = ReferenceDrafter(CONFIG, WEIGHTS, numerics)
    start(alone, 1, torch.cat([FEATURES[:length], other[length:]]))
    assert same_bits(propose_one(drafter, 1, 7), propose_one(alone, 1, 7))


def test_w8a16_is_bf16_with_quantised_weights() -> None:
    """Nothing else differs: bf16 on the decoded weights has the same bits."""

    def decoded(layer: LayerWeights) -> LayerWeights:
        names = ("q", "k", "v", "o", "gate", "up", "down")
        packed = {name: pack(getattr(layer, name)) for name in names}
        values = {name: mxfp8_torch.decode(m.elements, m.scales).bfloat16() for name, m in packed.items()}
        return replace(layer, **values)

    weights = replace(WEIGHTS, layers=tuple(decoded(layer) for layer in WEIGHTS.layers))
    drafter = ReferenceDrafter(CONFIG, weights, "bf16")
    start(drafter, 0, FEATURES[:23])
    draft = propose_one(drafter, 0, 7)
    assert same_bits(draft, fresh("w8a16"))
    assert not same_bits(draft, fresh("bf16"))


def test_released_mxfp8_bytes_are_used_as_they_are() -> None:
    """Packing bf16 weights beforehand or in the drafter is the same, and `bf16` of MXFP8 weights is `w8a16`."""
    packed = random_weights(CONFIG, seed=1, mxfp8=True)
    for numerics, name in (("w8a16", "w8a16"), ("bf16", "w8a16"), ("mxfp8", "mxfp8")):
        drafter = ReferenceDrafter(CONFIG, packed, numerics)
        start(drafter, 0, FEATURES[:23])
        assert same_bits(propose_one(drafter, 0, 7), fresh(name))


RANKED = small_config(num_heads=8, num_kv_heads=4, ffn_size=256)


@pytest.mark.parametrize("numerics", SIXTEEN_BIT)
def test_ranks_are_deterministic_and_row_invariant(numerics: str) -> None:
    weights = random_weights(RANKED, seed=1)
    features = random_features(RANKED, 9)
    finals = {}
    for ranks in (1, 2, 4, 8):
        drafter = ReferenceDrafter(RANKED, weights, numerics, ranks=ranks)
        start(drafter, 0, features)
        start(drafter, 1, features[:4])
        with drafter.recording() as record:
            both = drafter.propose([Anchor(1, 3, 4), Anchor(0, 7, 9)], logits=True)
        finals[ranks] = record["final"][RANKED.block_size :]
        assert same_bits(both[1], propose_one(drafter, 0, 7))
    # More ranks round more often: each count is a contract of its own.
    assert not torch.equal(finals[1], finals[2])
    assert not torch.equal(finals[4], finals[8])


@pytest.mark.parametrize("numerics", SIXTEEN_BIT)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_all_reduce_adds_bf16_partials_in_rank_order(numerics: str, ranks: int) -> None:
    from monodraft.reference.numerics import select

    scheme = select(numerics)
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(48, 256, generator=generator).bfloat16()
    x = torch.randn(5, 256, generator=generator).bfloat16()
    size = 256 // ranks
    total = torch.zeros(5, 48)
    for rank in range(ranks):
        part = slice(rank * size, (rank + 1) * size)
        partial = scheme.layer_linear([weight[:, part].contiguous()], True)(x[:, part])
        assert partial.dtype is torch.bfloat16
        total = total + partial.float()
    assert torch.equal(scheme.row_parallel(weight, ranks, True)(x), total.bfloat16())


def test_families_agree_in_batch() -> None:
    """Gemma4's extra norms and scalars keep the invariance too."""
    config = small_config(Family.GEMMA4)
    weights, features = random_weights(config, seed=1), random_features(config, 9)
    drafter = ReferenceDrafter(config, weights, "bf16", page_size=4)
    start(drafter, 0, features)
    start(drafter, 1, features[:4])
    both = drafter.propose([Anchor(1, 3, 4), Anchor(0, 7, 9)], logits=True)
    assert same_bits(both[1], propose_one(drafter, 0, 7))
    assert same_bits(both[0], propose_one(drafter, 1, 3))
