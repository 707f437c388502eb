"""Native runtime: what a memory operation of a kernel calls. Loads and stores of one wave, LDS and global."""

from __future__ import annotations

from monodraft.executor.fast.records import ACQUIRE, AGENT_SCOPE, LDS_BOUNDS, RELEASE, Cta, Machine, Wave
from monodraft.executor.fast.runtime_caches import (
    acquire_caches,
    find_region,
    load_word,
    read_through,
    store_word,
    write_through,
)
from monodraft.executor.fast.runtime_checks import (
    check_written,
    count_loads,
    lds_written,
    look_at_addresses,
    mark_written,
    raise_fault,
    within_lds,
    within_regions,
)
from monodraft.executor.fast.runtime_pending import (
    DIRECT_FLAG,
    LDS_FLAG,
    ORDERING_SHIFT,
    SCOPE_SHIFT,
    complete_loads,
    complete_stores,
    enqueue_load,
    enqueue_store,
    settle_own_loads,
    settle_own_stores,
)
from monodraft.executor.fast.runtime_waits import release
from monodraft.executor.fast.words import below, count_bits, fill_bytes, load32, load64, lowest_bit, store32, store64

SEEN = 64
"""Loads that a wave remembers in order to tell polling from progress."""


def zero_lanes(mask: int, target: int, element: int, elements: int) -> None:
    """Lanes of a buffer load beyond its resource read 0."""
    rest = mask
    while rest:
        lane = lowest_bit(rest)
        rest = rest & (rest - 1)
        for i in range(elements):
            store_word(target + (64 * i + lane) * element, 0, element)


def copy_in(base: int, mask: int, addresses: int, target: int, element: int, elements: int) -> None:
    """Plain loads: every lane's elements from `base` + address to the slot, component by component."""
    if mask == -1 and element == 4:
        for lane in range(64):
            source = base + load64(addresses + 8 * lane)
            for i in range(elements):
                store32(target + 256 * i + 4 * lane, load32(source + 4 * i))
        return
    rest = mask
    while rest:
        lane = lowest_bit(rest)
        rest = rest & (rest - 1)
        source = base + load64(addresses + 8 * lane)
        for i in range(elements):
            store_word(target + (64 * i + lane) * element, load_word(source + element * i, element), element)


def copy_out(base: int, mask: int, addresses: int, data: int, element: int, elements: int) -> None:
    """Plain stores, lane by lane; the highest lane wins where lanes collide."""
    rest = mask
    while rest:
        lane = lowest_bit(rest)
        rest = rest & (rest - 1)
        target = base + load64(addresses + 8 * lane)
        for i in range(elements):
            store_word(target + element * i, load_word(data + (64 * i + lane) * element, element), element)


def read_lanes(
    machine: Machine, wave: Wave, mask: int, addresses: int, target: int, element: int, elements: int, scope: int
) -> None:
    """Loads through the caches."""
    rest = mask
    while rest:
        lane = lowest_bit(rest)
        rest = rest & (rest - 1)
        address = load64(addresses + 8 * lane)
        offset = address - machine.base
        uncached = find_region(machine, address).uncached
        for i in range(elements):
            if uncached:
                value = load_word(machine.memory + offset + element * i, element)
            else:
                value = read_through(machine, wave, offset + element * i, element, scope)
            store_word(target + (64 * i + lane) * element, value, element)


def write_lanes(
    machine: Machine, wave: Wave, mask: int, addresses: int, data: int, element: int, elements: int, scope: int
) -> None:
    """Stores through the caches."""
    rest = mask
    while rest:
        lane = lowest_bit(rest)
        rest = rest & (rest - 1)
        address = load64(addresses + 8 * lane)
        offset = address - machine.base
        uncached = find_region(machine, address).uncached
        for i in range(elements):
            value = load_word(data + (64 * i + lane) * element, element)
            if uncached:
                store_word(machine.memory + offset + element * i, value, element)
            else:
                write_through(machine, wave, offset + element * i, element, value, scope)


def note_load(machine: Machine, wave: Wave, place: int, address: int) -> None:
    """Progress is a load of another place or address than the latest SEEN ones; the same again is a poll."""
    key = address * 4096 + place
    for i in range(SEEN):
        if load64(wave.seen + 8 * i) == key:
            machine.polls += 1
            return
    store64(wave.seen + 8 * (wave.seen_next % SEEN), key)
    wave.seen_next += 1
    machine.progress += 1


def load_lanes(
    machine: Machine,
    wave: Wave,
    mask: int,
    allowed: int,
    addresses: int,
    target: int,
    shape: int,
    place: int,
) -> None:
    """A global load of `mask`; lanes not in `allowed` are past their buffer and read 0."""
    wave.place = place
    if wave.loads:
        complete_loads(machine, wave, place)
    wave.issued += 1
    if mask != allowed:
        zero_lanes(mask & ~allowed, target, shape & 255, (shape >> 8) & 255)
    if allowed:
        start_load(machine, wave, allowed, addresses, target, shape, place)


def start_load(machine: Machine, wave: Wave, lanes: int, addresses: int, target: int, shape: int, place: int) -> int:
    """Load `lanes`, which are all inside their buffers. Whether nothing was wrong with it."""
    element = shape & 255
    elements = (shape >> 8) & 255
    scope = (shape >> SCOPE_SHIFT) & 3
    ordering = (shape >> ORDERING_SHIFT) & 7
    shape = look_at_addresses(machine, lanes, addresses, shape)
    low = machine.low
    high = machine.high
    if not within_regions(machine, wave, lanes, addresses, low, high, shape, place):
        return 0
    note_load(machine, wave, place, low)
    machine.spent += machine.coherent_load_cost if scope >= AGENT_SCOPE else machine.load_cost
    traffic = machine.traffic + 8 * scope
    store64(traffic, load64(traffic) + count_bits(lanes) * element * elements)
    if wave.stores:
        settle_own_stores(machine, wave, lanes, addresses, low, high + element * elements, element * elements, 0)
    if machine.watch_regions and not check_written(machine, wave, lanes, addresses, element * elements, place):
        return 0
    if machine.count_regions:
        count_loads(machine, lanes, addresses, element * elements)
    if machine.late_loads and ordering < ACQUIRE:
        enqueue_load(machine, wave, lanes, addresses, low, high, target, shape, place)
        return 1
    if machine.caches:
        read_lanes(machine, wave, lanes, addresses, target, element, elements, scope)
    else:
        copy_in(machine.arena, lanes, addresses, target, element, elements)
    if ordering >= ACQUIRE and ordering != RELEASE:
        complete_loads(machine, wave, -1)
        acquire_caches(Cta(wave.cta), scope)
    return 1


def load_to_lds(
    machine: Machine, wave: Wave, mask: int, allowed: int, addresses: int, target: int, shape: int, place: int
) -> None:
    """A load of dwords whose lanes go to LDS from offset `target`; lanes beyond the resource write zeros."""
    wave.place = place
    nbytes = 4 * ((shape >> 8) & 255)
    if wave.loads:
        complete_loads(machine, wave, place)
    if target & 3 or below(wave.lds_bytes, target + nbytes * (highest_bit(mask) + 1)):
        raise_fault(machine, wave, LDS_BOUNDS, place, target, mask, nbytes)
        return
    complete_stores(machine, wave, 0, LDS_FLAG)
    rest = mask & ~allowed
    while rest:
        lane = lowest_bit(rest)
        rest = rest & (rest - 1)
        fill_bytes(wave.lds + target + nbytes * lane, 0, nbytes)
        fill_bytes(wave.lds + wave.lds_bytes + target + nbytes * lane, 1, nbytes)
    machine.progress += 1
    wave.issued += 1
    if allowed == 0:
        return
    shape = look_at_addresses(machine, allowed, addresses, shape)
    low = machine.low
    high = machine.high
    if not within_regions(machine, wave, allowed, addresses, low, high, shape, place):
        return
    scope = (shape >> SCOPE_SHIFT) & 3
    machine.spent += machine.coherent_load_cost if scope >= AGENT_SCOPE else machine.load_cost
    traffic = machine.traffic + 8 * scope
    store64(traffic, load64(traffic) + count_bits(allowed) * nbytes)
    if wave.stores:
        settle_own_stores(machine, wave, allowed, addresses, low, high + nbytes, nbytes, 0)
    if machine.watch_regions and not check_written(machine, wave, allowed, addresses, nbytes, place):
        return
    if machine.count_regions:
        count_loads(machine, allowed, addresses, nbytes)
    enqueue_load(machine, wave, allowed, addresses, low, high, wave.lds + target, shape | DIRECT_FLAG, place)
    if machine.late_loads == 0:
        complete_loads(machine, wave, place)


def highest_bit(mask: int) -> int:
    """Index of the highest set bit of a mask that is not empty."""
    highest = 0
    while mask:
        highest = lowest_bit(mask)
        mask = mask & (mask - 1)
    return highest


def store_lanes(machine: Machine, wave: Wave, mask: int, addresses: int, data: int, shape: int, place: int) -> None:
    """A global store of the lanes in `mask`."""
    wave.place = place
    wave.issued += 1
    if mask:
        start_store(machine, wave, mask, addresses, data, shape, place)


def start_store(machine: Machine, wave: Wave, lanes: int, addresses: int, data: int, shape: int, place: int) -> int:
    """Store `lanes`, which are all inside their buffers. Whether nothing was wrong with it."""
    shape = look_at_addresses(machine, lanes, addresses, shape)
    low = machine.low
    high = machine.high
    element = shape & 255
    elements = (shape >> 8) & 255
    scope = (shape >> SCOPE_SHIFT) & 3
    if not within_regions(machine, wave, lanes, addresses, low, high, shape, place):
        return 0
    if ((shape >> ORDERING_SHIFT) & 7) >= RELEASE:
        release(machine, wave, scope)
    machine.progress += 1
    machine.spent += machine.store_cost
    traffic = machine.traffic + 8 * (4 + scope)
    store64(traffic, load64(traffic) + count_bits(lanes) * element * elements)
    end = high + element * elements
    if wave.stores:
        settle_own_stores(machine, wave, lanes, addresses, low, end, element * elements, 0)
    if wave.loads:
        settle_own_loads(machine, wave, low, end, 0)
    if machine.late_stores:
        enqueue_store(machine, wave, lanes, addresses, low, end, data, shape, place)
        return 1
    if machine.mark_regions:
        mark_written(machine, lanes, addresses, element * elements)
    if machine.caches:
        write_lanes(machine, wave, lanes, addresses, data, element, elements, scope)
    else:
        copy_out(machine.arena, lanes, addresses, data, element, elements)
    return 1


def load_lds(machine: Machine, wave: Wave, mask: int, addresses: int, target: int, shape: int, place: int) -> None:
    """An LDS load."""
    wave.place = place
    element = shape & 255
    elements = (shape >> 8) & 255
    nbytes = element * elements
    shape = look_at_addresses(machine, mask, addresses, shape)
    low = machine.low
    high = machine.high
    if wave.loads:
        complete_loads(machine, wave, place)
    if not within_lds(machine, wave, mask, addresses, high, nbytes, shape, place):
        return
    note_load(machine, wave, place, low)
    traffic = machine.traffic + 8 * 8
    store64(traffic, load64(traffic) + count_bits(mask) * nbytes)
    if wave.stores:
        settle_own_stores(machine, wave, mask, addresses, low, high + nbytes, nbytes, LDS_FLAG)
    if machine.check_written and not lds_written(machine, wave, mask, addresses, nbytes, place):
        return
    if machine.late_loads:
        enqueue_load(machine, wave, mask, addresses, low, high, target, shape | LDS_FLAG, place)
    else:
        copy_in(wave.lds, mask, addresses, target, element, elements)


def store_lds(machine: Machine, wave: Wave, mask: int, addresses: int, data: int, shape: int, place: int) -> None:
    """An LDS store."""
    wave.place = place
    element = shape & 255
    elements = (shape >> 8) & 255
    nbytes = element * elements
    shape = look_at_addresses(machine, mask, addresses, shape)
    low = machine.low
    high = machine.high
    if not within_lds(machine, wave, mask, addresses, high, nbytes, shape, place):
        return
    machine.progress += 1
    traffic = machine.traffic + 8 * 9
    store64(traffic, load64(traffic) + count_bits(mask) * nbytes)
    if wave.loads:
        settle_own_loads(machine, wave, low, high + nbytes, LDS_FLAG)
    if machine.late_lds:
        if wave.stores:
            settle_own_stores(machine, wave, mask, addresses, low, high + nbytes, nbytes, LDS_FLAG)
        enqueue_store(machine, wave, mask, addresses, low, high + nbytes, data, shape | LDS_FLAG, place)
    else:
        copy_out(wave.lds, mask, addresses, data, element, elements)
        if machine.check_written:
            rest = mask
            while rest:
                lane = lowest_bit(rest)
                rest = rest & (rest - 1)
                fill_bytes(wave.lds + wave.lds_bytes + load64(addresses + 8 * lane), 1, nbytes)


def load_edge(
    machine: Machine, wave: Wave, mask: int, addresses: int, room: int, target: int, shape: int, place: int
) -> None:
    """Lanes of a wide buffer load that are partly past the resource: the elements that are inside, each a load by
    itself of the instruction that `load_lanes` counted; the rest is 0 already."""
    element = shape & 255
    single = (shape & ~0xFF00) | (1 << 8)
    rest = mask
    while rest:
        lane = lowest_bit(rest)
        rest = rest & (rest - 1)
        address = load64(addresses + 8 * lane)
        inside = load64(room + 8 * lane) // element
        for i in range(inside):
            store64(addresses + 8 * lane, address + element * i)
            if start_load(machine, wave, 1 << lane, addresses, target + 64 * element * i, single, place) == 0:
                return


def store_edge(
    machine: Machine, wave: Wave, mask: int, addresses: int, room: int, data: int, shape: int, place: int
) -> None:
    """The same for a store; elements past the resource are dropped."""
    element = shape & 255
    single = (shape & ~0xFF00) | (1 << 8)
    rest = mask
    while rest:
        lane = lowest_bit(rest)
        rest = rest & (rest - 1)
        address = load64(addresses + 8 * lane)
        inside = load64(room + 8 * lane) // element
        for i in range(inside):
            store64(addresses + 8 * lane, address + element * i)
            if start_store(machine, wave, 1 << lane, addresses, data + 64 * element * i, single, place) == 0:
                return
