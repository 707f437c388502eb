"""Where things lie in memory: names, shapes and byte offsets of a block of arrays behind one base address."""

from __future__ import annotations

import math
from dataclasses import dataclass

from monodraft.plan.shape import CHUNK, MAX_ROWS, MX_BLOCK, TILE, StepShape

ALIGN = 256
UNLIMITED = 1 << 30
"""The window of a layer with full attention."""
SIZES = {"uint8": 1, "bfloat16": 2, "int32": 4, "float32": 4, "int64": 8}


@dataclass(frozen=True)
class Array:
    """An array at byte `offset` of its block; `shape` in elements of `dtype`. Arrays of a layer repeat every
    `Block.layer_bytes`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    per_layer: bool = False

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * SIZES[self.dtype]


@dataclass(frozen=True)
class Block:
    """Arrays behind one base: first those of layer 0, repeated `layers` times every `layer_bytes`, then the others."""

    arrays: tuple[Array, ...]
    layers: int
    layer_bytes: int
    nbytes: int

    def __getitem__(self, name: str) -> Array:
        return next(array for array in self.arrays if array.name == name)

    def offset(self, name: str, layer: int = 0) -> int:
        """Byte offset of an array, of layer `layer` where it is one of a layer."""
        array = self[name]
        assert array.per_layer or layer == 0
        return array.offset + layer * self.layer_bytes


Spec = tuple[str, str, tuple[int, ...]]


def arrange(layered: list[Spec], single: list[Spec], layers: int) -> Block:
    """Place arrays one after another, each aligned to 256 bytes."""
    arrays, top = [], 0
    for name, dtype, shape in layered:
        arrays.append(Array(name, dtype, shape, top, per_layer=True))
        top = -(-(top + arrays[-1].nbytes) // ALIGN) * ALIGN
    layer_bytes, top = top, top * layers
    for name, dtype, shape in single:
        arrays.append(Array(name, dtype, shape, top))
        top = -(-(top + arrays[-1].nbytes) // ALIGN) * ALIGN
    return Block(tuple(arrays), layers, layer_bytes, top)


def _mx(name: str, rows: int, depth: int) -> list[Spec]:
    return [(name, "uint8", (rows, depth)), (f"{name}.scales", "uint8", (rows, depth // MX_BLOCK))]


def weight_block(shape: StepShape) -> Block:
    """A rank's weights, row-major as shipped. q, k, v stand one below the other, gate above up; depths of o and down
    are filled up with zeros to a multiple of 128, vocabulary rows to a multiple of 16. `rope` [position][cos, sin].
    `windows`: a window a layer, `UNLIMITED` for full attention."""
    config, hidden, head = shape.config, shape.hidden, shape.head
    layered = [
        *_mx("qkv", shape.qkv_size, hidden),
        *_mx("o", hidden, shape.o_depth),
        *_mx("gate_up", 2 * shape.ffn, hidden),
        *_mx("down", hidden, shape.ffn_depth),
        ("input_norm", "bfloat16", (hidden,)),
        ("post_norm", "bfloat16", (hidden,)),
        ("q_norm", "bfloat16", (head,)),
        ("k_norm", "bfloat16", (head,)),
    ]
    vocab_rows = shape.vocab_tiles * TILE
    single: list[Spec] = [
        ("fc", "bfloat16", (hidden, config.feature_size)),
        ("hidden_norm", "bfloat16", (hidden,)),
        ("final_norm", "bfloat16", (hidden,)),
        ("embed", "bfloat16", (config.vocab_size, hidden)),
        ("lm_head", "bfloat16", (vocab_rows, hidden)),
        ("markov_w1", "bfloat16", (config.vocab_size, shape.markov_rank)),
        ("markov_w2", "bfloat16", (vocab_rows, shape.markov_rank)),
        ("rope", "float32", (shape.positions, 2, config.rotary_dim // 2)),
        ("windows", "int32", (shape.layers,)),
    ]
    if shape.inner_rows:
        single += [
            ("markov_inner_hidden", "bfloat16", (shape.inner_rows, hidden)),
            ("markov_inner_serial", "bfloat16", (shape.inner_rows, shape.inner_depth)),
            ("markov_inner_bias", "float32", (shape.inner_rows,)),
        ]
    if config.has_confidence:
        single += [("confidence", "bfloat16", (hidden + shape.markov_rank,)), ("confidence_bias", "float32", (1,))]
    return arrange(layered, single, shape.layers)


def local_block(shape: StepShape) -> Block:
    """A rank's own workspace: counter, inputs that the host writes before a launch, scratch, flags, outputs.

    Where attention splits keys: `pairs.maxima` [request, K/V head][query vector][split] tagged pairs, `partials`
    [request, K/V head, split][query vector][D] and `totals` without D, for at most `ctas` tasks.
    """
    requests, context, hidden, config = shape.most_requests, MAX_ROWS, shape.hidden, shape.config
    rows = requests * shape.block
    flags = (padded_flags(shape),)
    layered: list[Spec] = [
        ("flags.qkv", "int32", flags),
        ("flags.attention", "int32", flags),
        ("flags.post", "int32", flags),
        ("flags.act", "int32", flags),
        ("flags.input", "int32", flags),
    ]
    vectors = shape.row_tiles * TILE
    tasks = shape.ctas if shape.may_split else 0
    layered += [("flags.join", "int32", flags), ("pairs.maxima", "int32", (tasks, vectors, 2))] if tasks else []
    single: list[Spec] = [
        ("epoch", "int32", (16,)),
        ("anchors", "int32", (MAX_ROWS,)),
        ("starts", "int32", (MAX_ROWS,)),
        ("temperatures", "float32", (MAX_ROWS,)),
        ("seeds", "int32", (MAX_ROWS, 2)),
        ("page_table", "int32", (requests, shape.table_pages)),
        ("context_count", "int32", (16,)),
        ("context_positions", "int32", (MAX_ROWS,)),
        ("context_slots", "int32", (MAX_ROWS,)),
        ("features", "bfloat16", (context, config.feature_size)),
        ("flags.fc", "int32", flags),
        ("flags.context", "int32", flags),
        ("flags.context_kv", "int32", flags),
        ("flags.pool", "int32", flags),
        ("flags.inner", "int32", flags),
        ("fc_rows", "bfloat16", (context, hidden)),
        ("context8", "uint8", (context, hidden)),
        ("context8.scales", "uint8", (context, hidden // MX_BLOCK)),
        ("context_kv", "bfloat16", (context, shape.layers, 2 * shape.kv_size)),
        ("x8", "uint8", (rows, hidden)),
        ("x8.scales", "uint8", (rows, hidden // MX_BLOCK)),
        ("qkv", "bfloat16", (rows, shape.qkv_size)),
        ("attention", "bfloat16", (rows, shape.o_depth)),
        ("act", "bfloat16", (rows, shape.ffn_depth)),
        ("final", "bfloat16", (rows, hidden)),
        ("base", "float32", (shape.vocab_tiles, TILE, TILE)),
        ("inner", "float32", (max(1, shape.inner_rows // TILE), TILE, TILE)),
        ("tokens", "int32", (rows,)),
        ("confidence", "float32", (rows,)),
        ("logits", "float32", (rows, shape.vocab_tiles * TILE)),
    ]
    if tasks:
        single += [("partials", "float32", (tasks, vectors, shape.head)), ("totals", "float32", (tasks, vectors))]
    # One set of flags more than layers: `input` counts the rows before layer 0 and after the last.
    return arrange(layered, single, shape.layers + 1)


def padded_flags(shape: StepShape) -> int:
    """Words of a flag array: one a CTA, in whole lines of 128 bytes."""
    return -(-shape.ctas // 32) * 32


def exchange_block(shape: StepShape) -> Block:
    """What peers write into a rank's memory: tagged pairs (value word, tag word). `o`, `down` [source rank][row]
    [hidden / 2] of bf16 pairs (two stages: of this rank's slice only), `o.sum`, `down.sum` [row][hidden / 2] of sums;
    `candidates` [slot][request][rank x CTA][value, id]."""
    rows = shape.most_requests * shape.block
    pairs = (shape.ranks, rows, shape.hidden // 2, 2)
    layered: list[Spec] = [("pairs.o", "int32", pairs), ("pairs.down", "int32", pairs)]
    # Laid out whichever all-reduce a launch takes: launches of one workspace may differ in it.
    layered += [("pairs.o.sum", "int32", pairs[1:]), ("pairs.down.sum", "int32", pairs[1:])]
    entries = shape.ranks * shape.ctas
    single: list[Spec] = [("candidates", "int32", (shape.block, shape.most_requests, entries, 2, 2))]
    return arrange(layered, single, shape.layers)


def pool_bytes(shape: StepShape) -> int:
    """Bytes of one layer's keys (or values) in the draft pool: [page][kv head][page_size x head_dim] bf16."""
    return shape.pages * shape.kv_heads * shape.page_size * shape.head * 2


assert CHUNK % MX_BLOCK == 0
