"""The LDS map of the draft step's CTA, in 4-byte words."""

from __future__ import annotations

from dataclasses import dataclass, fields

from monodraft.plan.shape import MAX_ROWS, TILE, UNIT, StepShape

LDS_BYTES = 160 * 1024
"""LDS of a compute unit of gfx950."""
LANES = 64
PAD = 8
"""bf16 values that an attention row is longer than its vector, against bank conflicts."""
RESIDUAL_WORDS = 8
"""Words of residual that one thread keeps for a row: 16 bf16 values."""


@dataclass(frozen=True)
class LdsMap:
    """Words of each LDS array.

    `red`: partials of two tiles, one 16x16 a wave. `residual`: one row for every row that a CTA owns. `norm`: a word a
    wave. `vectors`: query vectors of a K/V head's row tiles, then block keys, bf16. `values`: block values transposed
    [head_dim][32], bf16. `picks`: (score, id) of each wave and request. `chosen`: ids by slot and request.
    `inner`: results of the Markov head's inner linear [row][request]; `serial`: its serial input [request][s, e], bf16;
    `bias_input`: what w2 is multiplied by [request][r], bf16. The last three are one word where the head is vanilla.
    """

    red: int
    residual: int
    norm: int
    vectors: int
    values: int
    picks: int
    chosen: int
    inner: int
    serial: int
    bias_input: int

    @property
    def nbytes(self) -> int:
        return 4 * sum(getattr(self, field.name) for field in fields(self))


def lds_map(shape: StepShape) -> LdsMap:
    """LDS of a CTA of this launch; `StepShape` says what fits (`plan.checks`)."""
    threads = shape.waves * LANES
    slots = -(-max(shape.rows, shape.context_rows) // shape.ctas)
    requests = max(1, shape.requests)
    return LdsMap(
        red=2 * shape.waves * TILE * TILE,
        residual=max(1, slots) * threads * RESIDUAL_WORDS,
        norm=shape.waves,
        vectors=(shape.row_tiles * TILE + UNIT) * (shape.head + PAD) // 2,
        values=shape.head * (UNIT + PAD) // 2,
        picks=2 * shape.waves * MAX_ROWS,
        inner=max(1, shape.inner_rows * requests),
        serial=max(1, requests * (shape.inner_depth + PAD) // 2 if shape.inner_rows else 0),
        bias_input=max(1, requests * (shape.markov_rank + PAD) // 2 if shape.inner_rows else 0),
        chosen=(shape.block + 1) * max(requests, MAX_ROWS),
    )
