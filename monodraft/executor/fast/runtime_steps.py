"""Native runtime: which step of a wave runs next, for which lanes. Called by generated code between steps.

A wave has a lane mask for each step that waits for it, and a bit for each mask that is not empty. The lowest waiting
step runs next; see `layout.py`.
"""

from __future__ import annotations

from monodraft.executor.fast.records import DONE, YIELD, Machine, Wave
from monodraft.executor.fast.words import inline, load64, lowest_bit, store64


@inline
def count_step(machine: Machine, wave: Wave, step: int) -> None:
    """Count a step's operations, for the clock, the limits and the report."""
    machine.work += load64(wave.sizes + 8 * step)
    count = wave.counts + 8 * step
    store64(count, load64(count) + 1)


def pick_step(machine: Machine, wave: Wave) -> int:
    """Take the lowest waiting step: its number, its lanes in `wave.mask`. -1 if the turn is over or nothing waits."""
    machine.budget -= 1
    if machine.budget < 0:
        wave.event = YIELD
        return -1
    word = 0
    while word < wave.word_count and load64(wave.words + 8 * word) == 0:
        word += 1
    if word == wave.word_count:
        wave.event = DONE
        return -1
    bits = load64(wave.words + 8 * word)
    store64(wave.words + 8 * word, bits & (bits - 1))
    step = 64 * word + lowest_bit(bits)
    wave.mask = load64(wave.masks + 8 * step)
    store64(wave.masks + 8 * step, 0)
    count_step(machine, wave, step)
    return step


def pend_step(machine: Machine, wave: Wave, step: int, lanes: int) -> None:
    """Lanes that are to run a step."""
    if lanes == 0:
        return
    store64(wave.masks + 8 * step, load64(wave.masks + 8 * step) | lanes)
    word = wave.words + 8 * (step >> 6)
    store64(word, load64(word) | (1 << (step & 63)))


def next_step(machine: Machine, wave: Wave, step: int, lanes: int) -> int:
    """Whether lanes may go straight on to a step, the lowest that can be waiting; else they wait for it."""
    if machine.budget > 0 and load64(wave.masks + 8 * step) == 0:
        machine.budget -= 1
        count_step(machine, wave, step)
        return 1
    pend_step(machine, wave, step, lanes)
    return 0
