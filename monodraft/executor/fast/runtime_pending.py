"""Native runtime: stores that are not visible yet and loads that have not sampled memory yet.

Each wave has a ring of store entries and one of load entries, oldest first. An entry is one instruction; its masks say
which lanes of which pieces are still open. The pending stores of a wave never share a dword: issuing a store, or a
load, that touches a pending one completes that first.
"""

from __future__ import annotations

from monodraft.executor.fast.records import PENDING, PIECES, LoadEntry, Machine, StoreEntry, Wave
from monodraft.executor.fast.runtime_caches import (
    find_region,
    load_word,
    read_through,
    store_word,
    write_through,
)
from monodraft.executor.fast.words import (
    address_of,
    fill_bytes,
    high_product,
    load64,
    lowest_bit,
    store64,
)

# Fields of `shape`: element bytes in bits 0-7, elements 8-15, scope 16-17, ordering 18-20, then flags. Bits 56-58 are
# the low bits of all addresses of the access, or-ed.
SCOPE_SHIFT = 16
ORDERING_SHIFT = 18
LDS_FLAG = 1 << 24
DIRECT_FLAG = 1 << 25  # a load whose lanes go to LDS one after the other
LOW_BITS_SHIFT = 56

STORE_BYTES = 96 + 512 + PIECES * 512
LOAD_BYTES = 112 + 512
SPEEDS = 1024
GOLDEN = 0x9E3779B97F4A7C15


def draw(machine: Machine) -> int:
    """64 random bits (splitmix64)."""
    machine.random0 = machine.random0 + GOLDEN
    x = machine.random0
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


def draw_below(machine: Machine, limit: int) -> int:
    """A uniform number below a limit."""
    return high_product(draw(machine), limit)


def store_at(wave: Wave, position: int) -> StoreEntry:
    """The store at a position of the ring, 0 the oldest."""
    return StoreEntry(wave.store_ring + ((wave.store_head + position) % PENDING) * STORE_BYTES)


def load_at(wave: Wave, position: int) -> LoadEntry:
    """The load at a position of the ring, 0 the oldest."""
    return LoadEntry(wave.load_ring + ((wave.load_head + position) % PENDING) * LOAD_BYTES)


# -- stores


def commit_store(machine: Machine, wave: Wave, entry: StoreEntry, piece: int, lanes: int) -> None:
    """Some lanes of a piece become visible, as far as the store's scope reaches."""
    word = address_of(entry) + 64 + 8 * piece
    rest = load64(word) & lanes
    store64(word, load64(word) & ~lanes)
    nbytes = entry.piece_bytes
    scope = (entry.flags >> SCOPE_SHIFT) & 3
    data = address_of(entry) + 96 + 512 + 512 * piece
    while rest:
        lane = lowest_bit(rest)
        rest = rest & (rest - 1)
        address = load64(address_of(entry) + 96 + 8 * lane) + piece * nbytes
        value = load64(data + 8 * lane)
        if entry.flags & LDS_FLAG:
            store_word(wave.lds + address, value, nbytes)
            if machine.check_written:
                fill_bytes(wave.lds + wave.lds_bytes + address, 1, nbytes)
        else:
            visible(machine, wave, address, nbytes, value, scope)
    machine.progress += 1


def visible(machine: Machine, wave: Wave, address: int, nbytes: int, value: int, scope: int) -> None:
    """One word of a store takes effect."""
    if machine.plain_memory:
        store_word(machine.arena + address, value, nbytes)
        return
    region = find_region(machine, address)
    if region.written:
        fill_bytes(region.written + address - region.start, 1, nbytes)
    if region.uncached or machine.caches == 0:
        store_word(machine.arena + address, value, nbytes)
    else:
        write_through(machine, wave, address - machine.base, nbytes, value, scope)


def commit_all(machine: Machine, wave: Wave, entry: StoreEntry) -> None:
    """The rest of a store becomes visible."""
    for piece in range(entry.pieces):
        commit_store(machine, wave, entry, piece, -1)


def open_lanes(entry: StoreEntry) -> int:
    """Whether any lane is still pending."""
    return entry.mask0 | entry.mask1 | entry.mask2 | entry.mask3


def forget_stores(wave: Wave) -> None:
    """Take finished stores off the old end of the ring."""
    while wave.stores and open_lanes(store_at(wave, 0)) == 0:
        wave.store_head = (wave.store_head + 1) % PENDING
        wave.stores -= 1
    if wave.stores == 0:
        # Starting over keeps the part of the ring that is ever touched small.
        wave.store_head = 0


def enqueue_store(
    machine: Machine, wave: Wave, mask: int, addresses: int, low: int, end: int, data: int, shape: int, place: int
) -> None:
    """Keep a store back; the oldest is completed when the ring is full."""
    if wave.stores == PENDING:
        commit_all(machine, wave, store_at(wave, 0))
        forget_stores(wave)
    entry = store_at(wave, wave.stores)
    wave.stores += 1
    element = shape & 255
    nbytes = element * ((shape >> 8) & 255)
    piece = nbytes
    if nbytes > 4:
        piece = 4 if ((shape >> LOW_BITS_SHIFT) & 7) or nbytes & 7 else 8
    entry.issued = wave.issued
    entry.place = place
    entry.flags = shape
    entry.piece_bytes = piece
    entry.pieces = nbytes // piece
    entry.low = low
    entry.high = end
    entry.delayed = wave.delayed_place == place
    if machine.delayed_regions and (shape & LDS_FLAG) == 0:
        entry.delayed = find_region(machine, low).delayed
    entry.mask0 = mask
    entry.mask1 = mask if entry.pieces > 1 else 0
    entry.mask2 = mask if entry.pieces > 2 else 0
    entry.mask3 = mask if entry.pieces > 3 else 0
    per = piece // element
    rest = mask
    while rest:
        lane = lowest_bit(rest)
        rest = rest & (rest - 1)
        store64(address_of(entry) + 96 + 8 * lane, load64(addresses + 8 * lane))
        for p in range(entry.pieces):
            value = 0
            if per == 0:
                value = load64(data + 8 * (64 * (p >> 1) + lane)) >> (32 * (p & 1))
            else:
                for i in range(per):
                    part = load_word(data + (64 * (p * per + i) + lane) * element, element)
                    value = value | (part << (8 * element * i))
            store64(address_of(entry) + 96 + 512 + 512 * p + 8 * lane, value)


def touches(entry: StoreEntry, mask: int, addresses: int, nbytes: int) -> int:
    """Whether an access shares a dword with what is still pending of a store."""
    open_mask = open_lanes(entry)
    mine = entry.piece_bytes * entry.pieces
    rest = mask
    while rest:
        lane = lowest_bit(rest)
        rest = rest & (rest - 1)
        first = load64(addresses + 8 * lane) & ~3
        end = load64(addresses + 8 * lane) + nbytes
        if not (end + 3 < entry.low or entry.high + 3 < first):
            others = open_mask
            while others:
                other = lowest_bit(others)
                others = others & (others - 1)
                start = load64(address_of(entry) + 96 + 8 * other)
                if first < start + mine and (start & ~3) < end:
                    return 1
    return 0


def settle_own_stores(
    machine: Machine, wave: Wave, mask: int, addresses: int, low: int, end: int, nbytes: int, space: int
) -> None:
    """A wave sees its own stores, and stores of one dword stay in order: complete those that an access touches."""
    for position in range(wave.stores):
        entry = store_at(wave, position)
        near = (entry.flags & LDS_FLAG) == space and low < entry.high + 3 and entry.low < end + 3
        if near and touches(entry, mask, addresses, nbytes):
            commit_all(machine, wave, entry)
    forget_stores(wave)


def complete_stores(machine: Machine, wave: Wave, newest: int, space: int) -> None:
    """Complete the stores of a space, except among the newest operations of the wave."""
    if wave.stores == 0:
        return
    last = wave.issued - newest
    for position in range(wave.stores):
        entry = store_at(wave, position)
        if (entry.flags & LDS_FLAG) == space and entry.issued <= last:
            commit_all(machine, wave, entry)
    forget_stores(wave)


def commit_some(machine: Machine, wave: Wave) -> None:
    """Some lanes of one piece of one pending store, all drawn at random; a delayed store never."""
    entry = store_at(wave, draw_below(machine, wave.stores))
    if entry.delayed:
        return
    if machine.torn == 0:
        commit_all(machine, wave, entry)
    else:
        commit_store(machine, wave, entry, draw_below(machine, entry.pieces), random_lanes(machine))
    forget_stores(wave)


def random_lanes(machine: Machine) -> int:
    """All lanes, a random half, or (half of the time) a random quarter of them."""
    choice = draw_below(machine, 4)
    if choice == 0:
        return -1
    lanes = draw(machine)
    if choice == 1:
        return lanes
    return lanes & draw(machine)


# -- loads


def sample(machine: Machine, wave: Wave, entry: LoadEntry, piece: int, lanes: int) -> None:
    """Some lanes of a piece take what memory shows them now."""
    word = address_of(entry) + 80 + 8 * piece
    rest = load64(word) & lanes
    store64(word, load64(word) & ~lanes)
    element = entry.element_bytes
    scope = (entry.flags >> SCOPE_SHIFT) & 3
    first = piece * entry.per_piece
    past = first + entry.per_piece
    if past > entry.elements:
        past = entry.elements
    while rest:
        lane = lowest_bit(rest)
        rest = rest & (rest - 1)
        address = load64(address_of(entry) + 112 + 8 * lane)
        for i in range(first, past):
            value = 0
            if entry.flags & LDS_FLAG:
                value = load_word(wave.lds + address + element * i, element)
            else:
                value = seen_value(machine, wave, address + element * i, element, scope)
            if entry.flags & DIRECT_FLAG:
                place = entry.target + (lane * entry.elements + i) * element
                store_word(place, value, element)
                if machine.check_written:
                    fill_bytes(place + wave.lds_bytes, 1, element)
            else:
                store_word(entry.target + (64 * i + lane) * element, value, element)


def seen_value(machine: Machine, wave: Wave, address: int, nbytes: int, scope: int) -> int:
    """One word as a load of the wave sees it now."""
    if machine.caches == 0:
        return load_word(machine.arena + address, nbytes)
    if find_region(machine, address).uncached:
        return load_word(machine.arena + address, nbytes)
    return read_through(machine, wave, address - machine.base, nbytes, scope)


def sample_all(machine: Machine, wave: Wave, entry: LoadEntry) -> None:
    """The rest of a load samples."""
    for piece in range(entry.pieces):
        sample(machine, wave, entry, piece, -1)


def forget_loads(wave: Wave) -> None:
    """Take finished loads off the old end of the ring."""
    while wave.loads:
        entry = load_at(wave, 0)
        if entry.mask0 | entry.mask1 | entry.mask2 | entry.mask3:
            return
        wave.load_head = (wave.load_head + 1) % PENDING
        wave.loads -= 1
    wave.load_head = 0


def enqueue_load(
    machine: Machine,
    wave: Wave,
    mask: int,
    addresses: int,
    low: int,
    high: int,
    target: int,
    shape: int,
    place: int,
) -> None:
    """Start a load. Half of the loads sample at once, the others wholly or in part at a later time."""
    if wave.loads == PENDING:
        sample_all(machine, wave, load_at(wave, 0))
        forget_loads(wave)
    entry = load_at(wave, wave.loads)
    element = shape & 255
    elements = (shape >> 8) & 255
    nbytes = element * elements
    per = elements
    if machine.torn and nbytes > 8:
        per = (4 if ((shape >> LOW_BITS_SHIFT) & 7) or nbytes & 7 else 8) // element
        if per == 0:
            per = 1
    pieces = (elements + per - 1) // per
    if pieces > PIECES:
        per = (elements + PIECES - 1) // PIECES
        pieces = (elements + per - 1) // per
    entry.issued = wave.issued
    entry.place = place
    entry.flags = shape
    entry.target = target
    entry.element_bytes = element
    entry.elements = elements
    entry.per_piece = per
    entry.pieces = pieces
    entry.low = low
    entry.high = high + nbytes
    entry.mask0 = mask
    entry.mask1 = mask if pieces > 1 else 0
    entry.mask2 = mask if pieces > 2 else 0
    entry.mask3 = mask if pieces > 3 else 0
    rest = mask
    while rest:
        lane = lowest_bit(rest)
        rest = rest & (rest - 1)
        store64(address_of(entry) + 112 + 8 * lane, load64(addresses + 8 * lane))
    # What goes to LDS is there when it is waited for and not before.
    moment = 3 if shape & DIRECT_FLAG else draw_below(machine, 4)
    if moment < 2:
        sample_all(machine, wave, entry)
        if wave.loads == 0:
            return
    elif moment == 2:
        sample(machine, wave, entry, draw_below(machine, pieces), random_lanes(machine))
    wave.loads += 1
    if draw(machine) & 1:
        # Between the moments at which a wave's loads look at memory, others get far.
        wave.speed = load64(machine.speeds + 8 * (SPEEDS // 5 + draw_below(machine, 2 * SPEEDS // 5)))


def complete_loads(machine: Machine, wave: Wave, place: int) -> None:
    """Complete the loads up to the latest one of a place (they return in order), or all for -1."""
    last = 0
    if place == -1:
        last = wave.loads
    else:
        for position in range(wave.loads):
            if load_at(wave, position).place == place:
                last = position + 1
    for position in range(last):
        sample_all(machine, wave, load_at(wave, position))
    forget_loads(wave)


def complete_loads_until(machine: Machine, wave: Wave, number: int) -> None:
    """Complete the loads whose number is at most `number`."""
    for position in range(wave.loads):
        entry = load_at(wave, position)
        if entry.issued <= number:
            sample_all(machine, wave, entry)
    forget_loads(wave)


def settle_own_loads(machine: Machine, wave: Wave, low: int, end: int, space: int) -> None:
    """A load does not see a later store of its own wave."""
    for position in range(wave.loads):
        entry = load_at(wave, position)
        if (entry.flags & LDS_FLAG) == space and low < entry.high and entry.low < end:
            sample_all(machine, wave, entry)
    forget_loads(wave)


def sample_some(machine: Machine, wave: Wave) -> None:
    """Some lanes of a piece of a random load sample."""
    entry = load_at(wave, draw_below(machine, wave.loads))
    if entry.flags & DIRECT_FLAG:
        return
    sample(machine, wave, entry, draw_below(machine, entry.pieces), random_lanes(machine))
    forget_loads(wave)
