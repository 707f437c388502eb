"""The sizes of one draft step on one rank: what the plan, the kernel and the host all derive everything from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from monodraft.checkpoint.config import Activation, DraftConfig, MarkovKind, Rotary
from monodraft.errors import Fault, InputError
from monodraft.plan.ranks import RankSlice, rank_slice

TILE = 16
"""Weight rows, and token columns, of one matrix tile."""
CHUNK = 128
"""Values along K that one MXFP8 matrix instruction consumes; depths are filled up with zeros to a multiple."""
UNIT = 32
"""Values along K that one bf16 matrix instruction consumes, and keys that attention walks at a time."""
MX_BLOCK = 32
MAX_ROWS = 16
"""Query rows (requests x block) of one launch, and context rows that one launch commits."""
MAX_CTAS = 512
"""CTAs whose flags one wait can watch: one a thread."""
HEAD_DIMS = (32, 64, 128)


class AllReduce(StrEnum):
    """How partial sums of o and down meet. `ONE_SHOT`: every rank puts its partial to all and each adds all of them.
    `TWO_STAGE`: every rank adds one slice of the hidden size, then puts the sums to all (reduce-scatter, all-gather).
    Both add in rank order and give the same bits. `AUTO`: by size, as `StepShape.two_stage`."""

    AUTO = "auto"
    ONE_SHOT = "one-shot"
    TWO_STAGE = "two-stage"


ONE_SHOT_BYTES = {2: 1 << 30, 4: 160 << 10, 8: 80 << 10}
"""Bytes of a block's hidden rows from which `AUTO` takes two stages, by ranks: where AITER's all-reduce switches."""


MOST_SPLITS = 32
"""CTAs that may share the keys of one request and K/V head."""
CHUNKS_A_SPLIT = 4
"""Chunks of 32 keys that a CTA must have before attention is split further."""


def padded(size: int, unit: int) -> int:
    """`size` rounded up to a multiple of `unit`."""
    return -(-size // unit) * unit


@dataclass(frozen=True)
class StepShape:
    """One launch: `requests` blocks drafted together (0: the launch only commits), at most `context_rows` committed
    rows (0: none), on `ctas` CTAs of `waves` waves of each of `ranks` ranks.

    `capacity` is the most requests of the launches that share a workspace, 0: just `requests`; memory is laid out for
    it, so that launches of fewer requests find everything at the same place. `sampled` launches can draft with a
    temperature. The draft pool has `pages` pages of `page_size` positions; a request's positions lie below `positions`.
    Sizes below are this rank's: all ranks have the same. Raises InputError naming all fields that the kernel cannot do.
    """

    config: DraftConfig
    ranks: int = 1
    ctas: int = 256
    requests: int = 1
    context_rows: int = 16
    pages: int = 128
    page_size: int = 64
    positions: int = 8192
    capacity: int = 0
    all_reduce: AllReduce = AllReduce.AUTO
    sampled: bool = False
    splits: int = 0
    waves: int = 8

    def __post_init__(self) -> None:
        rank_slice(self.config, 0, self.ranks)
        faults = [*_config_faults(self.config), *_launch_faults(self)]
        if faults:
            raise InputError("the one-launch step cannot run this", faults)

    @cached_property
    def slice(self) -> RankSlice:
        """Sizes of a rank's share (those of rank 0; all ranks have the same)."""
        return rank_slice(self.config, 0, self.ranks)

    @property
    def block(self) -> int:
        """Query rows of one request."""
        return self.config.block_size

    @property
    def rows(self) -> int:
        """Query rows of the launch."""
        return self.requests * self.block

    @property
    def most_requests(self) -> int:
        """Requests that memory is laid out for."""
        return max(1, self.requests, self.capacity)

    @property
    def two_stage(self) -> bool:
        """Whether all-reduces go in two stages."""
        if self.all_reduce is AllReduce.AUTO:
            return self.ranks > 1 and self.rows * self.hidden * 2 >= ONE_SHOT_BYTES[self.ranks]
        return self.all_reduce is AllReduce.TWO_STAGE

    @property
    def key_splits(self) -> int:
        """CTAs that share the keys of one request and K/V head in attention: `splits`, or by the widest window."""
        if self.splits or not self.requests:
            return max(1, self.splits)
        return self._splits_of(self.requests)

    @property
    def may_split(self) -> bool:
        """Whether some launch of the workspace splits keys: memory is laid out for it."""
        return self.splits > 1 or (not self.splits and self._splits_of(1) > 1)

    def _splits_of(self, requests: int) -> int:
        seen = [self.positions if window is None else min(window, self.positions) for window in self.config.windows]
        most = min(MOST_SPLITS, self.ctas // (requests * self.kv_heads), max(seen) // (UNIT * CHUNKS_A_SPLIT))
        return 1 << (most.bit_length() - 1) if most else 1

    @property
    def hidden(self) -> int:
        return self.config.hidden_size

    @property
    def head(self) -> int:
        return self.config.head_dim

    @property
    def layers(self) -> int:
        return self.config.num_layers

    @property
    def kv_heads(self) -> int:
        """K/V heads of this rank."""
        return len(self.slice.kv_heads)

    @property
    def group(self) -> int:
        """Query heads that share a K/V head."""
        return len(self.slice.heads) // self.kv_heads

    @property
    def q_size(self) -> int:
        """Columns of this rank's queries."""
        return len(self.slice.heads) * self.head

    @property
    def kv_size(self) -> int:
        """Columns of this rank's keys (or values)."""
        return self.kv_heads * self.head

    @property
    def qkv_size(self) -> int:
        """Rows of the stacked q, k, v weight."""
        return self.q_size + 2 * self.kv_size

    @property
    def o_depth(self) -> int:
        """Depth of the o projection, filled up."""
        return padded(self.q_size, CHUNK)

    @property
    def ffn(self) -> int:
        """FFN columns of this rank."""
        return len(self.slice.ffn)

    @property
    def ffn_depth(self) -> int:
        """Depth of the down projection, filled up."""
        return padded(self.ffn, CHUNK)

    @property
    def vocab(self) -> int:
        """Vocabulary rows of this rank."""
        return len(self.slice.vocab)

    @property
    def vocab_tiles(self) -> int:
        return -(-self.vocab // TILE)

    @property
    def markov_rank(self) -> int:
        return self.config.markov_rank

    @property
    def inner_rows(self) -> int:
        """Rows of the Markov head's inner linear: none (vanilla), gate r, or gate, candidate and output 3 r (rnn)."""
        kinds = {MarkovKind.VANILLA: 0, MarkovKind.GATED: 1, MarkovKind.RNN: 3}
        return kinds[self.config.markov] * self.markov_rank

    @property
    def inner_depth(self) -> int:
        """Depth of the inner linear's serial part: e (gated), or s and e (rnn)."""
        return self.markov_rank * (2 if self.config.markov is MarkovKind.RNN else 1)

    @property
    def row_tiles(self) -> int:
        """Tiles of 16 query vectors that one K/V head's attention holds: heads of the group x rows of the block."""
        return -(-self.group * self.block // TILE)

    @property
    def table_pages(self) -> int:
        """Logical pages of a request."""
        return -(-self.positions // self.page_size)


def _config_faults(config: DraftConfig) -> list[Fault]:
    """What the kernel cannot do of a drafter."""
    wanted = {
        "hidden_size": (config.hidden_size, config.hidden_size % CHUNK == 0, f"a multiple of {CHUNK}"),
        "head_dim": (config.head_dim, config.head_dim in HEAD_DIMS, f"one of {HEAD_DIMS}"),
        "rotary": (config.rotary, config.rotary is Rotary.LEADING, f"{Rotary.LEADING}"),
        "rotary_dim": (
            config.rotary_dim,
            config.rotary_dim in (16, 32, 64, 128),
            "16, 32, 64 or 128: pairs lie whole lanes apart",
        ),
        "activation": (
            config.activation,
            config.activation in (Activation.SILU, Activation.SWIGLU_OAI),
            "silu or swiglu-oai",
        ),
        "markov_rank": (config.markov_rank, config.markov_rank % UNIT == 0, f"a multiple of {UNIT}"),
        "ffn_size": (config.ffn_size, config.ffn_size % TILE == 0, f"a multiple of {TILE}"),
        "block_size": (config.block_size, 1 <= config.block_size <= MAX_ROWS, f"1 .. {MAX_ROWS}"),
    }
    faults = [Fault(name, str(found), want) for name, (found, good, want) in wanted.items() if not good]
    gemma = {
        "logit_softcap": config.logit_softcap is not None,
        "value_norm": config.value_norm,
        "shared_kv_projection": config.shared_kv_projection,
        "sandwich_norms": config.sandwich_norms,
        "layer_scalars": config.layer_scalars,
        "embed_scale": config.embed_scale != 1.0,
    }
    return faults + [
        Fault(name, "set", "not set: Gemma4 layers are not in the kernel") for name in gemma if gemma[name]
    ]


def _launch_faults(shape: StepShape) -> list[Fault]:
    """What the kernel cannot do of a launch."""
    most = MAX_ROWS // shape.config.block_size if 1 <= shape.config.block_size <= MAX_ROWS else 0
    limits = {
        "requests": (0, most, f"0 .. {most}: at most {MAX_ROWS} query rows of {shape.config.block_size} a request"),
        "capacity": (0, most, f"0 .. {most}"),
        "context_rows": (0, MAX_ROWS, f"0 .. {MAX_ROWS}"),
        "ctas": (1, MAX_CTAS, f"1 .. {MAX_CTAS}"),
        "pages": (1, 1 << 30, "at least 1"),
        "positions": (1, shape.config.max_positions, f"1 .. max_positions = {shape.config.max_positions}"),
    }
    faults = [
        Fault(name, str(getattr(shape, name)), wanted)
        for name, (least, most, wanted) in limits.items()
        if not least <= getattr(shape, name) <= most
    ]
    if shape.requests == 0 and shape.context_rows == 0:
        faults.append(Fault("requests, context_rows", "0 and 0", "a launch that does something"))
    if shape.all_reduce is AllReduce.TWO_STAGE and shape.ranks == 1:
        faults.append(Fault("all_reduce", str(shape.all_reduce), "one-shot or auto on 1 rank"))
    if shape.ranks in ONE_SHOT_BYTES and shape.two_stage and shape.config.hidden_size % (TILE * shape.ranks):
        wanted = f"a multiple of {TILE * shape.ranks}: whole tiles a slice"
        faults.append(Fault("hidden_size", str(shape.config.hidden_size), wanted))
    if shape.splits not in (0, 1, 2, 4, 8, 16, MOST_SPLITS):
        faults.append(Fault("splits", str(shape.splits), f"0 (by the window), 1, 2, 4, 8, 16 or {MOST_SPLITS}"))
    elif shape.splits > 1 and shape.requests * shape.kv_heads * shape.splits > shape.ctas:
        # CTAs that share keys wait for each other in the middle of a task: each may have one only.
        wanted = f"at most {shape.ctas // (shape.requests * shape.kv_heads)}: one task a CTA"
        faults.append(Fault("splits", str(shape.splits), wanted))
    if shape.sampled and shape.config.vocab_size // shape.ranks % 4:
        wanted = f"a multiple of {4 * shape.ranks}: one random block covers 4 ids of a rank"
        faults.append(Fault("vocab_size", str(shape.config.vocab_size), wanted))
    if shape.waves != 8:
        faults.append(Fault("waves", str(shape.waves), "8: the order of the sums is a contract"))
    if shape.page_size < UNIT or shape.page_size % UNIT:
        faults.append(Fault("page_size", str(shape.page_size), f"a multiple of {UNIT}"))
    return faults
