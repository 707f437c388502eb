"""The four numerics: where values are rounded, and in which order they are summed (docs/reference.md).

| name    | layer linears                   | activations into them | other linears | kept between operations |
|---------|---------------------------------|-----------------------|---------------|-------------------------|
| `exact` | as shipped, decoded             | float64               | as shipped    | float64                 |
| `bf16`  | as shipped (MXFP8 to bf16)      | bf16                  | bf16          | bf16                    |
| `w8a16` | MXFP8 (packed if shipped bf16)  | bf16                  | bf16          | bf16                    |
| `mxfp8` | MXFP8 (packed if shipped bf16)  | MXFP8 of the bf16     | bf16          | bf16                    |

"Layer linears" are q, k, v, o, gate, up, down; "other" are fc, the LM head, those of the Markov and confidence heads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch

from monodraft.checkpoint.weights import Matrix
from monodraft.errors import Fault, InputError
from monodraft.formats import mxfp8_torch
from monodraft.reference import matrices, rounded
from monodraft.reference.waves import Chunked, wave_sum

Linear = Callable[[torch.Tensor], torch.Tensor]
"""x [M, K] in the storage type to [M, N] in the storage type."""


class Numerics(ABC):
    """What a computation rounds. `store`: type of activations and of the K/V pool; `work`: type between two stores.

    Functions of one element (exp, sigmoid, tanh, ...) are evaluated in float64 and rounded to `work`. Products and sums
    of two elements are single operations in `work`, never fused.
    """

    name: ClassVar[str]
    store: torch.dtype = torch.bfloat16
    work: torch.dtype = torch.float32

    @abstractmethod
    def layer_linear(self, weights: Sequence[Matrix], keep: bool) -> Linear:
        """A linear of a decoder layer, of weights [N_i, K] one below the other: a result does not depend on the others.

        `keep` holds the decoded weights in memory.
        """

    @abstractmethod
    def linear(self, weight: Matrix, keep: bool, bias: torch.Tensor | None = None) -> Linear:
        """A linear outside the decoder layers."""

    @abstractmethod
    def matmul(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """x [..., M, K] in `store` times w [..., N, K] transposed, in `work`."""

    def stored(self, x: torch.Tensor) -> torch.Tensor:
        """x rounded once to the storage type."""
        return rounded.round_to(x, self.store) if x.dtype is torch.float64 else x.to(self.store)

    def widened(self, x: torch.Tensor) -> torch.Tensor:
        """x in `work`, without rounding."""
        return x.to(self.work)

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Sum over the last axis of x in `work`: exact, rounded once."""
        return rounded.total(x.to(torch.float64), self.work)

    def sum_squares(self, x: torch.Tensor) -> torch.Tensor:
        """Sum of squares over the last axis of x in `work`: exact, rounded once."""
        wide = x.to(torch.float64)
        return rounded.total(wide * wide, self.work)

    def map(self, function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        """`function` of each element, evaluated in float64 and rounded to `work`."""
        return function(x.to(torch.float64).contiguous()).to(self.work)

    def rsqrt(self, x: torch.Tensor) -> torch.Tensor:
        """1 / sqrt(x): division and root of float64, then rounded to `work`."""
        return self.map(lambda wide: 1.0 / torch.sqrt(wide), x)

    def row_parallel(self, weight: Matrix, ranks: int, keep: bool) -> Linear:
        """A layer linear whose K is cut over `ranks`, with its all-reduce.

        Each rank's partial is stored (bf16); partials are added in `work` (float32) in rank order 0..n-1 and the sum is
        stored (AITER one-stage all-reduce, spec 5.6). One rank: the plain linear.
        """
        linears = [self.layer_linear([matrices.columns(weight, rank, ranks)], keep) for rank in range(ranks)]

        def apply(x: torch.Tensor) -> torch.Tensor:
            partials = [linear(part) for linear, part in zip(linears, x.chunk(ranks, -1), strict=True)]
            result = self.widened(partials[0])
            for partial in partials[1:]:
                result = result + self.widened(partial)
            return self.stored(result)

        return apply


class Exact(Numerics):
    """No rounding but that of the arithmetic itself, float64 (or float32: `Exact(torch.float32)`).

    Differs by about 1e-15 (1e-6) relative with batch size and threads: the yardstick for bounds, not for bits.
    """

    name = "exact"

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        if dtype not in (torch.float64, torch.float32):
            raise InputError("numerics exact", [Fault("dtype", str(dtype), "torch.float64 or torch.float32")])
        self.store = self.work = dtype

    def layer_linear(self, weights: Sequence[Matrix], keep: bool) -> Linear:
        tiles = matrices.Tiles(weights, matrices.decode, lambda values: values.to(self.work), keep)
        return lambda x: torch.cat([x @ tile.T for tile in tiles], -1)

    def linear(self, weight: Matrix, keep: bool, bias: torch.Tensor | None = None) -> Linear:
        plain = self.layer_linear([weight], keep)
        if bias is None:
            return plain
        wide = bias.to(self.work)
        return lambda x: plain(x) + wide

    def matmul(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w.mT

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(-1)

    def sum_squares(self, x: torch.Tensor) -> torch.Tensor:
        return (x * x).sum(-1)


def _rows(x: torch.Tensor) -> rounded.Rows:
    return rounded.Rows(x.to(torch.float64), 8 if x.dtype is torch.bfloat16 else 24)


class Bf16(Numerics):
    """bf16 weights and activations; every dot product is exact and rounded once (`rounded`)."""

    name = "bf16"

    def layer_linear(self, weights: Sequence[Matrix], keep: bool) -> Linear:
        tiles = matrices.Tiles(weights, matrices.decode_bf16, rounded.Rows, keep)

        def apply(x: torch.Tensor) -> torch.Tensor:
            rows = _rows(x)
            parts = [rounded.matmul(rows, tile, self.store) for tile in tiles]
            return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

        return apply

    def linear(self, weight: Matrix, keep: bool, bias: torch.Tensor | None = None) -> Linear:
        if bias is None:
            return Bf16.layer_linear(self, [weight], keep)
        rows, wide_bias = rounded.Rows(matrices.decode_bf16(weight)), bias.to(torch.float64)
        return lambda x: rounded.matmul(_rows(x), rows, self.store, wide_bias)

    def matmul(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return rounded.matmul(_rows(x), _rows(w), self.work)


class W8A16(Bf16):
    """`bf16` with the layer linears' weights in MXFP8: what engines do off gfx95x."""

    name = "w8a16"

    def layer_linear(self, weights: Sequence[Matrix], keep: bool) -> Linear:
        return super().layer_linear([matrices.pack(weight) for weight in weights], keep)


class Mxfp8(Bf16):
    """gfx950: weights and activations of the layer linears in MXFP8, summed as `waves` states, then rounded to bf16.

    Activations are quantised after their rounding to bf16, in blocks of 32 along K (RCEIL). A block with NaN or
    infinity is NaN as a whole.
    """

    name = "mxfp8"

    def layer_linear(self, weights: Sequence[Matrix], keep: bool) -> Linear:
        packed = [matrices.pack(weight) for weight in weights]
        tiles = matrices.Tiles(packed, matrices.decode, Chunked.of, keep)

        def apply(x: torch.Tensor) -> torch.Tensor:
            activations = mxfp8_torch.decode(*mxfp8_torch.encode(x)).to(torch.float64)
            # Rows in slabs, so that the sums per chunk of a long context stay small.
            slabs = [Chunked.of(slab) for slab in activations.split(64)] or [Chunked.of(activations)]
            by_tile = [torch.cat([wave_sum(slab, tile) for slab in slabs]) for tile in tiles]
            return torch.cat(by_tile, -1).to(torch.bfloat16)

        return apply


NUMERICS: dict[str, type[Numerics]] = {numerics.name: numerics for numerics in (Exact, Bf16, W8A16, Mxfp8)}
"""The numerics by name."""


def select(numerics: str | Numerics) -> Numerics:
    """Numerics by name; raises InputError for a name that does not exist."""
    if isinstance(numerics, Numerics):
        return numerics
    if numerics not in NUMERICS:
        raise InputError("unknown numerics", [Fault("numerics", repr(numerics), " | ".join(NUMERICS))])
    return NUMERICS[numerics]()
