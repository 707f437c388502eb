"""Rank slices, sharded weights and byte counts."""

from dataclasses import replace

import pytest
import torch
from vendors import M31, NVIDIA_M3, QWEN3_14B

from monodraft.checkpoint import config_from_dict
from monodraft.checkpoint.config import MarkovKind
from monodraft.checkpoint.loading import disassemble
from monodraft.checkpoint.weights import Matrix, Mxfp8Matrix
from monodraft.errors import InputError
from monodraft.formats import mxfp8_torch
from monodraft.plan.bytes import bandwidth_floor, stage_bytes
from monodraft.plan.gpus import GPUS, find_gpu
from monodraft.plan.ranks import RANKS, rank_slice
from monodraft.plan.shard import shard
from monodraft.testing import random_config, random_weights

pytestmark = pytest.mark.numbers


def dense(matrix: Matrix) -> torch.Tensor:
    if isinstance(matrix, Mxfp8Matrix):
        return mxfp8_torch.decode(matrix.elements, matrix.scales)
    return matrix.float()


@pytest.mark.parametrize("ranks", RANKS)
def test_slices_tile_heads_columns_and_vocabulary(ranks: int) -> None:
    config = random_config(head_dim=64)
    slices = [rank_slice(config, rank, ranks) for rank in range(ranks)]
    for name, size in (("heads", 8), ("ffn", 512), ("vocab", 512)):
        assert [i for own in slices for i in getattr(own, name)] == list(range(size))


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("kv", [1, 2, 4, 8])
def test_every_query_head_finds_its_kv_head_on_its_rank(ranks: int, kv: int) -> None:
    """Query head h reads K/V head h // (heads / kv): replicated past `kv` ranks, never split."""
    config = random_config(num_kv_heads=kv, head_dim=64)
    for rank in range(ranks):
        own = rank_slice(config, rank, ranks)
        assert {head // (8 // kv) for head in own.heads} == set(own.kv_heads)
        assert len(own.kv_heads) == max(1, kv // ranks)


@pytest.mark.parametrize("family", ["minimax-m31", "qwen3", "gemma4"])
@pytest.mark.parametrize("ranks", RANKS)
def test_shards_add_up_to_the_whole_layer(family: str, ranks: int) -> None:
    """Attention itself is left out: o of q's heads and the FFN are sums over ranks, logits concatenate."""
    config = random_config(family, hidden_size=64, head_dim=32, ffn_size=256, vocab_size=64)
    weights = random_weights(config)
    shards = [shard(config, weights, rank, ranks) for rank in range(ranks)]
    x = torch.randn(3, config.hidden_size, generator=torch.Generator().manual_seed(0)).double()
    for index, layer in enumerate(weights.layers):
        own = [part.layers[index] for part in shards]
        whole = (x @ dense(layer.q).double().T) @ dense(layer.o).double().T
        parts = sum((x @ dense(part.q).double().T) @ dense(part.o).double().T for part in own)
        torch.testing.assert_close(parts, whole, rtol=0, atol=1e-9)
        gate_up = (x @ dense(layer.gate).double().T).tanh() * (x @ dense(layer.up).double().T)
        ffn = sum(
            ((x @ dense(part.gate).double().T).tanh() * (x @ dense(part.up).double().T)) @ dense(part.down).double().T
            for part in own
        )
        torch.testing.assert_close(ffn, gate_up @ dense(layer.down).double().T, rtol=0, atol=1e-9)
        heads = [dense(part.k).unflatten(0, (-1, config.head_dim)) for part in own]
        step = max(1, ranks // config.num_kv_heads)
        assert torch.equal(torch.cat(heads[::step]).flatten(0, 1), dense(layer.k))
        assert all(torch.equal(heads[rank], heads[rank - rank % step]) for rank in range(ranks))
        assert all((part.v is part.k) == config.shared_kv_projection for part in own)
    assert torch.equal(torch.cat([part.lm_head for part in shards]), weights.lm_head)
    assert torch.equal(torch.cat([part.markov_w2 for part in shards]), weights.markov_w2)


@pytest.mark.parametrize("ranks", RANKS)
def test_pitfall_16_lm_head_and_markov_w2_are_split_at_the_same_ids(ranks: int) -> None:
    """Base and bias logits of an id come from one rank; nothing is padded, doubled or dropped."""
    config = random_config(vocab_size=520)
    weights = random_weights(config)
    shards = [shard(config, weights, rank, ranks) for rank in range(ranks)]
    for part, own in zip(shards, (rank_slice(config, rank, ranks) for rank in range(ranks)), strict=True):
        assert torch.equal(part.lm_head, weights.lm_head[own.vocab.start : own.vocab.stop])
        assert torch.equal(part.markov_w2, weights.markov_w2[own.vocab.start : own.vocab.stop])
        assert torch.equal(part.markov_w1, weights.markov_w1)
    assert torch.equal(torch.cat([part.markov_w2 for part in shards]), weights.markov_w2)


def test_replicated_tensors_are_shared_and_not_copied() -> None:
    config = random_config(markov=MarkovKind.GATED)
    weights = random_weights(config)
    part = shard(config, weights, 1, 4)
    split = {"q", "k", "v", "o", "gate", "up", "down", "scales", "lm_head", "markov_w2"}
    for role, tensor in disassemble(part).items():
        if role.split(".")[-1] not in split:
            assert tensor is disassemble(weights)[role], role


def test_released_sizes_divide() -> None:
    for raw in (M31, NVIDIA_M3, QWEN3_14B):
        config = config_from_dict(raw)
        for ranks in RANKS:
            assert rank_slice(config, ranks - 1, ranks).vocab.stop == config.vocab_size
    m31 = [rank_slice(config_from_dict(M31), rank, 8) for rank in range(8)]
    assert [own.kv_heads.start for own in m31] == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("ranks", [0, 3, 6, 16, -1])
def test_other_numbers_of_ranks_are_refused(ranks: int) -> None:
    with pytest.raises(InputError, match=rf"ranks: found {ranks}, wanted one of \(1, 2, 4, 8\)"):
        rank_slice(random_config(), 0, ranks)


def test_a_rank_outside_is_refused() -> None:
    with pytest.raises(InputError, match=r"rank: found 4, wanted 0 \.\. 3"):
        rank_slice(random_config(), 4, 4)


def test_what_does_not_divide_is_named_all_at_once() -> None:
    config = random_config("qwen3", num_heads=6, num_kv_heads=3, ffn_size=510, vocab_size=511)
    with pytest.raises(InputError) as error:
        shard(config, random_weights(config), 0, 4)
    said = {fault.where: (fault.found, fault.wanted) for fault in error.value.faults}
    assert said == {
        "num_heads": ("6", "a multiple of 4, for 4 ranks"),
        "ffn_size": ("510", "a multiple of 4, for 4 ranks"),
        "vocab_size": ("511", "a multiple of 4, for 4 ranks"),
        "num_kv_heads": ("3", "a multiple or a divisor of 4 ranks"),
    }


def test_mxfp8_splits_fall_on_blocks_of_32() -> None:
    config = random_config(head_dim=16, ffn_size=256 + 128)
    rank_slice(replace(config, mxfp8_linears=False), 0, 8)
    with pytest.raises(InputError) as error:
        rank_slice(config, 0, 8)
    said = {fault.where: fault.wanted for fault in error.value.faults}
    assert said == {
        "ffn_size": "a multiple of 256, for 8 ranks in MX blocks of 32",
        "q_size": "a multiple of 256, for 8 ranks in MX blocks of 32",
    }


@pytest.mark.parametrize(
    ("family", "ranks", "kind"),
    [("minimax-m31", 1, "vanilla"), ("minimax-m31", 8, "vanilla"), ("qwen3", 4, "gated"), ("gemma4", 4, "rnn")],
)
def test_bytes_held_are_those_of_the_sharded_tensors(family: str, ranks: int, kind: str) -> None:
    config = random_config(family, hidden_size=64, ffn_size=256, vocab_size=64, markov=MarkovKind(kind))
    held = {stage.stage: stage.held for stage in stage_bytes(config, ranks, context=0)}
    tensors = disassemble(shard(config, random_weights(config), 0, ranks))

    def size(*roles: str) -> int:
        return sum(t.nbytes for role, t in tensors.items() if {*role.split(".")} & {*roles} and "norm" not in role)

    assert held["context fc"] == size("fc")
    assert held["q, k, v"] == size("q", "k", "v")
    assert held["o"] == size("o")
    assert held["gate, up"] == size("gate", "up")
    assert held["down"] == size("down")
    assert held["LM head"] == size("lm_head")
    assert held["Markov w2"] == size("markov_w2")
    assert held.get(f"Markov {kind}", 0) == size("markov_gate", "markov_joint")


def test_bytes_of_m31_are_those_of_the_specification() -> None:
    stages = {stage.stage: stage for stage in stage_bytes(config_from_dict(M31), 1, context=10**6)}
    layers = sum(stages[name].held for name in ("q, k, v", "o", "gate, up", "down"))
    assert round(layers / 1e9, 3) == 1.719
    assert round(stages["LM head"].held / 1e9, 3) == 2.458
    assert round(stages["context fc"].held / 1e9, 3) == 0.377
    assert round(stages["Markov w2"].read / 1e9, 3) == 0.717
    # 10,240 bytes a token for 5 layers (pitfall 33), 4095 tokens of a window of 4096.
    assert stages["attention K/V"].held == 4095 * 10240
    floor = bandwidth_floor(list(stages.values()), find_gpu("h200"))
    assert floor.cached == ()
    assert round((floor.bytes_read - stages["attention K/V"].held) / 1e9, 2) == 5.27
    assert floor.spec_us == pytest.approx(floor.bytes_read / 4.8e6)


def test_markov_w2_counts_once_where_the_cache_keeps_it() -> None:
    config = config_from_dict(NVIDIA_M3)
    stages = stage_bytes(config, 4, context=4096)
    # The field notes' count at TP4: 6.3 MB of K/V, 25.6 MB of w2 a rank, which stay in 256 MB of cache.
    held = {stage.stage: stage.held for stage in stages}
    assert held["attention K/V"] == 6 * 1023 * 2 * 2 * 128 * 2
    assert held["Markov w2"] == 25_608_192
    once, every = (
        bandwidth_floor(stages, GPUS["mi355x"]),
        bandwidth_floor(stages, replace(GPUS["mi355x"], cache_bytes=0)),
    )
    assert once.cached == ("Markov w2",)
    assert every.bytes_read - once.bytes_read == 7 * held["Markov w2"]


def test_an_unknown_gpu_lists_the_known() -> None:
    with pytest.raises(InputError, match=r"found rtx4090, wanted one of mi355x, .*h200"):
        find_gpu("rtx4090")
    assert find_gpu("MI355X").name == "mi355x"
