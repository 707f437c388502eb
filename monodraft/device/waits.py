"""Hand-offs between CTAs and between ranks, and the bound on every wait.

A *tagged pair* is 8 bytes, (value word, tag word), written by one store, so value and tag arrive together. A tag is the
launch's epoch (`health.next_tag`): never 0, another one in every launch that may find old pairs in the memory. A region
must not be written with a later tag before its readers have taken the earlier one: that is the plan's duty.

Every wait has a bound (`Bound`): an absolute deadline on the 100 MHz clock, and a health word that all CTAs of all
ranks share. A wait that expires records itself there and returns; waits that see the record give up. The kernel then
runs on to its end with values that nobody may use, so every CTA leaves within `CHECK_EVERY` rounds of each of its
waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import flydsl.expr as fx
from flydsl.expr import gpu

from monodraft.device import flydsl_names as fly
from monodraft.device.checks import require_among, require_range, require_type, require_uniform
from monodraft.device.flydsl_names import traced
from monodraft.device.geometry import Geometry
from monodraft.device.lint import FLAG_MARK, WAIT_MARK
from monodraft.device.memory import CM_DEV, CM_SYS, load_words, require_coherent, resource, st
from monodraft.device.numbers import opaque

CHECK_EVERY = 64
"""Failed rounds of a wait between two looks at the clock and the health word. A power of two."""
DONE, EXPIRED, ABANDONED = 0, 1, 2
"""What `_spin` returns as `failed`: all arrived; this wait timed out; it gave up on a failure reported elsewhere."""


@dataclass(frozen=True)
class Bound:
    """What bounds every wait of a launch.

    `health`: uniform Int64 address of the 8-byte health word, one for all ranks. `rank`: Int32 rank of this GPU, for
    the record. `deadline`: Int64 time on the 100 MHz clock of this GPU after which a wait has failed.
    """

    health: Any
    rank: Any
    deadline: Any

    @staticmethod
    def start(health: Any, rank: Any, ticks: Any) -> Bound:
        """The bound of a launch that may take `ticks` (Int64, 10 ns each) from now."""
        require_uniform("Bound.start", "health", health)
        require_type("Bound.start", "ticks", ticks, fx.Int64)
        return Bound(health, rank, clock() + ticks)


def clock() -> Any:
    """Int64 ticks of the 100 MHz clock that all CUs of a GPU share: `s_memrealtime`."""
    return fly.intrinsic(fx.Int64, "llvm.amdgcn.s.memrealtime")


@traced
def _spin(load_all: Callable[[Any], Any], pending: Callable[[Any], Any], dl: Any, health: Any) -> tuple[Any, Any]:
    """Re-issue `load_all` until `pending` clears in every lane of the wave; all lanes go round together.

    `load_all(rounds)` issues the loads of a round and returns their values (a list); it must pass its offsets through
    `opaque(.., rounds)`. `pending(values)` is a Boolean per lane. Every `CHECK_EVERY` rounds the clock is compared with
    `dl` and the health word is read, both before the round's loads, so that what arrived in time is never refused.
    Returns (values, failed): `DONE`, `EXPIRED` or `ABANDONED`, the same in all lanes; values of a failed wait are junk.
    A wait that succeeds at once reads neither the clock nor the health word.
    """
    _mark(WAIT_MARK)
    rounds = fx.Int32(0)
    failed = fx.Int32(DONE)
    values = load_all(rounds)
    fly.wait_vmcnt_zero()
    waiting = fly.ballot(pending(values)) != 0
    while waiting:
        verdict = fx.Int32(DONE)
        rounds = rounds + 1
        if rounds % CHECK_EVERY == 0:
            verdict = _verdict(dl, health)
        values = load_all(rounds)
        fly.wait_vmcnt_zero()
        still = fly.ballot(pending(values)) != 0
        failed = still.select(verdict, fx.Int32(DONE))
        waiting = still & (verdict == DONE)
    _mark()
    return values, failed


def _verdict(dl: Any, health: Any) -> Any:
    """ABANDONED if a failure is on record, else EXPIRED if the clock has reached `dl`, else DONE; uniform."""
    record = fly.first_lane(load_words(resource(health), fx.Int32(0), 4, CM_SYS)[0])
    late = clock() - dl >= 0
    return (record != 0).select(fx.Int32(ABANDONED), late.select(fx.Int32(EXPIRED), fx.Int32(DONE)))


def _mark(name: str = "") -> None:
    """Keep the compiler from moving or merging memory accesses across this point; leaves a comment, no instruction."""
    fly.asm_void(f"; {name}" if name else "", "~{memory}")


@traced
def fail(health: Any, rank: Any, site: Any) -> None:
    """Record a timed-out wait: the health word becomes [1, rank, site] unless a failure is already on record.

    The word is 8 bytes, written whole by one 64-bit compare-and-swap with 0 at system scope: bits 0-15 hold 1, bits
    16-31 `rank`, bits 32-63 `site` (`health.decode` reads it on the host). Later failures leave it as it is. Any active
    lane may call it.
    """
    require_uniform("fail", "health", health)
    word = (fx.Int64(site) << 32) | (fx.Int64(rank) << 16) | 1
    pointer = fx.inttoptr(fx.PointerType.get(fx.Int64.ir_type, fx.AddressSpace.Global), health)
    fx.atomic_cas(pointer, fx.Int64(0), word)


@traced
def _settle(failed: Any, bound: Bound, site: Any) -> None:
    """Report a wait that timed out."""
    if failed == EXPIRED:
        fail(bound.health, bound.rank, site)


def poll_pairs(base: Any, idx: Any, n: int, tag: Any, bound: Bound, site: Any, cm: int = CM_SYS) -> list[Any]:
    """Wait for the `n` (1, 2, 4 or 8) tagged pairs from pair `idx` (per lane) of `base` to carry `tag`.

    Returns their n value words (Int32). `tag`: Int32, uniform. `site` names the wait in the health word. The pairs must
    be aligned to min(8 n, 16) bytes; the loads of a round are 8 or 16 bytes wide and issued together.
    """
    return poll_rows([base], idx, n, tag, bound, site, cm)[0]


def poll_rows(
    bases: Sequence[Any],
    idx: Any,
    n: int,
    tag: Any,
    bound: Bound,
    site: Any,
    cm: int = CM_SYS,
    nbytes: Any = None,
) -> list[list[Any]]:
    """`poll_pairs` of every base in `bases` in one batch: one round trip a round, not one a base.

    Returns a list of n value words for each base. With `nbytes` (the same for every base), pairs past it are not waited
    for and read as 0. Refuses no base, more than 8, and what `poll_pairs` refuses.
    """
    require_among("poll_pairs", "n", n, (1, 2, 4, 8))
    require_range("poll_rows", "len(bases)", len(bases), 1, 8)
    require_site("poll_pairs", site)
    require_coherent("poll_pairs", cm)
    require_uniform("poll_pairs", "tag", tag, fx.Int32)
    for base in bases:
        require_uniform("poll_pairs", "base", base)
    regions = [resource(base, nbytes) for base in bases]
    offset = idx * 8
    wanted = None if nbytes is None else offset < nbytes

    def load_all(rounds: Any) -> list[Any]:
        start = opaque(offset, rounds)
        return [word for region in regions for word in load_words(region, start, 8 * n, cm)]

    def pending(words: Sequence[Any]) -> Any:
        late = _any(word != tag for word in words[1::2])
        return late if wanted is None else late & wanted

    words, failed = _spin(load_all, pending, bound.deadline, bound.health)
    _settle(failed, bound, site)
    values = words[0::2]
    return [values[n * b : n * b + n] for b in range(len(bases))]


@traced
def publish(base: Any, i: Any, tag: Any, cm: int = CM_DEV) -> None:
    """Drain the CTA's stores, then set flag `i` (Int32 words) of `base` to `tag`.

    Each wave waits for its own outstanding stores, then the CTA barrier, then one thread stores the flag: no store that
    any wave issued before can become visible after it. All threads of the CTA must call it. The data must have been
    stored with at least the policy `cm` of the flag.
    """
    require_coherent("publish", cm)
    require_uniform("publish", "base", base)
    require_uniform("publish", "tag", tag, fx.Int32)
    _mark()
    fly.wait_vmcnt_zero()
    gpu.barrier()
    if fx.thread_idx.x == 0:
        _mark(FLAG_MARK)
        st(base, i, tag, cm)


def wait_flags(geo: Geometry, base: Any, n: int, tag: Any, bound: Bound, site: Any, cm: int = CM_DEV) -> None:
    """Wait for flags 0 .. n-1 (Int32 words) of `base` to equal `tag`, one a thread, then a CTA barrier.

    After it, every thread of the CTA may read what the publishers stored before their flags, with policy `cm`. All
    threads of the CTA must call it. Refuses an `n` above `geo.flag_limit` (512 at most).
    """
    require_range("wait_flags", "n", n, 1, geo.flag_limit)
    require_site("wait_flags", site)
    require_coherent("wait_flags", cm)
    require_uniform("wait_flags", "base", base)
    require_uniform("wait_flags", "tag", tag, fx.Int32)
    region = resource(base, 4 * n)
    thread = fx.thread_idx.x

    def load_all(rounds: Any) -> list[Any]:
        return load_words(region, opaque(thread * 4, rounds), 4, cm)

    def pending(words: Sequence[Any]) -> Any:
        return (words[0] != tag) & (thread < n)

    _, failed = _spin(load_all, pending, bound.deadline, bound.health)
    _settle(failed, bound, site)
    gpu.barrier()


def require_site(helper: str, site: object) -> None:
    """Refuse a wait whose site is neither a number of 31 bits nor a uniform Int32 (a wait in a loop over layers)."""
    if isinstance(site, fx.Int32):
        require_uniform(helper, "site", site, fx.Int32)
    else:
        require_range(helper, "site", site, 0, 2**31 - 1)


def _any(conditions: Iterable[Any]) -> Any:
    """Boolean per lane: one of the `conditions` holds."""
    first, *others = conditions
    for condition in others:
        first = first | condition
    return first
