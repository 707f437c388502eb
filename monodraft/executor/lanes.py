"""Operations across the 64 lanes of a wave. `mask` is None (all lanes active) or a bool array [64]."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from monodraft.executor.gpu import WAVE

LANE = np.arange(WAVE)
# What a cross-lane read finds in a lane that is switched off: a quiet NaN as f32, an absurd integer.
JUNK = 0x7FC0DEAD
Lanes = Any


def full(x: Lanes, kind: Any = None) -> np.ndarray:
    """All 64 lanes of a value."""
    if isinstance(x, np.ndarray) and x.shape == (WAVE,):
        return x
    return np.full(WAVE, x, kind or x.dtype)


def dpp_source(control: int) -> tuple[np.ndarray, np.ndarray]:
    """Source lane and validity per lane for a DPP control word of gfx9."""
    row, base = LANE & 15, LANE & ~15
    always = np.ones(WAVE, np.bool_)
    if control < 0x100:  # quad_perm
        return (LANE & ~3) | ((control >> (2 * (LANE & 3))) & 3), always
    if 0x101 <= control <= 0x10F:  # row_shl
        return LANE + (control & 15), row + (control & 15) < 16
    if 0x111 <= control <= 0x11F:  # row_shr
        return LANE - (control & 15), row >= (control & 15)
    if 0x121 <= control <= 0x12F:  # row_ror
        return base | ((row - (control & 15)) & 15), always
    named = {
        0x130: (LANE + 1, LANE < 63),  # wave_shl:1
        0x134: ((LANE + 1) & 63, always),  # wave_rol:1
        0x138: (LANE - 1, LANE > 0),  # wave_shr:1
        0x13C: ((LANE - 1) & 63, always),  # wave_ror:1
        0x140: (base | (15 - row), always),  # row_mirror
        0x141: ((LANE & ~7) | (7 - (LANE & 7)), always),  # row_half_mirror
        0x142: (base - 1, LANE >= 16),  # row_bcast:15
        0x143: (np.full(WAVE, 31), LANE >= 32),  # row_bcast:31
    }
    if control in named:
        return named[control]
    if 0x150 <= control <= 0x15F:  # row_newbcast
        return base | (control & 15), always
    raise ValueError(f"dpp control {control:#x}")


@cache
def dpp_plan(control: int, row_mask: int, bank_mask: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Source lane, source validity, and which lanes are written."""
    source, valid = dpp_source(control)
    written = ((row_mask >> (LANE >> 4)) & 1).astype(bool) & ((bank_mask >> ((LANE >> 2) & 3)) & 1).astype(bool)
    return np.where(valid, source, 0), valid, written


def dpp(
    mask: np.ndarray | None, old: Lanes, source: Lanes, control: int, row_mask: int, bank_mask: int, bound: bool
) -> np.ndarray:
    """update_dpp: an invalid or inactive source reads 0 with bound_ctrl, else the lane keeps `old`."""
    lane, valid, written = dpp_plan(int(control), int(row_mask), int(bank_mask))
    value, kept = full(source), full(old)
    if mask is not None:
        valid = valid & mask[lane]
    return np.where(written, np.where(valid, value[lane], value.dtype.type(0) if bound else kept), kept)


def swizzle_source(offset: int) -> np.ndarray:
    """Source lanes of ds_swizzle_b32: quad permutation, or and/or/xor masks within 32 lanes."""
    if offset & 0x8000:
        return (LANE & ~3) | ((offset >> (2 * (LANE & 3))) & 3)
    inner = (((LANE & 31) & (offset & 31)) | ((offset >> 5) & 31)) ^ ((offset >> 10) & 31)
    return (LANE & ~31) | inner


def swizzle(mask: np.ndarray | None, x: Lanes, offset: int) -> np.ndarray:
    """ds_swizzle_b32: inactive sources read 0."""
    return gather(mask, full(x), swizzle_source(int(offset)))


def bpermute(mask: np.ndarray | None, address: Lanes, x: Lanes) -> np.ndarray:
    """ds_bpermute_b32: lane i reads lane (address[i] / 4) mod 64; inactive sources read 0."""
    return gather(mask, full(x), (full(address) >> 2) & 63)


def permute(mask: np.ndarray | None, address: Lanes, x: Lanes) -> np.ndarray:
    """ds_permute_b32: lane i sends to lane (address[i] / 4) mod 64; the highest sender wins, no sender leaves 0."""
    result = np.zeros(WAVE, full(x).dtype)
    active = slice(None) if mask is None else mask
    result[((full(address) >> 2) & 63)[active]] = full(x)[active]
    return result


def gather(mask: np.ndarray | None, x: np.ndarray, lane: np.ndarray) -> np.ndarray:
    value = x[lane]
    return value if mask is None else np.where(mask[lane], value, value.dtype.type(0))


def swap_rows(mask: np.ndarray | None, a: Lanes, b: Lanes, width: int) -> tuple[np.ndarray, np.ndarray]:
    """v_permlane{16,32}_swap_b32: odd rows of `width` lanes of a change places with even rows of b. Lanes that are
    switched off deliver junk: the hardware leaves it undefined what their registers hold."""
    first, second = full(a), full(b)
    if mask is not None:
        junk = np.array(JUNK, np.uint32).view(first.dtype)
        first, second = np.where(mask, first, junk), np.where(mask, second, junk)
    odd = (LANE // width) % 2 == 1
    return np.where(odd, second[LANE - width], first), np.where(odd, second, first[(LANE + width) & 63])


def read_first_lane(mask: np.ndarray | None, x: Lanes) -> Any:
    """v_readfirstlane: the lowest active lane's value, as a uniform scalar."""
    if not isinstance(x, np.ndarray) or x.ndim == 0:
        return x
    return x[0] if mask is None else x[int(mask.argmax())]


def read_lane(x: Lanes, lane: Lanes) -> Any:
    """v_readlane: a lane by (uniform) number, whether active or not."""
    if not isinstance(x, np.ndarray) or x.ndim == 0:
        return x
    return x[int(np.asarray(lane).flat[0]) & 63]


def write_lane(value: Lanes, lane: Lanes, old: Lanes) -> np.ndarray:
    """v_writelane."""
    result = full(old).copy()
    result[int(np.asarray(lane).flat[0]) & 63] = np.asarray(value).flat[0]
    return result


def ballot(mask: np.ndarray | None, condition: Lanes, kind: Any = np.int64) -> Any:
    """A bit per active lane where the condition holds, as a uniform scalar."""
    bits = full(condition, np.bool_) if mask is None else full(condition, np.bool_) & mask
    return np.packbits(bits, bitorder="little").view(np.int64)[0].astype(kind)


# mbcnt counts set bits of a mask below the lane: the low word for lanes 0-31, the high word for lanes 32-63.
BELOW_LOW = np.where(LANE < 32, (np.uint64(1) << (LANE & 31).astype(np.uint64)) - np.uint64(1), 0xFFFFFFFF).astype(
    np.uint32
)
BELOW_HIGH = np.where(LANE < 32, 0, (np.uint64(1) << (LANE & 31).astype(np.uint64)) - np.uint64(1)).astype(np.uint32)


def count_below(word: Lanes, base: Lanes, below: np.ndarray) -> np.ndarray:
    """v_mbcnt_{lo,hi}_u32_b32."""
    return np.bitwise_count(np.asarray(word).view(np.uint32) & below).astype(np.int32) + base
