"""Native runtime: the caches of `coherence.py`, line by line (see native.py for the language).

A cache is a sparse copy of the arena; nothing is evicted. A clean line stays, however old, until an acquire drops it; a
dirty byte stays until a release, or the end of the kernel, writes it back.
"""

from __future__ import annotations

from monodraft.executor.fast.records import AGENT_SCOPE, Cache, Cta, Machine, Region, Wave
from monodraft.executor.fast.words import (
    below,
    copy_bytes,
    inline,
    load8,
    load16,
    load32,
    load64,
    lowest_bit,
    size_of,
    store8,
    store16,
    store32,
    store64,
)

LINE = 128
VALID, LISTED_DIRTY = 1, 2


@inline
def load_word(address: int, nbytes: int) -> int:
    """1, 2, 4 or 8 bytes at a host address."""
    value = 0
    if nbytes == 4:
        value = load32(address)
    elif nbytes == 8:
        value = load64(address)
    elif nbytes == 2:
        value = load16(address)
    else:
        value = load8(address)
    return value


@inline
def store_word(address: int, value: int, nbytes: int) -> None:
    """1, 2, 4 or 8 bytes to a host address."""
    if nbytes == 4:
        store32(address, value)
    elif nbytes == 8:
        store64(address, value)
    elif nbytes == 2:
        store16(address, value)
    else:
        store8(address, value)


def find_region(machine: Machine, address: int) -> Region:
    """The last region that starts at or below a device address, or the first one."""
    low = 0
    high = machine.region_count
    while high - low > 1:
        middle = (low + high) >> 1
        if below(address, Region(machine.regions + middle * size_of(Region)).start):
            high = middle
        else:
            low = middle
    return Region(machine.regions + low * size_of(Region))


def fill_line(machine: Machine, cache: Cache, line: int) -> None:
    """Bring a line in from the next cache outwards or memory, under the bytes that are dirty here."""
    source = machine.memory + line * LINE
    if cache.parent:
        parent = Cache(cache.parent)
        if (load8(parent.flags + line) & VALID) == 0:
            fill_line(machine, parent, line)
        source = parent.data + line * LINE
    target = cache.data + line * LINE
    dirty0 = load64(cache.dirty + 16 * line)
    dirty1 = load64(cache.dirty + 16 * line + 8)
    if (dirty0 | dirty1) == 0:
        copy_bytes(target, source, LINE)
    else:
        for i in range(LINE):
            mask = dirty0 if i < 64 else dirty1
            if ((mask >> (i & 63)) & 1) == 0:
                store8(target + i, load8(source + i))
    store8(cache.flags + line, load8(cache.flags + line) | VALID)
    store64(cache.filled + 8 * cache.filled_count, line)
    cache.filled_count += 1


def read_cached(machine: Machine, cache: Cache, offset: int, nbytes: int) -> int:
    """A word as the cache has it, however old; missing lines are fetched."""
    line = offset >> 7
    if (load8(cache.flags + line) & VALID) == 0:
        fill_line(machine, cache, line)
    return load_word(cache.data + offset, nbytes)


@inline
def dirty_bits(cache: Cache, offset: int) -> int:
    """Address of the word that holds the dirty bits of an offset."""
    return cache.dirty + ((offset >> 6) << 3)


def dirty_over(cache: Cache, offset: int, nbytes: int, value: int) -> int:
    """`value` with the bytes that are dirty in the cache laid over it."""
    mask = (load64(dirty_bits(cache, offset)) >> (offset & 63)) & ((1 << nbytes) - 1)
    while mask:
        i = lowest_bit(mask)
        mask = mask & (mask - 1)
        value = (value & ~(255 << (8 * i))) | (load8(cache.data + offset + i) << (8 * i))
    return value


def make_dirty(cache: Cache, offset: int, bits: int) -> None:
    """Mark bytes dirty, and their line as one to write back."""
    word = dirty_bits(cache, offset)
    store64(word, load64(word) | (bits << (offset & 63)))
    line = offset >> 7
    flags = load8(cache.flags + line)
    if (flags & LISTED_DIRTY) == 0:
        store8(cache.flags + line, flags | LISTED_DIRTY)
        store64(cache.dirty_list + 8 * cache.dirty_count, line)
        cache.dirty_count += 1


def write_cache(cache: Cache, offset: int, nbytes: int, value: int, stays: int) -> None:
    """A store that stays here, dirty, or passes through and leaves its bytes clean."""
    store_word(cache.data + offset, value, nbytes)
    if stays:
        make_dirty(cache, offset, (1 << nbytes) - 1)
    elif cache.dirty_count:
        word = dirty_bits(cache, offset)
        store64(word, load64(word) & ~(((1 << nbytes) - 1) << (offset & 63)))


def read_through(machine: Machine, wave: Wave, offset: int, nbytes: int, scope: int) -> int:
    """A word as a wave sees it: from the nearest cache that its scope allows, under what the nearer ones hold dirty.
    `offset` into the arena; `nbytes` of 1, 2, 4 or 8, aligned. Scope 1 starts at L2: atomics are done there."""
    cta = Cta(wave.cta)
    if scope < AGENT_SCOPE:
        if cta.l1 and scope == 0:
            return read_cached(machine, Cache(cta.l1), offset, nbytes)
        if cta.l2:
            return read_cached(machine, Cache(cta.l2), offset, nbytes)
    value = 0
    if scope <= AGENT_SCOPE and cta.device:
        value = read_cached(machine, Cache(cta.device), offset, nbytes)
    else:
        value = load_word(machine.memory + offset, nbytes)
        if cta.device and Cache(cta.device).dirty_count:
            value = dirty_over(Cache(cta.device), offset, nbytes, value)
    if cta.l2 and Cache(cta.l2).dirty_count:
        value = dirty_over(Cache(cta.l2), offset, nbytes, value)
    return value


def write_through(machine: Machine, wave: Wave, offset: int, nbytes: int, value: int, scope: int) -> None:
    """A store that takes effect: it stops, dirty, in the first cache at or beyond its scope (L1 never), or reaches
    memory."""
    cta = Cta(wave.cta)
    if cta.l1:
        write_cache(Cache(cta.l1), offset, nbytes, value, 0)
    if cta.l2:
        write_cache(Cache(cta.l2), offset, nbytes, value, scope < AGENT_SCOPE)
        if scope < AGENT_SCOPE:
            return
    if cta.device:
        write_cache(Cache(cta.device), offset, nbytes, value, scope <= AGENT_SCOPE)
        if scope <= AGENT_SCOPE:
            return
    store_word(machine.memory + offset, value, nbytes)


def write_back_line(machine: Machine, cache: Cache, line: int) -> None:
    """Hand a line's dirty bytes outwards."""
    store8(cache.flags + line, load8(cache.flags + line) & ~LISTED_DIRTY)
    target = Cache(cache.parent).data if cache.parent else machine.memory
    for half in range(2):
        mask = load64(cache.dirty + 16 * line + 8 * half)
        start = line * LINE + 64 * half
        if mask and cache.parent:
            make_dirty(Cache(cache.parent), start, mask)
        store64(cache.dirty + 16 * line + 8 * half, 0)
        while mask:
            i = lowest_bit(mask)
            mask = mask & (mask - 1)
            store8(target + start + i, load8(cache.data + start + i))


def write_back(machine: Machine, cache: Cache) -> None:
    """All dirty bytes outwards."""
    for i in range(cache.dirty_count):
        write_back_line(machine, cache, load64(cache.dirty_list + 8 * i))
    cache.dirty_count = 0


def drop_lines(cache: Cache) -> None:
    """Forget the clean lines; dirty bytes stay."""
    for i in range(cache.filled_count):
        line = load64(cache.filled + 8 * i)
        store8(cache.flags + line, load8(cache.flags + line) & ~VALID)
    cache.filled_count = 0


def release_caches(machine: Machine, cta: Cta, scope: int) -> None:
    """What a release fence writes back (buffer_wbl2)."""
    if cta.l2 and scope >= AGENT_SCOPE:
        write_back(machine, Cache(cta.l2))
    if cta.device and scope > AGENT_SCOPE:
        write_back(machine, Cache(cta.device))


def acquire_caches(cta: Cta, scope: int) -> None:
    """What an acquire fence invalidates (buffer_inv)."""
    if scope >= AGENT_SCOPE:
        if cta.l1:
            drop_lines(Cache(cta.l1))
        if cta.l2:
            drop_lines(Cache(cta.l2))
    if scope > AGENT_SCOPE and cta.device:
        drop_lines(Cache(cta.device))


def reset_caches(machine: Machine, unused: int) -> None:
    """Empty all caches, dirty bytes included, for another run."""
    for i in range(machine.cache_total):
        cache = Cache(load64(machine.all_caches + 8 * i))
        for j in range(cache.dirty_count):
            line = load64(cache.dirty_list + 8 * j)
            store8(cache.flags + line, 0)
            store64(cache.dirty + 16 * line, 0)
            store64(cache.dirty + 16 * line + 8, 0)
        cache.dirty_count = 0
        drop_lines(cache)
