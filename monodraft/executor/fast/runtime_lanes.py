"""Native runtime: moves between lanes whose source is only known at run time. Addresses are of i32 lane vectors."""

from __future__ import annotations

from monodraft.executor.fast.words import load32, lowest_bit, store32


def pull_lanes(mask: int, target: int, indices: int, values: int) -> None:
    """ds_bpermute: lane i takes the value of lane `indices[i]` / 4 modulo 64."""
    for lane in range(64):
        source = (load32(indices + 4 * lane) >> 2) & 63
        store32(target + 4 * lane, load32(values + 4 * source))


def push_lanes(mask: int, target: int, indices: int, values: int) -> None:
    """ds_permute: active lane i gives its value to lane `indices[i]` / 4 modulo 64; the rest get 0."""
    for lane in range(64):
        store32(target + 4 * lane, 0)
    rest = mask
    while rest:
        lane = lowest_bit(rest)
        rest = rest & (rest - 1)
        place = (load32(indices + 4 * lane) >> 2) & 63
        store32(target + 4 * place, load32(values + 4 * lane))


def permute_bytes(mask: int, target: int, high: int, low: int, selectors: int) -> None:
    """v_perm_b32."""
    for lane in range(64):
        both = (load32(high + 4 * lane) << 32) | load32(low + 4 * lane)
        selector = load32(selectors + 4 * lane)
        result = 0
        for i in range(4):
            select = (selector >> (8 * i)) & 255
            byte = 255
            if select < 8:
                byte = (both >> (8 * select)) & 255
            elif select < 12:
                byte = 255 * ((both >> (16 * (select & 3) + 15)) & 1)
            elif select == 12:
                byte = 0
            result = result | (byte << (8 * i))
        store32(target + 4 * lane, result)
