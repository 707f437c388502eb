"""Weights in the order in which a warp reads them: chunks of 4 KB, one bulk copy each (93-101 % of the read ceiling
measured, against 79 % for row-major rows).

A chunk is 16 rows. bf16: 128 elements along K as [K block of 32][row half][row][4 lanes][8 elements], 4096 bytes.
MXFP8: 256 elements as [K block of 32][row][4 lanes][row half][8 bytes] and [row][row half][8 scales], 4224 bytes.
Inside four MXFP8 bytes of one row the order is k + 2, k, k + 3, k + 1: the kernel takes bytes 1, 3 and 0, 2 apart.
"""

from __future__ import annotations

import torch

from monodraft.checkpoint.weights import Matrix, Mxfp8Matrix
from monodraft.errors import Fault, UnsupportedCheckpoint
from monodraft.formats import mxfp8_torch

BF16_CHUNK = 128
MXFP8_CHUNK = 256
_ORDER = [2, 0, 3, 1]
GREATEST_SCALE = 198
"""Scale bytes above this overflow the kernel's float32 block factor (2^71 as a weight's scale: no checkpoint)."""

_ROWS_AT_ONCE = 1 << 14


def pad(matrix: torch.Tensor, rows: int, columns: int, value: int = 0) -> torch.Tensor:
    """`matrix` in the upper left of a [rows, columns] one."""
    n, k = matrix.shape
    return torch.nn.functional.pad(matrix, (0, columns - k, 0, rows - n), value=value)


def multiple(size: int, of: int) -> int:
    """`size` rounded up to a multiple."""
    return -(-size // of) * of


def pack_bf16(weight: torch.Tensor, k: int | None = None) -> torch.Tensor:
    """bf16 [N, K] to uint8 [N / 16, K / 128, 4096], zeros in the padding. `k`: padded size of K, a multiple of 128."""
    n = multiple(weight.shape[0], 16)
    k = k or multiple(weight.shape[1], BF16_CHUNK)
    out = torch.empty(n // 16, k // BF16_CHUNK, 4096, dtype=torch.uint8, device=weight.device)
    for start in range(0, n, _ROWS_AT_ONCE):  # a slice at a time: an LM head must not need its size twice over
        part = weight[start : start + _ROWS_AT_ONCE]
        rows = multiple(part.shape[0], 16)
        tiles = pad(part, rows, k).view(rows // 16, 2, 8, k // BF16_CHUNK, 4, 4, 8).permute(0, 3, 4, 1, 2, 5, 6)
        out[start // 16 :][: rows // 16] = tiles.contiguous().view(rows // 16, k // BF16_CHUNK, 2048).view(torch.uint8)
    return out


def unpack_bf16(packed: torch.Tensor, n: int, k: int) -> torch.Tensor:
    """The inverse of `pack_bf16`."""
    blocks, chunks, _ = packed.shape
    tiles = packed.view(torch.bfloat16).view(blocks, chunks, 4, 2, 8, 4, 8).permute(0, 3, 4, 1, 2, 5, 6)
    return tiles.reshape(blocks * 16, chunks * BF16_CHUNK)[:n, :k]


def pack_mxfp8(matrix: Mxfp8Matrix, name: str = "weight") -> torch.Tensor:
    """MXFP8 [N, K] to uint8 [N / 16, K / 256, 4224]; padding is element 0 with scale 2^0.

    Raises UnsupportedCheckpoint for NaN elements and for scales that the kernel cannot represent.
    """
    elements, scales = matrix.elements.view(torch.uint8), matrix.scales
    if int(scales.max()) > GREATEST_SCALE:
        raise UnsupportedCheckpoint(
            "weights cannot be packed", [Fault(name, f"scale byte {int(scales.max())}", f"at most {GREATEST_SCALE}")]
        )
    if bool(((elements & 0x7F) == 0x7F).any()):
        raise UnsupportedCheckpoint("weights cannot be packed", [Fault(name, "NaN element", "numbers")])
    n, k = multiple(elements.shape[0], 16), multiple(elements.shape[1], MXFP8_CHUNK)
    blocks, chunks = n // 16, k // MXFP8_CHUNK
    # [row block, half, row, chunk, K block, lane, byte group, byte]
    bytes_ = pad(elements, n, k).view(blocks, 2, 8, chunks, 8, 4, 2, 4)[..., _ORDER]
    bytes_ = bytes_.permute(0, 3, 4, 2, 5, 1, 6, 7).reshape(blocks, chunks, 4096)
    codes = (
        pad(scales, n, k // 32, 127).view(blocks, 2, 8, chunks, 8).permute(0, 3, 2, 1, 4).reshape(blocks, chunks, 128)
    )
    return torch.cat([bytes_, codes], 2)


def unpack_mxfp8(packed: torch.Tensor, n: int, k: int) -> Mxfp8Matrix:
    """The inverse of `pack_mxfp8`."""
    blocks, chunks, _ = packed.shape
    inverse = [_ORDER.index(i) for i in range(4)]
    bytes_ = packed[..., :4096].reshape(blocks, chunks, 8, 8, 4, 2, 2, 4)[..., inverse].permute(0, 5, 3, 1, 2, 4, 6, 7)
    codes = packed[..., 4096:].reshape(blocks, chunks, 8, 2, 8).permute(0, 3, 2, 1, 4)
    elements = bytes_.reshape(blocks * 16, chunks * MXFP8_CHUNK)[:n, :k]
    return Mxfp8Matrix(elements.contiguous(), codes.reshape(blocks * 16, chunks * 8)[:n, : k // 32].contiguous())


def interleave(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Rows of gate and up in turns of eight, so that a row block holds both halves of its eight outputs."""
    rows, columns = gate.shape
    return torch.stack([gate.view(rows // 8, 8, columns), up.view(rows // 8, 8, columns)], 1).reshape(2 * rows, columns)


def stacked(*matrices: Matrix) -> Matrix:
    """Several matrices one above another; all MXFP8 or all of one float type."""
    quantised = [m for m in matrices if isinstance(m, Mxfp8Matrix)]
    if quantised:
        assert len(quantised) == len(matrices), "a layer's linears have one format"
        return Mxfp8Matrix(torch.cat([m.elements for m in quantised]), torch.cat([m.scales for m in quantised]))
    return torch.cat([m for m in matrices if isinstance(m, torch.Tensor)])


def gate_up(gate: Matrix, up: Matrix) -> Matrix:
    """`interleave` for either format."""
    if isinstance(gate, Mxfp8Matrix):
        assert isinstance(up, Mxfp8Matrix), "a layer's linears have one format"
        return Mxfp8Matrix(interleave(gate.elements, up.elements), interleave(gate.scales, up.scales))
    assert isinstance(up, torch.Tensor), "a layer's linears have one format"
    return interleave(gate, up)


def pack_linear(matrix: Matrix, *, mxfp8: bool, name: str) -> torch.Tensor:
    """A layer linear in the build's format: floats are quantised (RCEIL), MXFP8 kept; or MXFP8 widened to bf16 exactly,
    float32 rounded to it."""
    if mxfp8:
        return pack_mxfp8(matrix if isinstance(matrix, Mxfp8Matrix) else Mxfp8Matrix(*mxfp8_torch.encode(matrix)), name)
    if isinstance(matrix, Mxfp8Matrix):
        matrix = mxfp8_torch.decode(matrix.elements, matrix.scales).to(torch.bfloat16)
    return pack_bf16(matrix.to(torch.bfloat16), multiple(matrix.shape[1], 256))


def pack_outer(matrix: torch.Tensor, k: int) -> torch.Tensor:
    """A linear outside the layers (fc, LM head, Markov) in bf16, K padded to `k`."""
    return pack_bf16(matrix.to(torch.bfloat16), k)
