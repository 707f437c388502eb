"""What the one-launch step refuses, before anything is allocated, and what its sizes are."""

from itertools import pairwise

import pytest

from monodraft.checkpoint.config import DraftConfig, Family, MarkovKind
from monodraft.errors import InputError
from monodraft.plan.cost import layer_projection, projection, stage_costs
from monodraft.plan.device import check_device
from monodraft.plan.gpus import find_gpu
from monodraft.plan.layout import exchange_block, local_block, weight_block
from monodraft.plan.lds import LDS_BYTES, lds_map
from monodraft.plan.shape import AllReduce, StepShape
from monodraft.plan.step import Plan, Repeat
from monodraft.testing import random_config

pytestmark = pytest.mark.numbers

M31 = {
    "hidden_size": 6144, "num_layers": 5, "head_dim": 128, "num_heads": 64, "num_kv_heads": 4, "ffn_size": 12288,
    "vocab_size": 200064, "markov_rank": 256, "windows": (4096,) * 5, "target_layer_ids": (3, 17, 31, 45, 59),
    "max_positions": 524288,
}  # fmt: skip
"""Sizes of MiniMax-M3.1's drafter."""


def shape(config: DraftConfig | None = None, **options: object) -> StepShape:
    return StepShape(config or random_config(), **{"ctas": 4, "positions": 512, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("overrides", "options", "named"),
    [
        ({}, {"requests": 3}, "requests"),
        ({"block_size": 17}, {}, "block_size"),
        ({}, {"context_rows": 17}, "context_rows"),
        ({}, {"requests": 0, "context_rows": 0}, "does something"),
        ({}, {"positions": 5000}, "max_positions = 4096"),
        ({}, {"ctas": 0}, "ctas"),
        ({}, {"ctas": 513}, "ctas"),
        ({}, {"page_size": 48}, "page_size"),
        ({}, {"waves": 4}, "order of the sums"),
        ({}, {"ranks": 3}, "ranks"),
        ({"num_heads": 12}, {"ranks": 8}, "num_heads"),
        ({"vocab_size": 511}, {"ranks": 2}, "vocab_size"),
        ({"hidden_size": 192}, {}, "hidden_size"),
        ({"head_dim": 48, "rotary_dim": 32}, {}, "head_dim"),
        ({"markov_rank": 40}, {}, "markov_rank"),
        ({}, {"ranks": 1, "all_reduce": AllReduce.TWO_STAGE}, "all_reduce"),
        ({}, {"splits": 3}, "splits"),
        ({}, {"splits": 2}, "one task a CTA"),
        ({"vocab_size": 514}, {"sampled": True}, "vocab_size"),
    ],
)
def test_refused_with_the_field_and_what_is_wanted(overrides: dict, options: dict, named: str) -> None:
    with pytest.raises(InputError, match=named):
        shape(random_config(**overrides), **options)


def test_gemma4_is_refused_with_every_reason() -> None:
    with pytest.raises(InputError) as error:
        shape(random_config(Family.GEMMA4))
    for field in ("rotary", "activation", "logit_softcap", "value_norm", "sandwich_norms", "layer_scalars"):
        assert field in str(error.value)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", list(MarkovKind))
def test_blocks_are_aligned_and_do_not_overlap(ranks: int, kind: MarkovKind) -> None:
    each = shape(random_config(markov=kind), ranks=ranks)
    for block in (weight_block(each), local_block(each), exchange_block(each)):
        spans = []
        for array in block.arrays:
            layers = block.layers if array.per_layer else 1
            spans += [(block.offset(array.name, i), array.nbytes) for i in range(layers)]
        spans.sort()
        assert all(start % 256 == 0 for start, _ in spans)
        assert all(a + n <= b for (a, n), (b, _) in pairwise(spans))
        assert spans[-1][0] + spans[-1][1] <= block.nbytes


def test_launches_of_fewer_requests_share_a_layout() -> None:
    one, two = shape(requests=1, capacity=2), shape(requests=2, capacity=2)
    assert local_block(one) == local_block(two)
    assert exchange_block(one) == exchange_block(two)


def test_released_sizes_fit_the_machine() -> None:
    released = shape(random_config(**M31), ranks=4, ctas=256, positions=8192)
    assert lds_map(released).nbytes <= LDS_BYTES
    assert weight_block(released).nbytes == pytest.approx(3.95e9, rel=0.02)  # embedding and w1 are on every rank


def test_a_layer_on_paper_is_its_share_of_the_step() -> None:
    """Five layers, and what is not of a layer, are the step; the layer of M3.1 is the one that docs/plan.md shows."""
    plan, gpu = Plan(shape(random_config(**M31), ranks=4, ctas=256, positions=8192)), find_gpu("mi355x")
    layer, step = layer_projection(plan, 4096, gpu), projection(plan, 4096, gpu)
    once = [cost for cost in stage_costs(plan, 4096) if plan.stage(cost.stage).repeat is not Repeat.LAYER]
    assert step.weight_bytes == 5 * layer.weight_bytes + sum(cost.weight_bytes for cost in once)
    assert step.hand_offs == 5 * layer.hand_offs + sum(cost.hand_offs for cost in once)
    assert (round(layer.weight_bytes / 1e6, 1), round(layer.kv_bytes / 1e6, 1)) == (86.0, 3.1)
    assert (layer.hand_offs, round(layer.least_us, 1), round(layer.most_us, 1)) == (9, 30.4, 57.4)


def test_keys_are_split_as_far_as_ctas_and_windows_go() -> None:
    config = random_config(**M31)
    assert shape(config, ranks=4, ctas=256, positions=8192).key_splits == 32
    assert shape(config, ranks=1, ctas=64, positions=8192).key_splits == 16
    assert shape(config, ranks=4, ctas=256, positions=512).key_splits == 4
    assert shape().key_splits == 1


def test_a_device_that_is_too_small_is_refused() -> None:
    check_device(shape(), 4)
    with pytest.raises(InputError, match="ctas: found 4, wanted at most 3"):
        check_device(shape(), 3)
    with pytest.raises(InputError, match="LDS of a CTA"):
        check_device(shape(), 4, 64 * 1024)
    with pytest.raises(InputError, match="more CTAs hold fewer rows"):
        check_device(shape(ctas=1), 1)


def test_all_reduce_is_chosen_by_size() -> None:
    config = random_config(**M31)
    assert not shape(config, ranks=4, positions=8192).two_stage
    assert shape(config, ranks=8, positions=8192).two_stage  # 84 KiB, above AITER's 80
    assert shape(config, ranks=4, requests=2, positions=8192).two_stage
