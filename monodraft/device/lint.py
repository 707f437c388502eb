"""What can go wrong after the stage that the executor runs: LLVM deletes a poll loop, a drain is not there.

Works on assembly text alone, of our kernels or of anybody's. Our helpers leave two marks in it (comments, no
instruction): `; wait` before the first loads of a bounded wait and `; flag` before the store of a flag.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from monodraft.device.isa import Kernel, parse

WAIT_MARK = "wait"
FLAG_MARK = "flag"
CLOCKS = ("s_memrealtime", "s_memtime")


@dataclass(frozen=True)
class Finding:
    """One thing wrong: `kernel`, `rule` (below), the number of the `instruction` in the kernel, and its text.

    poll-gone: after a `; wait` there is no loop with a coherent load in every round: LLVM deleted or emptied it.
    poll-stale: a loop that reads the clock or sleeps has no coherent load in it.
    poll-unbounded: the loop of a `; wait` never reads the clock.
    flag-undrained: a flag is stored while a store of this wave may be outstanding, or while one was at the last
        barrier, or without a barrier since the last store. Flags: the store after a `; flag`; elsewhere any coherent
        store of one dword that a barrier precedes.
    """

    kernel: str
    rule: str
    instruction: int
    text: str

    def __str__(self) -> str:
        return f"{self.kernel}: {self.rule} at instruction {self.instruction}: {self.text}"


def lint(isa: str) -> list[Finding]:
    """Every finding in an assembly text; empty when all is well. Raises ValueError for a text without a kernel."""
    return [finding for kernel in parse(isa) for rule in (_polls, _stale_loops, _flags) for finding in rule(kernel)]


def _finding(kernel: Kernel, rule: str, index: int) -> Finding:
    return Finding(kernel.name, rule, index, str(kernel.instructions[index]))


def _marks(kernel: Kernel, mark: str) -> list[int]:
    return [i for i, each in enumerate(kernel.instructions) if each.mark == mark]


def _polls(kernel: Kernel) -> Iterator[Finding]:
    marks = frozenset(_marks(kernel, WAIT_MARK))
    # Rounds that look at the clock load the health word too; the wait's own load must be in the others as well.
    short_loops = kernel.loops(without=marks | _clocks(kernel))
    loops = kernel.loops(without=marks)
    for mark in sorted(marks):
        after = kernel.reachable(mark, marks)
        polls = [loop for loop in loops if loop <= after and _polls_every_round(kernel, loop, short_loops)]
        if not polls:
            yield _finding(kernel, "poll-gone", mark)
        elif not any(loop & _clocks(kernel) for loop in polls):
            yield _finding(kernel, "poll-unbounded", mark)


def _polls_every_round(kernel: Kernel, loop: frozenset[int], short_loops: list[frozenset[int]]) -> bool:
    inside = [short for short in short_loops if short <= loop]
    return all(_has_coherent_load(kernel, each) for each in [loop, *inside])


def _stale_loops(kernel: Kernel) -> Iterator[Finding]:
    for loop in kernel.loops():
        waits = [i for i in loop if kernel.instructions[i].mnemonic in (*CLOCKS, "s_sleep")]
        if waits and not _has_coherent_load(kernel, loop):
            yield _finding(kernel, "poll-stale", min(waits))


def _has_coherent_load(kernel: Kernel, loop: frozenset[int]) -> bool:
    return any(kernel.instructions[i].is_load and kernel.instructions[i].is_coherent for i in loop)


def _clocks(kernel: Kernel) -> frozenset[int]:
    return frozenset(i for i, each in enumerate(kernel.instructions) if each.mnemonic in CLOCKS)


@dataclass(frozen=True)
class _Stores:
    """What may be true at an instruction: a store of this wave is `undrained`; one was when the wave `crossed` its last
    barrier; one was issued since (`fresh`); there was a `barrier` at all; a `; flag` comes `next`."""

    undrained: bool = False
    crossed: bool = False
    fresh: bool = False
    barrier: bool = False
    flag_next: bool = False

    def join(self, other: _Stores) -> _Stores:
        return _Stores(*(a or b for a, b in zip(self.values, other.values, strict=True)))

    @property
    def values(self) -> tuple[bool, ...]:
        return (self.undrained, self.crossed, self.fresh, self.barrier, self.flag_next)


def _flags(kernel: Kernel) -> Iterator[Finding]:
    before = _stores_before(kernel)
    for index, state in sorted(before.items()):
        each = kernel.instructions[index]
        if not each.is_store:
            continue
        if state.flag_next:
            wrong = state.undrained or state.crossed or state.fresh
        else:
            one_dword = each.mnemonic.endswith("_dword") and each.is_coherent
            wrong = one_dword and state.barrier and state.crossed
        if wrong:
            yield _finding(kernel, "flag-undrained", index)


def _stores_before(kernel: Kernel) -> dict[int, _Stores]:
    """The state before every reachable instruction, joined over all paths."""
    before = {0: _Stores()}
    todo = [0]
    while todo:
        index = todo.pop()
        after = _step(kernel, index, before[index])
        for following in kernel.successors[index]:
            joined = before[following].join(after) if following in before else after
            if before.get(following) != joined:
                before[following] = joined
                todo.append(following)
    return before


def _step(kernel: Kernel, index: int, state: _Stores) -> _Stores:
    each = kernel.instructions[index]
    if each.mark == FLAG_MARK:
        return _Stores(state.undrained, state.crossed, state.fresh, state.barrier, True)
    if each.is_store and state.flag_next:  # the flag itself is not data
        return _Stores(state.undrained, state.crossed, state.fresh, state.barrier)
    if each.is_store:
        return _Stores(True, state.crossed, True, state.barrier)
    if each.drains:
        return _Stores(False, state.crossed, state.fresh, state.barrier, state.flag_next)
    if each.mnemonic == "s_barrier":
        return _Stores(state.undrained, state.undrained, False, True, state.flag_next)
    return state
