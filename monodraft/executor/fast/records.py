"""The records that generated code, the native runtime and the host share. Every field is one 64-bit word."""

from __future__ import annotations

from monodraft.executor.fast.words import Struct

# What a wave's step function returned for (Wave.event).
YIELD, BARRIER, POLL, DONE, FAULT = 0, 1, 2, 3, 4

# Wave.state.
RUNNABLE, AT_BARRIER, ENDED, NOT_STARTED = 0, 1, 2, 3

# What `run_machine` returned for (Machine.outcome).
FINISHED, FAULTED, DEADLOCK, STUCK, WORK_LIMIT, BAD_BARRIER, PAUSED = 0, 1, 2, 3, 4, 5, 6

# Machine.fault_kind.
OUT_OF_BOUNDS, MISALIGNED, LDS_BOUNDS, UNINITIALISED, LDS_UNINITIALISED, SPLIT_BARRIER = 1, 2, 3, 4, 5, 6

# Scopes of an access: which caches it may be served from, and where a store must reach. Within a CTA nothing is told
# apart: its waves share one L1.
WAVE_SCOPE, AGENT_SCOPE, SYSTEM_SCOPE = 0, 2, 3
CTA_SCOPE = WAVE_SCOPE

# Orderings, as LLVM numbers them.
MONOTONIC, ACQUIRE, RELEASE, ACQUIRE_RELEASE, SEQUENTIAL = 2, 4, 5, 6, 7

PENDING = 32
"""Stores, and loads, that a wave can have under way; issuing more completes the oldest."""

PIECES = 4
"""Pieces of a store or load: 16 bytes in dwords at most."""


class Machine(Struct):
    """The whole machine of one run."""

    # Read by generated code at every step.
    budget: int  # steps left in this turn
    clock: int  # 100 MHz ticks
    low: int  # of the access under way: lowest and highest address, and all of them or-ed
    high: int
    low_bits: int
    # Memory.
    arena: int  # host address of the arena minus its device address
    memory: int  # host address of the arena
    base: int  # device address of the arena
    regions: int  # Region records in order of address
    region_count: int
    # Random numbers.
    random0: int
    random1: int
    # The memory model.
    late_stores: int
    late_loads: int
    late_lds: int
    torn: int
    caches: int  # whether any cache is modelled
    plain_memory: int  # no caches and no checks of what was written
    check_written: int  # whether LDS reads of bytes that nobody wrote are errors
    watch_regions: int  # the same for regions that started as poison
    mark_regions: int  # whether there are such regions, so that stores mark what they write
    count_regions: int  # whether some region counts its loads
    counted: int  # loads counted so far
    commit_rate: int  # chance of a memory event at each turn, in 2^-16
    # Schedule.
    seeded: int
    slice_limit: int  # most steps of a turn
    speeds: int  # SPEEDS speeds over five decades, from 1 down, in 2^-32
    speed_range: int  # how many of them this run draws from
    delayed_regions: int  # whether stores to some region are delayed
    waves: int  # addresses of the Wave records
    wave_count: int
    live: int  # numbers of the waves that can run
    live_count: int
    position: int  # round robin: where in `live`
    ctas: int  # Cta records, in the order of dispatch
    cta_count: int
    started: int  # CTAs started so far
    busy: int  # occupancy of each rank, in 2^-32
    left: int  # CTAs not ended, of each launch
    all_caches: int  # addresses of the Cache records of XCDs, then of ranks
    cache_count: int
    cache_total: int  # with those of CTAs, which come last
    # Progress and limits.
    progress: int  # counts what is more than polling
    seen_progress: int
    polls: int  # loads of what was loaded lately, clock reads, sleeps
    seen_polls: int
    spin_epoch: int  # counts the times that progress was seen
    spinning: int  # waves that only polled since, often enough
    spins_needed: int
    clock_reads: int
    jumped: int  # ticks that the clock jumped while only polls happened
    next_jump: int
    jump_limit: int  # largest jump
    blind: int  # idle rounds since anybody read the clock
    idle_limit: int  # most ticks jumped in all
    work: int  # operations executed, in waves
    work_limit: int
    clock_part: int  # fraction of a tick, in 2^-16
    operation_cost: int  # ticks an operation, in 2^-16
    load_cost: int
    coherent_load_cost: int
    store_cost: int
    barrier_cost: int
    sleep_cost: int
    spent: int  # cost of memory, barriers and sleep in this turn
    counted_work: int  # work that the clock has counted
    turns: int
    pause_at: int  # turns after which the host is let in
    # Outcome.
    fault_kind: int
    fault_wave: int
    fault_place: int
    fault_address: int
    fault_lanes: int
    fault_bytes: int
    # Bytes by kind and scope: loads by scope 0-3, stores by scope 0-3, LDS loads, LDS stores, atomics.
    traffic: int
    # The event trace: a ring of Event records, 0 none.
    trace: int
    trace_count: int
    trace_room: int
    # A digest of all scheduling and memory decisions: equal digests mean equal runs.
    digest: int


class Wave(Struct):
    """One wave. Its pending masks and value slots follow the record; offsets are in the generated code."""

    event: int
    masks: int  # address of the pending lane masks, one per step
    mask: int  # lanes of the step that was picked
    counts: int  # address of the program's step counters
    sizes: int  # address of the operations in each step
    arguments: int  # address of the kernel's argument words
    threads: int  # address of the lanes' thread indices, i32 [3][64]
    cta_x: int
    cta_y: int
    cta_z: int
    dims: int  # address of grid x, y, z, block x, y, z
    lds: int  # host address of the CTA's LDS
    lds_bytes: int
    number: int
    rank: int
    cta: int  # address of the Cta record
    step: int  # address of the step function
    state: int
    place: int  # place of the latest memory operation, barrier or wait
    speed: int  # chance of a turn, in 2^-32
    victim: int
    issued: int  # vector memory operations so far
    stores: int  # pending stores
    store_head: int  # ring of StoreEntry
    store_ring: int
    loads: int  # pending loads
    load_head: int
    load_ring: int
    seen: int  # address of the loads seen lately
    seen_next: int
    words: int  # address of the pending bits of its steps
    word_count: int
    step_count: int
    delayed_place: int  # stores of this place are delayed as long as allowed, -1 none
    spins: int  # turns in this spin epoch
    spin_epoch: int
    spin_place: int
    stopped_at: int  # clock when it reached a barrier or began to spin
    barriers: int


class Cta(Struct):
    """One workgroup."""

    rank: int
    number: int
    first_wave: int
    wave_count: int
    waiting: int  # waves at the barrier
    running: int  # waves not ended
    launch: int
    share: int  # of its GPU, in 2^-32
    l1: int  # Cache records of its caches, 0 where not modelled
    l2: int
    device: int
    ended_at: int
    started_at: int
    barriers: int
    stage_at: int


class Region(Struct):
    """An array in device memory, by device addresses."""

    start: int
    end: int
    uncached: int
    written: int  # host address of one byte per byte, 0 where all is initialised
    delayed: int  # stores to it are delayed as long as allowed
    loads: int  # host address of a 32-bit count of loads a byte, 0 where nobody counts
    stamps: int  # host address of the latest load's number a byte, 64 bits


class StoreEntry(Struct):
    """A store that is not yet visible everywhere. Followed by 64 addresses and PIECES x 64 data words."""

    issued: int
    place: int
    flags: int  # scope, bit 8 LDS
    piece_bytes: int
    pieces: int
    low: int  # lowest and past the highest address
    high: int
    delayed: int
    mask0: int  # lanes whose piece is still pending
    mask1: int
    mask2: int
    mask3: int


class LoadEntry(Struct):
    """A load that has not sampled all its lanes. Followed by 64 addresses."""

    issued: int
    place: int
    flags: int
    target: int  # address of the value's slot
    element_bytes: int
    elements: int
    per_piece: int  # elements in a piece
    pieces: int
    low: int
    high: int
    mask0: int
    mask1: int
    mask2: int
    mask3: int


class Cache(Struct):
    """A sparse copy of the arena in lines of 128 bytes."""

    data: int
    dirty: int  # a bit for each byte
    flags: int  # a byte for each line: valid, on the list of dirty lines
    filled: int  # the valid lines
    filled_count: int
    dirty_list: int
    dirty_count: int
    parent: int  # the next cache outwards, 0: memory
    rank: int


class Event(Struct):
    """A trace event."""

    kind: int
    wave: int
    place: int
    start: int
    end: int
