"""The health word on the host: which rank failed first, in which wait. And the tags that hand-offs carry.

Plain Python; the device side is `waits.fail`.
"""

from __future__ import annotations

from dataclasses import dataclass

HEALTHY = 0
"""The health word before a launch; the host writes it to reset a failed group."""
LAST_TAG = 2**32 - 1


@dataclass(frozen=True)
class Failure:
    """The first wait that timed out: `rank` whose CTA was waiting, `site` number of the wait in the kernel."""

    rank: int
    site: int


def decode(word: int) -> Failure | None:
    """The record in a 64-bit health word (bits 0-15 hold 1, 16-31 the rank, 32-63 the site); None while healthy.

    Raises ValueError for a word that `fail` cannot have written.
    """
    word &= 2**64 - 1
    if word == HEALTHY:
        return None
    if word & 0xFFFF != 1:
        raise ValueError(f"health word: found {word:#018x}, wanted 0 or a record whose low 16 bits are 1")
    return Failure(rank=word >> 16 & 0xFFFF, site=word >> 32)


MARK_BITS = 5
"""Bits of a launch's mark."""


def launch_tag(epoch: int, mark: int) -> int:
    """The tag of launch number `epoch` (1 .. 2^32 - 1) among launches that agree about `mark` (0 .. 31).

    It is `epoch`, moved on by mark x 2^27 in the cycle 1 .. 2^32 - 1: ranks that disagree about the mark wait for tags
    that do not come, and tags of one mark repeat as seldom as epochs do. A mark of 0 gives the epoch itself.
    """
    moved = epoch + (mark << 32 - MARK_BITS)
    return (moved & LAST_TAG) + (moved >> 32)


def epoch_and_mark(tag: int, near: int) -> tuple[int, int]:
    """The epoch and mark of a tag, if the epoch is within 2^26 of epoch `near`."""
    step, cycle = 1 << 32 - MARK_BITS, LAST_TAG
    ahead = (tag - near) % cycle
    mark = (ahead + step // 2) // step % (1 << MARK_BITS)
    return (tag - 1 - mark * step) % cycle + 1, mark


def next_tag(tag: int) -> int:
    """The epoch after `tag` (0 before the first launch): counts 1 .. 2^32 - 1 and skips 0 at the wrap.

    Zeroed memory therefore never looks tagged. A stale pair can be taken for a new one only if it was left 2^32 - 1
    launches earlier.
    """
    return 1 if tag >= LAST_TAG else tag + 1
