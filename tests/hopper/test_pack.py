"""Packed weights: they come back whole, and a lane reads from a chunk what the matrix instruction expects of it."""

import numpy as np
import pytest
import torch

from monodraft.checkpoint.weights import Mxfp8Matrix
from monodraft.errors import UnsupportedCheckpoint
from monodraft.formats import mxfp8_torch
from monodraft.hopper import pack

pytestmark = pytest.mark.numbers


def bf16(n: int, k: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.parametrize(("n", "k"), [(16, 128), (48, 384), (23, 200)])
def test_bf16_comes_back(n: int, k: int) -> None:
    weight = bf16(n, k)
    packed = pack.pack_bf16(weight)
    assert packed.shape == (-(-n // 16), -(-k // 128), 4096)
    assert torch.equal(pack.unpack_bf16(packed, n, k), weight)


@pytest.mark.parametrize(("n", "k"), [(16, 256), (48, 512), (24, 96)])
def test_mxfp8_comes_back(n: int, k: int) -> None:
    matrix = Mxfp8Matrix(*mxfp8_torch.encode(bf16(n, k)))
    packed = pack.pack_mxfp8(matrix)
    assert packed.shape == (-(-n // 16), -(-k // 256), 4224)
    back = pack.unpack_mxfp8(packed, n, k)
    assert torch.equal(back.elements, matrix.elements)
    assert torch.equal(back.scales, matrix.scales)


def slots(lane_elements: np.ndarray) -> np.ndarray:
    """Element e of lane t (8 each) to K slots: e 0..3 of the first instruction, 4..7 of the second."""
    k = np.empty(32, dtype=lane_elements.dtype)
    for t in range(4):
        for e in range(8):
            half, pair, low = e // 4, e % 4 // 2, e % 2
            k[half * 16 + pair * 8 + 2 * t + low] = lane_elements[t, e]
    return k


def activation_units(x: np.ndarray) -> np.ndarray:
    """[8, K] to fragment order [K / 32][row][lane][8], as `fragment` in stages/plan.cuh."""
    return x.reshape(8, -1, 4, 8).transpose(1, 0, 2, 3)


def test_bf16_chunk_times_fragment_is_the_product() -> None:
    weight, x = bf16(16, 128, 1), bf16(8, 128, 2).float().numpy()
    chunk = pack.pack_bf16(weight)[0, 0].view(torch.bfloat16).float().numpy().reshape(4, 2, 8, 4, 8)
    b, out = activation_units(x), np.zeros((16, 8))
    for block in range(4):
        for half in range(2):
            for g in range(8):
                row = slots(chunk[block, half, g])
                for n in range(8):
                    out[half * 8 + g, n] += row @ slots(b[block, n])
    np.testing.assert_allclose(out, weight.float().numpy() @ x.T, rtol=1e-5, atol=1e-5)


def widened(word: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`widen_e4m3` of device/matrix.cuh on uint32 words: (odd, even) pairs as float64 [.., 2], times 2^120."""
    word = word.astype(np.uint32)
    y = word << np.uint32(8)
    odd = (word & np.uint32(0x80008000)) | ((word >> np.uint32(4)) & np.uint32(0x07F007F0))
    even = (y & np.uint32(0x80008000)) | ((y >> np.uint32(4)) & np.uint32(0x07F007F0))

    def pair(v: np.ndarray) -> np.ndarray:
        halves = np.stack([v << np.uint32(16), v & np.uint32(0xFFFF0000)], -1).astype(np.uint32)
        return halves.view(np.float32).astype(np.float64) * 2.0**120

    return pair(odd), pair(even)


def test_widening_every_e4m3_byte_is_exact() -> None:
    codes = np.array([b for b in range(256) if b & 0x7F != 0x7F], dtype=np.uint8)
    values = torch.from_numpy(codes).view(torch.float8_e4m3fn).double().numpy()
    words = codes.astype(np.uint32) * np.uint32(0x01010101)
    for pairs in widened(words):
        assert np.array_equal(pairs, np.stack([values, values], -1))


def test_mxfp8_chunk_times_fragment_is_the_product() -> None:
    matrix = Mxfp8Matrix(*mxfp8_torch.encode(bf16(16, 256, 3)))
    x = bf16(8, 256, 4).double().numpy()
    chunk = pack.pack_mxfp8(matrix)[0, 0].numpy()
    words = chunk[:4096].view(np.uint32).reshape(8, 8, 4, 2, 2)  # K block, row, lane, half, group
    scales = chunk[4096:].reshape(8, 2, 8)
    b, out = activation_units(x), np.zeros((16, 8))
    for block in range(8):
        for half in range(2):
            for g in range(8):
                odd, even = widened(words[block, g, :, half])
                lanes = np.concatenate([odd, even], -1).reshape(4, 8)  # per group: k, k + 1, k + 2, k + 3
                row = slots(lanes) * 2.0 ** (float(scales[g, half, block]) - 127)
                for n in range(8):
                    out[half * 8 + g, n] += row @ slots(b[block, n])
    wanted = mxfp8_torch.decode(matrix.elements, matrix.scales).double().numpy() @ x.T
    np.testing.assert_allclose(out, wanted, rtol=1e-9, atol=1e-9)


def test_gate_and_up_share_row_blocks() -> None:
    rows = torch.arange(16)[:, None].expand(16, 128).bfloat16()
    mixed = pack.interleave(rows, rows + 100)
    assert mixed[:, 0].tolist() == [*range(8), *range(100, 108), *range(8, 16), *range(108, 116)]


def test_what_the_kernel_cannot_represent_is_refused() -> None:
    elements, scales = mxfp8_torch.encode(bf16(16, 256))
    bad = scales.clone()
    bad[3, 2] = 255
    with pytest.raises(UnsupportedCheckpoint, match=r"layers\.0\.o: found scale byte 255"):
        pack.pack_mxfp8(Mxfp8Matrix(elements, bad), "layers.0.o")
    nan = elements.clone()
    nan[1, 1] = 0x7F
    with pytest.raises(UnsupportedCheckpoint, match="NaN element"):
        pack.pack_mxfp8(Mxfp8Matrix(nan, scales), "layers.0.o")
