"""Native runtime: what ends the time of pending accesses: waits, fences, cache operations."""

from __future__ import annotations

from monodraft.executor.fast.records import AGENT_SCOPE, RELEASE, Cta, Machine, Wave
from monodraft.executor.fast.runtime_caches import acquire_caches, release_caches
from monodraft.executor.fast.runtime_pending import (
    LDS_FLAG,
    complete_loads,
    complete_loads_until,
    complete_stores,
)


def release(machine: Machine, wave: Wave, scope: int) -> None:
    """Earlier LDS operations are done; beyond the CTA, vector memory too, and caches written back to the scope."""
    complete_stores(machine, wave, 0, LDS_FLAG)
    if scope >= AGENT_SCOPE:
        complete_loads(machine, wave, -1)
        complete_stores(machine, wave, 0, 0)
        release_caches(machine, Cta(wave.cta), scope)


def fence(machine: Machine, wave: Wave, ordering: int, scope: int) -> None:
    """A fence within the CTA waits for LDS only: its waves share one L1."""
    if ordering >= RELEASE:
        release(machine, wave, scope)
    if ordering != RELEASE and scope >= AGENT_SCOPE:
        complete_loads(machine, wave, -1)
        acquire_caches(Cta(wave.cta), scope)


def cache_operation(machine: Machine, wave: Wave, ordering: int, scope: int) -> None:
    """buffer_wbl2 and buffer_inv as assembly: what fences of that scope do."""
    fence(machine, wave, ordering, scope)


def wait_count(machine: Machine, wave: Wave, vector: int, local: int) -> None:
    """s_waitcnt: all but the newest `vector` vector memory operations are done (63: no wait), and unless it is 15 all
    but `local` of LDS, which counts as 0."""
    if local < 15:
        complete_stores(machine, wave, 0, LDS_FLAG)
    if vector < 63:
        complete_loads_until(machine, wave, wave.issued - vector)
        complete_stores(machine, wave, vector, 0)


def wait_load(machine: Machine, wave: Wave, place: int) -> None:
    """The first use of a load's value: it, and the loads before it, have sampled memory."""
    if wave.loads:
        complete_loads(machine, wave, place)
