"""The MXFP8 linear as the gfx950 kernels sum it: chunks of K in waves, one float32 rounding per matrix instruction.

Order, for one output: K is walked in chunks of 128; chunk c belongs to wave c % 8; a wave adds its chunks in ascending
order to a float32 accumulator that starts at +0; the partials of waves 0..7 are then added in that order in float32. A
K that is no multiple of 128 ends in a chunk filled up with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from monodraft.reference import rounded
from monodraft.reference.rounded import Rows

CHUNK = 128
"""Elements of K in one `v_mfma_scale_f32_16x16x128_f8f6f4`."""

WAVES = 8
"""Waves of a CTA that share a K axis."""


@dataclass(frozen=True)
class Chunked:
    """Rows of decoded MXFP8: `rows` [R, K] as a whole and `chunks` float64 [C, R, 128] cut along K."""

    rows: Rows
    chunks: torch.Tensor

    @classmethod
    def of(cls, values: torch.Tensor) -> Chunked:
        """From float64 [R, K]."""
        padded = torch.nn.functional.pad(values, (0, -values.shape[-1] % CHUNK))
        return cls(Rows(values, 4), padded.unflatten(-1, (-1, CHUNK)).transpose(0, 1).contiguous())


def instruction(
    accumulator: torch.Tensor, x: torch.Tensor, w: torch.Tensor, exact: torch.Tensor | None
) -> torch.Tensor:
    """float32 [C, M, N]: each accumulator plus the products of its chunk, x [C, M, 128] times w [C, N, 128].

    ASSUMPTION about `v_mfma_scale_f32_16x16x128_f8f6f4`: the 128 scaled products and the old accumulator are summed
    without error and rounded once, to nearest even, to float32, subnormals kept. AMD documents no rounding inside
    the instruction. Where a device rounds inside, this function is the place to say so.

    `exact` bool [M, N] says where float64 makes no error anyway, None that it never does.
    """
    old = accumulator.to(torch.float64)
    sums = old + x @ w.mT
    if exact is None:
        return sums.to(torch.float32)
    norms = torch.linalg.vector_norm(x, dim=-1), torch.linalg.vector_norm(w, dim=-1)
    magnitude = (norms[0][..., :, None] * norms[1][..., None, :] + old.abs()).masked_fill(exact, 0.0)

    def terms(flat: torch.Tensor) -> torch.Tensor:
        c, m, n = torch.unravel_index(flat, sums.shape)
        return torch.cat([old[c, m, n, None], x[c, m] * w[c, n]], -1)

    return rounded.settle(sums, rounded.error_bound(CHUNK + 1, magnitude), torch.float32, terms)


def wave_sum(x: Chunked, w: Chunked) -> torch.Tensor:
    """float32 [M, N]: rows of x times rows of w, summed in the order of this module."""
    # Accumulators, also after their rounding to float32, are multiples of the product of the two units, as all sums.
    exact = None if rounded.all_exact(x.rows, w.rows) else rounded.exact_pairs(x.rows, w.rows)
    shape = (WAVES, len(x.rows.norms), len(w.rows.norms))
    partials = torch.zeros(shape, dtype=torch.float32, device=w.chunks.device)
    for x_turn, w_turn in zip(x.chunks.split(WAVES), w.chunks.split(WAVES), strict=True):
        waves = len(x_turn)
        partials[:waves] = instruction(partials[:waves], x_turn, w_turn, exact)
    result = partials[0]
    for wave in range(1, WAVES):
        result = result + partials[wave]
    return result
