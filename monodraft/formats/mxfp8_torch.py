"""`mxfp8` on torch tensors, on any device: the same bytes (docs/formats.md)."""

from __future__ import annotations

from functools import cache

import torch

from monodraft.formats import e4m3, e8m0
from monodraft.formats.mxfp8 import BLOCK, GREATEST_CODE, LEAST_CODE, RECIPROCAL_448_BITS


@cache
def _tables(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 [256] values of e4m3 and e8m0 bytes on `device`."""
    return torch.from_numpy(e4m3.VALUES).to(device), torch.from_numpy(e8m0.VALUES.copy()).to(device)


def block_exponent(amax: torch.Tensor) -> torch.Tensor:
    """Scale code, uint8, of blocks whose largest magnitude is `amax` (float32 >= 0); 255 for NaN and infinity."""
    reciprocal = torch.tensor(RECIPROCAL_448_BITS, dtype=torch.int32, device=amax.device).view(torch.float32)
    special = ~torch.isfinite(amax)
    v = (amax.float().masked_fill(special, 0.0) * reciprocal).view(torch.int32)
    code = (v >> 23) + ((v & 0x7FFFFF) != 0)
    return code.clamp(LEAST_CODE, GREATEST_CODE).masked_fill(special, e8m0.NAN).to(torch.uint8)


def encode(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [..., K] (cast to float32), K a multiple of 32, to elements uint8 [..., K] and scales uint8 [..., K / 32].

    Raises ValueError where K is not a multiple of 32.
    """
    if x.dim() == 0 or x.shape[-1] % BLOCK:
        raise ValueError(f"last axis: found {tuple(x.shape[-1:])}, wanted a multiple of {BLOCK}")
    blocks = x.float().contiguous().unflatten(-1, (x.shape[-1] // BLOCK, BLOCK))
    # As integers, magnitudes order like the floats and every NaN lies above infinity: this maximum cannot lose a NaN.
    amax = (blocks.view(torch.int32) & 0x7FFFFFFF).amax(-1)
    special = amax >= 0x7F800000
    scales = block_exponent(amax.view(torch.float32))
    factor = ((254 - scales.int().masked_fill(special, 127)) << 23).view(torch.float32)
    scaled = blocks.masked_fill(special[..., None], 0.0) * factor[..., None]
    # The code makes every |scaled| <= 448, so torch's cast, whose saturation differs by version, never saturates.
    elements = scaled.to(torch.float8_e4m3fn).view(torch.uint8)
    elements = elements.masked_fill((amax == 0)[..., None], 0).masked_fill(special[..., None], e4m3.NAN)
    return elements.reshape(x.shape), scales


def decode(elements: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """elements uint8 (or float8_e4m3fn) [..., K] and scales uint8 [..., K / 32] to float32 [..., K]."""
    if elements.shape != (*scales.shape[:-1], scales.shape[-1] * BLOCK):
        raise ValueError(
            f"scales: found shape {tuple(scales.shape)}, wanted one per {BLOCK} of elements {tuple(elements.shape)}"
        )
    element_values, scale_values = _tables(elements.device)
    blocks = element_values[elements.view(torch.uint8).long()].unflatten(-1, (scales.shape[-1], BLOCK))
    return (blocks * scale_values[scales.long()][..., None]).reshape(elements.shape)
