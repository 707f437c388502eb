"""Makes a failing schedule short: fewer decisions that differ from the plainest ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from monodraft.executor.schedule import Schedule

Fails = Callable[[Schedule], bool]


def shrink(fails: Fails, decisions: Sequence[int], attempts: int = 300) -> Schedule:
    """A replay that still fails, with as few decisions other than 0 as `attempts` runs find.

    `fails(schedule)` runs the kernels afresh and says whether they failed; `decisions` are those of the failing run
    (`error.decisions`, or `report.decisions` where only the result was wrong). 0 is the plainest choice everywhere: the
    next wave in turn, the shortest turn, loads sample at issue and stores wait. Raises ValueError if the decisions
    given do not fail.
    """
    if not fails(Schedule.replay(decisions)):
        raise ValueError("the decisions given do not fail when replayed")
    tries = _Tries(fails, attempts)
    kept = shorten(tries, list(decisions))
    kept = simplify(tries, kept)
    while kept and kept[-1] == 0:
        kept.pop()
    return Schedule.replay(kept)


class _Tries:
    def __init__(self, fails: Fails, left: int) -> None:
        self.fails = fails
        self.left = left

    def __call__(self, decisions: list[int]) -> bool:
        """Whether this still fails; False once the attempts are used up."""
        if self.left <= 0:
            return False
        self.left -= 1
        return self.fails(Schedule.replay(decisions))


def shorten(tries: _Tries, decisions: list[int]) -> list[int]:
    """Cut the tail: after the cut every choice is the first one."""
    step = len(decisions) // 2
    while step:
        if tries(decisions[:-step]):
            decisions = decisions[:-step]
            step = min(step, len(decisions) // 2)
        else:
            step //= 2
    return decisions


def simplify(tries: _Tries, decisions: list[int]) -> list[int]:
    """Set runs of decisions to 0, long runs first."""
    size = max(len(decisions) // 2, 1)
    while size:
        for start in range(0, len(decisions), size):
            part = decisions[start : start + size]
            if any(part):
                candidate = [*decisions[:start], *[0] * len(part), *decisions[start + size :]]
                if tries(candidate):
                    decisions = candidate
        size //= 2
    return decisions
