"""How many bytes a rank holds and reads in one draft round, stage by stage, from the config alone."""

from __future__ import annotations

from dataclasses import dataclass

from monodraft.checkpoint.config import DraftConfig, MarkovKind
from monodraft.plan.gpus import Gpu
from monodraft.plan.ranks import MX_BLOCK, RankSlice, rank_slice

BF16 = 2


@dataclass(frozen=True)
class StageBytes:
    """A stage's weights (or K/V) on one rank: bytes `held`, and how often a round reads them."""

    stage: str
    held: int
    reads: int = 1

    @property
    def read(self) -> int:
        """Bytes that one draft round reads if nothing stays in a cache."""
        return self.held * self.reads


def _linear(config: DraftConfig, n: int, k: int) -> int:
    return n * k + n * k // MX_BLOCK if config.mxfp8_linears else n * k * BF16


def _context_rows(window: int | None, context: int) -> int:
    """K/V rows of the context that a block row can see."""
    return context if window is None else min(context, window - 1)


def stage_bytes(config: DraftConfig, ranks: int, context: int, rank: int = 0) -> list[StageBytes]:
    """Stages of a draft round for one request whose committed context is `context` tokens, on `rank` of `ranks`.

    Weights as `plan.shard` places them; unquantised tensors count as bf16, as the backends hold them. Embedding rows
    and other reads of a few KB are left out. Raises InputError where the config does not divide over the ranks.
    """
    own: RankSlice = rank_slice(config, rank, ranks)
    hidden, head = config.hidden_size, config.head_dim
    queries, keys, ffn = len(own.heads) * head, len(own.kv_heads) * head, len(own.ffn)
    vocab, markov = len(own.vocab), config.markov_rank
    projections = 1 if config.shared_kv_projection else 2
    layers = config.num_layers
    serial = {
        MarkovKind.VANILLA: 0,
        MarkovKind.GATED: markov * (hidden + markov),
        MarkovKind.RNN: 3 * markov * (hidden + 2 * markov),
    }
    kv_rows = sum(_context_rows(window, context) for window in config.windows)
    stages = [
        StageBytes("context fc", config.feature_size * hidden * BF16),
        StageBytes(
            "q, k, v", layers * (_linear(config, queries, hidden) + projections * _linear(config, keys, hidden))
        ),
        StageBytes("attention K/V", kv_rows * 2 * keys * BF16),
        StageBytes("o", layers * _linear(config, hidden, queries)),
        StageBytes("gate, up", layers * 2 * _linear(config, ffn, hidden)),
        StageBytes("down", layers * _linear(config, hidden, ffn)),
        StageBytes("LM head", vocab * hidden * BF16),
        StageBytes("Markov w2", vocab * markov * BF16, config.block_size),
    ]
    if serial[config.markov]:
        stages.append(StageBytes(f"Markov {config.markov}", serial[config.markov] * BF16, config.block_size))
    return stages


@dataclass(frozen=True)
class Floor:
    """The least time of a round on a GPU by its bytes: `bytes_read` from memory, at spec and at measured bandwidth.
    `cached` names the stages read more than once that fit the last-level cache and so count once."""

    bytes_read: int
    spec_us: float
    measured_us: float | None
    cached: tuple[str, ...]


def bandwidth_floor(stages: list[StageBytes], gpu: Gpu) -> Floor:
    """Bytes over bandwidth. A stage that is read again counts once where its bytes fit what the cache keeps."""
    cached = tuple(stage.stage for stage in stages if stage.reads > 1 and stage.held <= gpu.cache_bytes)
    total = sum(stage.held if stage.stage in cached else stage.read for stage in stages)
    measured = None if gpu.measured_tb_s is None else total / gpu.measured_tb_s / 1e6
    return Floor(total, total / gpu.spec_tb_s / 1e6, measured, cached)
