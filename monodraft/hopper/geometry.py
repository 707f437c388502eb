"""What a build of the kernel is specialised by: sizes of the drafter, query rows, weight format, shared memory.

Pure Python. `Geometry.choose` refuses what the kernels cannot do, with every reason at once, before anything is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from monodraft.checkpoint.config import Activation, DraftConfig, MarkovKind, Norm, Rotary
from monodraft.errors import Fault, InputError, UnsupportedCheckpoint
from monodraft.plan.ranks import rank_slice

COMPUTE_WARPS = 8
EPILOGUE_WARPS = 8
CANDIDATE_WARPS = 4
"""Compute warps that read candidates of the bounded Markov stage."""
THREADS = (COMPUTE_WARPS + EPILOGUE_WARPS + 4) * 32
HEAD_SIZES = {128: 48, 256: 32, 512: 16}
"""Head sizes that attention takes, and at most how many query rows of a KV head at once: sums stay in registers."""
PAGE = 64
"""Positions of a K/V page."""
SLOT_BYTES = 4224
TILE = 16
"""Output columns of a row block: 16 rows of a weight matrix."""
SHARED_LIMIT = 232448
"""Shared memory a CTA may have on sm_90, bytes."""
MAX_ROWS = 16
STEP_KEYS = 80


def padded(size: int, multiple: int) -> int:
    """`size` rounded up to a multiple."""
    return -(-size // multiple) * multiple


@dataclass(frozen=True)
class Linear:
    """A linear as the kernel runs it: [n, k] weights in row blocks of 16 and chunks along K, some chunks a part.

    `n` counts rows after the gate/up interleave and the padding to 16; `chunk` is 256 (MXFP8) or 128 (bf16) elements.
    """

    name: str
    n: int
    k: int
    mxfp8: bool
    chunks: int
    part_chunks: int
    parts: int
    split_log2: int

    @property
    def row_blocks(self) -> int:
        return self.n // TILE

    @property
    def bytes(self) -> int:
        """Weight bytes that a step streams for it."""
        return self.row_blocks * self.chunks * (SLOT_BYTES if self.mxfp8 else 4096)


@dataclass(frozen=True)
class Geometry:
    """A build: `config`, `row_tiles` (1: up to 8 query rows, 2: up to 16), `mxfp8` layer linears, `grid` CTAs.

    `part_size` elements of K lie in shared memory at a time, `slots` chunks of 4 KB wait per compute warp, attention
    takes `keys` keys at a time, `max_pages` K/V pages belong to a request at most. With several `ranks`, `config` is
    one rank's part (`rank_config`) and `grid` one rank's CTAs; all rank groups share a launch. `logit_sums`: between
    parts of K the LM head's sums wait in the buffer of the logits, not in shared memory. `sampled`: the build also
    draws (stages/sampling.cuh), with the sizes and buffers of the other.
    """

    config: DraftConfig
    row_tiles: int
    mxfp8: bool
    grid: int
    max_pages: int
    part_size: int
    slots: int
    keys: int
    ranks: int = 1
    logit_sums: bool = False
    sampled: bool = False

    @staticmethod
    def choose(
        config: DraftConfig,
        *,
        rows: int,
        mxfp8: bool,
        grid: int = 132,
        max_positions: int = 8192,
        slots: Sequence[int] = (4, 3, 2),
        ranks: int = 1,
    ) -> Geometry:
        """The build for up to `rows` query rows in a launch and contexts up to `max_positions`; ring depths to try.
        `grid` CTAs are shared by `ranks` rank groups of one GPU.

        Raises UnsupportedCheckpoint or InputError with all reasons.
        """
        config, grid = rank_config(config, ranks), grid // ranks
        refuse(config)
        faults = []
        if not 1 <= rows <= MAX_ROWS:
            faults.append(Fault("rows", str(rows), f"1..{MAX_ROWS} query rows in a launch"))
        if rows < config.block_size:
            faults.append(Fault("rows", str(rows), f"at least the block size {config.block_size}"))
        used = 8 * -(-rows // 8) // config.block_size * config.block_size
        if grid < used:  # the LM head's stage leaves the confidence of a row to the CTA of that number
            faults.append(Fault("grid", f"{grid} CTAs a rank", f"at least {used}, one for every query row"))
        if max_positions + config.block_size > config.max_positions:
            longest = config.max_positions - config.block_size
            wanted = f"at most {longest}: the drafter's {config.max_positions}, less a block"
            faults.append(Fault("max_positions", str(max_positions), wanted))
        if faults:
            raise InputError("the Hopper step cannot be built", faults)
        tiles = -(-rows // 8)
        pages = -(-(max_positions + config.block_size) // PAGE)
        widest = min(12288, padded(max(config.feature_size, config.ffn_size), 512))
        for logit_sums in (False, True):
            fitting = [
                geometry
                for slot_count in slots
                for part in range(widest, 0, -512)
                for keys in ((128, 96, 64) if config.head_dim == 128 else (64, 32))
                if (
                    geometry := Geometry(config, tiles, mxfp8, grid, pages, part, slot_count, keys, ranks, logit_sums)
                ).shared_bytes
                <= SHARED_LIMIT
            ]
            if fitting:
                break
        if not fitting:
            raise UnsupportedCheckpoint(
                "the Hopper step cannot be built",
                [
                    Fault(
                        "rows",
                        f"{rows} rows of hidden size {config.hidden_size}",
                        "activations that fit in shared memory",
                    )
                ],
            )
        return min(fitting, key=lambda g: g.cost)

    @property
    def rows(self) -> int:
        """Query rows of a launch, and context rows of a launch."""
        return 8 * self.row_tiles

    @property
    def step_words(self) -> int:
        """Words of a step's inputs before the page tables; four per layer and request say how keys are split."""
        return STEP_KEYS + self.config.num_layers * self.rows * 4

    @property
    def requests(self) -> int:
        """Requests in a launch."""
        return self.rows // self.config.block_size

    @property
    def hidden_padded(self) -> int:
        return padded(self.config.hidden_size, 256)

    @property
    def q_padded(self) -> int:
        return padded(self.config.q_size, 256)

    @property
    def ffn_padded(self) -> int:
        return padded(self.config.ffn_size, 256)

    @property
    def rank_padded(self) -> int:
        return padded(self.config.markov_rank, 128)

    @property
    def vocab_padded(self) -> int:
        return padded(self.config.vocab_size, TILE)

    @property
    def vocabulary(self) -> int:
        """Ids of all ranks together."""
        return self.config.vocab_size * self.ranks

    @property
    def kv_columns(self) -> int:
        """Columns of a layer's k and v projections, which may be the same."""
        return self.config.kv_size * (1 if self.config.shared_kv_projection else 2)

    @property
    def joins(self) -> bool:
        """Whether o and down are normed before they join the residual, and layers scaled: in stages of their own."""
        return self.config.sandwich_norms

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self.config.num_heads // self.config.num_kv_heads

    @property
    def m_groups(self) -> int:
        """Groups of query rows (row, head of the group) of a KV head."""
        return -(-self.config.block_size * self.group // HEAD_SIZES[self.config.head_dim])

    @property
    def m_tiles(self) -> int:
        """Tiles of 16 query rows that attention takes at a time."""
        return -(-self.config.block_size * self.group // (16 * self.m_groups))

    @property
    def attention_items(self) -> int:
        """Attention items of a step at most."""
        return max(self.grid, self.requests * self.config.num_kv_heads * self.m_groups)

    @property
    def plane(self) -> int:
        """Bytes of a part of the activations of 8 rows."""
        return self.part_size * 16

    @property
    def attention_scratch(self) -> int:
        m = 16 * self.m_tiles
        return (
            (m + 2 * self.keys) * (2 * self.config.head_dim + 16)
            + m * (self.keys + 4) * 4
            + 12 * m
            + self.config.block_size * self.config.rotary_dim * 4
        )

    @property
    def markov_scratch(self) -> int:
        """Of the bounded Markov stage: vectors, upper bounds of a CTA's rows, and bf16 row blocks of candidates."""
        return self._markov_bounds + CANDIDATE_WARPS * (self.rank_padded // 128) * 4096

    @property
    def _markov_bounds(self) -> int:
        blocks = -(-(self.vocab_padded // TILE) // self.grid) + COMPUTE_WARPS
        vectors = 2 * self.row_tiles * padded(self.config.markov_rank, 256) * 16
        return vectors + padded(blocks * TILE * self.requests * 4, 128)

    @property
    def markov_resident(self) -> int:
        """Chunks of the Markov scan that a warp keeps in shared memory from step to step."""
        if self.config.markov_rank > 256:
            return 0
        turns = -(-(self.vocab_padded // TILE) // (COMPUTE_WARPS * self.grid))
        return min(turns, (self.activation_bytes - self.markov_scratch) // (COMPUTE_WARPS * SLOT_BYTES))

    @property
    def activation_bytes(self) -> int:
        return padded(max(self.row_tiles * self.plane, self.attention_scratch, self.markov_scratch), 128)

    def linear(self, name: str, n: int, k: int, mxfp8: bool) -> Linear:
        """The tiling of one linear: parts of K that fit, K split over as many warps as have a chunk each.

        Several parts take turns in the two halves of the room. A part is then a multiple of 8 chunks (all warps on one
        row block), or of 4 (two at a time) where 8 do not fit or a CTA has an even number of row blocks.
        """
        chunk = 256 if mxfp8 else 128
        chunks = padded(k, 256) // chunk
        if chunks * chunk <= self.part_size:
            part_chunks = chunks
        else:
            room = self.part_size // 2 // chunk
            turns = -(-padded(n, TILE) // TILE // self.grid)
            unit = 4 if room < 8 or (turns % 2 == 0 and room // 4 * 4 > room // 8 * 8) else 8
            part_chunks = room // unit * unit or room
        parts = -(-chunks // part_chunks)
        split = 3
        while split and part_chunks % (1 << split) and part_chunks < 4 << split:
            split -= 1
        return Linear(name, padded(n, TILE), k, mxfp8, chunks, part_chunks, parts, split)

    @cached_property
    def linears(self) -> dict[str, Linear]:
        """Every linear of a step by its weight's name; `markov` or `markov_scan` is streamed once a slot."""
        c = self.config
        kv = self.kv_columns
        made = [self.linear("fc", c.hidden_size, c.feature_size, False)]
        made.append(self.linear("context_kv", c.num_layers * kv, c.hidden_size, self.mxfp8))
        for i in range(c.num_layers):
            made.append(self.linear(f"layers.{i}.qkv", c.q_size + kv, c.hidden_size, self.mxfp8))
            made.append(self.linear(f"layers.{i}.o", c.hidden_size, c.q_size, self.mxfp8))
            made.append(self.linear(f"layers.{i}.gate_up", 2 * c.ffn_size, c.hidden_size, self.mxfp8))
            made.append(self.linear(f"layers.{i}.down", c.hidden_size, c.ffn_size, self.mxfp8))
        made.append(self.linear("lm_head", c.vocab_size, c.hidden_size, False))
        chunks = self.rank_padded // 128
        made.append(Linear("markov", self.vocab_padded, self.rank_padded, False, chunks, chunks, 1, 0))
        scan = padded(c.markov_rank, 256) // 256
        made.append(Linear("markov_scan", self.vocab_padded, 256 * scan, True, scan, scan, 1, 0))
        return {linear.name: linear for linear in made}

    @property
    def sum_slots(self) -> int:
        """Row blocks of a CTA whose sums wait for the next part of K."""
        return max(
            (
                -(-linear.row_blocks // ((COMPUTE_WARPS >> linear.split_log2) * self.grid))
                * (COMPUTE_WARPS >> linear.split_log2)
                for linear in self.linears.values()
                if linear.parts > 1 and not (self.logit_sums and linear.name == "lm_head")
            ),
            default=1,
        )

    @property
    def stages(self) -> int:
        """Stages of a step: context projection 2, prepare, six a layer (and the sums of o and down over several
        ranks, and their joins), LM head, the chain, finish."""
        layer = 6 + 2 * (self.ranks > 1) + 2 * self.joins
        return 3 + layer * self.config.num_layers + 1 + self.config.block_size + 1

    @property
    def exchange_bytes(self) -> int:
        """Memory of a rank that all ranks write, as stages/ranks.cuh lays it out: flags, partials, candidates."""
        partials = 2 * self.ranks * self.rows * self.hidden_padded * 2
        return 128 + partials + 2 * self.rows * self.ranks * self.grid * 8

    @property
    def fixed_bytes(self) -> int:
        """At least the size of `Fixed` in stages/exchange.cuh; the build asserts it."""
        bars = 2 * COMPUTE_WARPS * self.slots * 8
        markov = -(-(self.vocab_padded // TILE) // self.grid) + COMPUTE_WARPS
        return 104 * self.stages + bars + 4 * markov + 4 * self.rows * (COMPUTE_WARPS + 3) + 4 * self.step_words + 256

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory: activations, ring, reduction buffers, sums of parts, fixed places."""
        ring = COMPUTE_WARPS * self.slots * SLOT_BYTES
        red = 2 * COMPUTE_WARPS * 4 * self.row_tiles * 32 * 4
        return self.activation_bytes + ring + red + self.sum_slots * 64 * self.row_tiles * 8 + self.fixed_bytes

    @property
    def cost(self) -> float:
        """What `choose` minimises: hand-offs of parts and a shallow ring, weighed as measured on an H200."""
        parts = sum(
            0.5 * linear.parts + 0.5 * (linear.parts > 1) for name, linear in self.linears.items() if name != "fc"
        )
        return parts + {4: 0, 3: 6, 2: 30}[self.slots] + (128 - self.keys) / 64 + self.linears["fc"].parts / 64

    @property
    def options(self) -> list[str]:
        """The -D options of the build."""
        c = self.config
        swiglu = c.swiglu
        values: dict[str, object] = {
            "ROW_TILES": self.row_tiles,
            "MXFP8": int(self.mxfp8),
            "MAX_STAGES": self.stages,
            "GRID": self.grid,
            "HIDDEN": c.hidden_size,
            "HIDDEN_PADDED": self.hidden_padded,
            "Q_PADDED": self.q_padded,
            "HEADS": c.num_heads,
            "KV_HEADS": c.num_kv_heads,
            "LAYERS": c.num_layers,
            "BLOCK": c.block_size,
            "MASK_TOKEN": c.mask_token_id,
            "VOCAB": c.vocab_size,
            "VOCAB_PADDED": self.vocab_padded,
            "RANK": c.markov_rank,
            "RANK_PADDED": self.rank_padded,
            "ROTARY_PAIRS": c.rotary_dim // 2,
            "NORM_EPS": f"{c.rms_norm_eps!r}f",
            "SCORE_SCALE": f"{c.score_scale!r}f",
            "ACTIVATION": list(Activation).index(c.activation),
            "PART_SIZE": self.part_size,
            "SLOTS": self.slots,
            "KEYS": self.keys,
            "M_TILES": self.m_tiles,
            "MAX_PAGES": self.max_pages,
            "ACTIVATION_BYTES": self.activation_bytes,
            "SUM_SLOTS": self.sum_slots,
            "FIXED_BYTES": self.fixed_bytes,
            "MARKOV_RESIDENT": self.markov_resident,
        }
        if self.ranks > 1:
            values["RANKS"] = self.ranks
        values |= self._additions
        if self.logit_sums:
            values["LOGIT_SUMS"] = 1
        if self.sampled:
            values["SAMPLED"] = 1
        if swiglu is not None:
            values |= {
                "SWIGLU_ALPHA": f"{swiglu.alpha!r}f",
                "SWIGLU_LIMIT": f"{swiglu.limit!r}f",
                "SWIGLU_BETA": f"{swiglu.beta!r}f",
            }
        return [f"-D{name}={value}" for name, value in values.items()]

    @property
    def _additions(self) -> dict[str, object]:
        """Options of builds for what Gemma4 adds to a Qwen3 layer, and for larger heads."""
        c, values = self.config, dict[str, object]()
        if c.head_dim != 128:
            values["HEAD"] = c.head_dim
        if c.rotary is Rotary.PROPORTIONAL or c.head_dim != 128:
            values["ROTARY_APART"] = c.head_dim // 2
        if c.logit_softcap is not None:
            values["LOGIT_SOFTCAP"] = f"{c.logit_softcap!r}f"
        if c.shared_kv_projection:
            values["SHARED_KV"] = 1
        if c.value_norm:
            values["VALUE_NORM"] = 1
        if self.joins:
            values["JOINS"] = 1
        return values


def rank_config(config: DraftConfig, ranks: int) -> DraftConfig:
    """The part of a drafter that each of `ranks` ranks computes: heads, FFN columns, vocabulary rows of `rank_slice`.
    Raises InputError where it does not divide."""
    if ranks == 1:
        return config
    own = rank_slice(config, 0, ranks)
    return replace(
        config,
        num_heads=len(own.heads),
        num_kv_heads=len(own.kv_heads),
        ffn_size=len(own.ffn),
        vocab_size=len(own.vocab),
    )


def refuse(config: DraftConfig) -> None:
    """Raises UnsupportedCheckpoint with all that the Hopper kernels cannot do for this drafter."""
    faults = []

    def want(ok: bool, field: str, found: object, wanted: str) -> None:
        if not ok:
            faults.append(Fault(field, str(found), wanted))

    want(
        config.markov is MarkovKind.VANILLA,
        "markov head",
        config.markov.value,
        "vanilla (gated and rnn have no kernel)",
    )
    want(config.head_dim in HEAD_SIZES, "head_dim", config.head_dim, f"one of {', '.join(map(str, HEAD_SIZES))}")
    want(config.hidden_size % 32 == 0, "hidden_size", config.hidden_size, "a multiple of 32")
    want(config.ffn_size % 32 == 0, "ffn_size", config.ffn_size, "a multiple of 32")
    want(config.markov_rank % 8 == 0, "markov_rank", config.markov_rank, "a multiple of 8")
    want(config.vocab_size >= 256, "vocab_size", config.vocab_size, "at least 256")
    want(config.rotary_dim % 8 == 0, "rotary_dim", config.rotary_dim, "a multiple of 8")
    want(config.block_size <= MAX_ROWS, "block_size", config.block_size, f"at most {MAX_ROWS} query rows")
    want(config.num_layers <= 6, "num_layers", config.num_layers, "at most 6 layers")
    want(config.num_heads % config.num_kv_heads == 0, "num_heads", config.num_heads, "a multiple of num_kv_heads")
    leading = config.rotary is Rotary.LEADING and config.rotary_dim < config.head_dim
    want(config.head_dim == 128 or not leading, "rotary", "leading, of a part of the head", "all dims, or proportional")
    same = config.layer_scalars == config.sandwich_norms
    want(
        same, "layer_scalars", config.layer_scalars, f"{config.sandwich_norms}, as sandwich_norms: one stage does both"
    )
    want(config.norm in (Norm.RMS, Norm.GEMMA), "norm", config.norm, "rms or gemma")
    if faults:
        raise UnsupportedCheckpoint("the Hopper backend does not run this drafter", faults)
