"""A linear's weight made ready for float64 arithmetic: decoded once, or tile by tile at each use for large models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import torch

from monodraft.checkpoint.weights import Matrix, Mxfp8Matrix
from monodraft.formats import mxfp8_torch

TILE_ELEMENTS = 1 << 23
"""Elements decoded at a time where a model is not kept decoded: 64 MiB of float64."""

T = TypeVar("T")


def pack(matrix: Matrix) -> Mxfp8Matrix:
    """MXFP8 of a matrix (RCEIL, `monodraft.formats`); released MXFP8 bytes are kept."""
    if isinstance(matrix, Mxfp8Matrix):
        return matrix
    return Mxfp8Matrix(*mxfp8_torch.encode(matrix))


def columns(matrix: Matrix, part: int, parts: int) -> Matrix:
    """Slice `part` of K, cut into `parts` equal ones: the share of one rank of a row-parallel linear."""
    if isinstance(matrix, Mxfp8Matrix):
        return Mxfp8Matrix(matrix.elements.chunk(parts, 1)[part], matrix.scales.chunk(parts, 1)[part])
    return matrix.chunk(parts, 1)[part]


def rows_of(matrix: Matrix, rows: slice) -> Matrix:
    """Some rows of a weight, not copied."""
    if isinstance(matrix, Mxfp8Matrix):
        return Mxfp8Matrix(matrix.elements[rows], matrix.scales[rows])
    return matrix[rows]


def decode(matrix: Matrix) -> torch.Tensor:
    """float64 [N, K] values, without rounding."""
    if isinstance(matrix, Mxfp8Matrix):
        return mxfp8_torch.decode(matrix.elements, matrix.scales).to(torch.float64)
    return matrix.to(torch.float64)


def decode_bf16(matrix: Matrix) -> torch.Tensor:
    """float64 [N, K] values after a rounding to bf16, which changes only MXFP8 values below 2^-126."""
    if isinstance(matrix, Mxfp8Matrix):
        return mxfp8_torch.decode(matrix.elements, matrix.scales).to(torch.bfloat16).to(torch.float64)
    return matrix.to(torch.bfloat16).to(torch.float64)


class Tiles(Generic[T]):
    """Weights [N_i, K] one below the other, decoded to float64 by `decode` and passed through `prepare`.

    With `keep` one tile, made at the first use and kept; otherwise tiles of at most `TILE_ELEMENTS`, made at every use.
    """

    def __init__(
        self,
        weights: Sequence[Matrix],
        decode: Callable[[Matrix], torch.Tensor],
        prepare: Callable[[torch.Tensor], T],
        keep: bool,
    ) -> None:
        self._weights, self._decode, self._prepare, self._keep = weights, decode, prepare, keep
        self._kept: T | None = None

    def __iter__(self) -> Iterator[T]:
        if self._keep:
            if self._kept is None:
                self._kept = self._prepare(torch.cat([self._decode(weight) for weight in self._weights]))
                self._weights = ()
            yield self._kept
            return
        for weight in self._weights:
            rows, size = weight.shape
            step = max(1, TILE_ELEMENTS // size)
            for start in range(0, rows, step):
                yield self._prepare(self._decode(rows_of(weight, slice(start, start + step))))
