"""Native runtime: what is checked of an access before it happens: bounds, alignment, bytes that nobody wrote."""

from __future__ import annotations

from monodraft.executor.fast.records import (
    LDS_BOUNDS,
    LDS_UNINITIALISED,
    MISALIGNED,
    OUT_OF_BOUNDS,
    UNINITIALISED,
    Machine,
    Wave,
)
from monodraft.executor.fast.runtime_caches import find_region
from monodraft.executor.fast.runtime_pending import LOW_BITS_SHIFT
from monodraft.executor.fast.words import (
    address_of,
    below,
    external,
    fields,
    load8,
    load32,
    load64,
    lowest_bit,
    store8,
    store32,
    store64,
)

LOW_OFFSET = fields(Machine)["low"]


def raise_fault(machine: Machine, wave: Wave, kind: int, place: int, address: int, lanes: int, nbytes: int) -> None:
    """Record the first fault and make the wave stop at its next step."""
    if machine.fault_kind == 0:
        machine.fault_kind = kind
        machine.fault_wave = wave.number
        machine.fault_place = place
        machine.fault_address = address
        machine.fault_lanes = lanes
        machine.fault_bytes = nbytes
    machine.budget = 0


@external
def address_range(mask: int, addresses: int, result: int) -> int:
    """The lowest and the highest address of the lanes in a (not empty) mask, and all of them or-ed: three words."""
    return 0


def look_at_addresses(machine: Machine, mask: int, addresses: int, shape: int) -> int:
    """Fill `machine.low` and `high`; the shape with the low bits of the addresses in it."""
    address_range(mask, addresses, address_of(machine) + LOW_OFFSET)
    return shape | ((machine.low_bits & 7) << LOW_BITS_SHIFT)


def lanes_outside(machine: Machine, mask: int, addresses: int, nbytes: int) -> int:
    """The lanes whose access is not within one region."""
    outside = 0
    rest = mask
    while rest:
        lane = lowest_bit(rest)
        rest = rest & (rest - 1)
        address = load64(addresses + 8 * lane)
        region = find_region(machine, address)
        if below(address, region.start) or below(region.end, address + nbytes):
            outside = outside | (1 << lane)
    return outside


def within_regions(
    machine: Machine, wave: Wave, mask: int, addresses: int, low: int, high: int, shape: int, place: int
) -> int:
    """Whether all lanes stay inside regions, aligned; `low` and `high` bound the addresses of all of them."""
    nbytes = (shape & 255) * ((shape >> 8) & 255)
    region = find_region(machine, low)
    if below(low, region.start) or below(region.end, high + nbytes):
        outside = lanes_outside(machine, mask, addresses, nbytes)
        if outside:
            address = load64(addresses + 8 * lowest_bit(outside))
            raise_fault(machine, wave, OUT_OF_BOUNDS, place, address, outside, nbytes)
            return 0
    return misaligned(machine, wave, mask, addresses, shape, place) == 0


def misaligned(machine: Machine, wave: Wave, mask: int, addresses: int, shape: int, place: int) -> int:
    """Report lanes whose address is not a multiple of the element's size (4 at most)."""
    element = shape & 255
    bits = (4 if element > 4 else element) - 1
    if (((shape >> LOW_BITS_SHIFT) & 7) & bits) == 0:
        return 0
    wrong = 0
    rest = mask
    while rest:
        lane = lowest_bit(rest)
        rest = rest & (rest - 1)
        if load64(addresses + 8 * lane) & bits:
            wrong = wrong | (1 << lane)
    first = load64(addresses + 8 * lowest_bit(wrong))
    raise_fault(machine, wave, MISALIGNED, place, first, wrong, element * ((shape >> 8) & 255))
    return 1


def within_lds(
    machine: Machine, wave: Wave, mask: int, addresses: int, high: int, nbytes: int, shape: int, place: int
) -> int:
    """Whether all lanes stay inside the CTA's LDS, aligned."""
    if misaligned(machine, wave, mask, addresses, shape, place):
        return 0
    if not below(wave.lds_bytes, high + nbytes):
        return 1
    outside = 0
    rest = mask
    while rest:
        lane = lowest_bit(rest)
        rest = rest & (rest - 1)
        if below(wave.lds_bytes, load64(addresses + 8 * lane) + nbytes):
            outside = outside | (1 << lane)
    raise_fault(machine, wave, LDS_BOUNDS, place, load64(addresses + 8 * lowest_bit(outside)), outside, nbytes)
    return 0


def any_unwritten(shadow: int, nbytes: int) -> int:
    """Whether one of the bytes that a shadow stands for was never written."""
    if nbytes == 4:
        return load32(shadow) != 0x01010101
    for i in range(nbytes):
        if load8(shadow + i) == 0:
            return 1
    return 0


def check_written(machine: Machine, wave: Wave, mask: int, addresses: int, nbytes: int, place: int) -> int:
    """Whether every byte to be read of regions that started as poison was written (by anybody)."""
    bad = 0
    rest = mask
    while rest:
        lane = lowest_bit(rest)
        rest = rest & (rest - 1)
        address = load64(addresses + 8 * lane)
        region = find_region(machine, address)
        if region.written and any_unwritten(region.written + address - region.start, nbytes):
            bad = bad | (1 << lane)
    if bad:
        raise_fault(machine, wave, UNINITIALISED, place, load64(addresses + 8 * lowest_bit(bad)), bad, nbytes)
    return bad == 0


def count_loads(machine: Machine, mask: int, addresses: int, nbytes: int) -> None:
    """Count a load in the regions that count: every byte once, whichever lanes take it."""
    machine.counted += 1
    rest = mask
    while rest:
        lane = lowest_bit(rest)
        rest = rest & (rest - 1)
        address = load64(addresses + 8 * lane)
        region = find_region(machine, address)
        if region.loads:
            first = address - region.start
            for i in range(nbytes):
                if load64(region.stamps + 8 * (first + i)) != machine.counted:
                    store64(region.stamps + 8 * (first + i), machine.counted)
                    store32(region.loads + 4 * (first + i), load32(region.loads + 4 * (first + i)) + 1)


def mark_written(machine: Machine, mask: int, addresses: int, nbytes: int) -> None:
    """Remember the bytes that a store writes."""
    rest = mask
    while rest:
        lane = lowest_bit(rest)
        rest = rest & (rest - 1)
        address = load64(addresses + 8 * lane)
        region = find_region(machine, address)
        if region.written:
            for i in range(nbytes):
                store8(region.written + address - region.start + i, 1)


def lds_written(machine: Machine, wave: Wave, mask: int, addresses: int, nbytes: int, place: int) -> int:
    """Whether every byte of LDS to be read was written, as far as this wave can see."""
    bad = 0
    rest = mask
    while rest:
        lane = lowest_bit(rest)
        rest = rest & (rest - 1)
        if any_unwritten(wave.lds + wave.lds_bytes + load64(addresses + 8 * lane), nbytes):
            bad = bad | (1 << lane)
    if bad:
        raise_fault(machine, wave, LDS_UNINITIALISED, place, load64(addresses + 8 * lowest_bit(bad)), bad, nbytes)
    return bad == 0
