"""Native runtime: whose turn it is, barriers, the clock, memory events, and the end of what cannot go on.

The rules are those of the reference engine's `machine.py` and `policy.py`.
"""

from __future__ import annotations

from monodraft.executor.fast.records import (
    AT_BARRIER,
    BAD_BARRIER,
    BARRIER,
    DEADLOCK,
    DONE,
    ENDED,
    FAULTED,
    FINISHED,
    PAUSED,
    RUNNABLE,
    SPLIT_BARRIER,
    STUCK,
    WORK_LIMIT,
    Cache,
    Cta,
    Event,
    Machine,
    Wave,
)
from monodraft.executor.fast.runtime_caches import write_back
from monodraft.executor.fast.runtime_checks import raise_fault
from monodraft.executor.fast.runtime_pending import (
    commit_all,
    commit_some,
    complete_stores,
    draw,
    draw_below,
    forget_stores,
    sample_some,
    store_at,
)
from monodraft.executor.fast.words import address_of, below, call2, load64, size_of, store64

SPINS = 12
"""Turns without progress after which a wave counts as spinning."""

BLIND_ROUNDS = 3000
"""Idle rounds without a clock read after which nobody is taken to wait with a bound."""

MOST_WEIGHED = 16
"""Beyond so many live waves, drawing by rejection is cheaper than adding up their speeds."""

REDRAW = 12
"""A wave's speed is drawn anew after one in so many of its turns."""

NEAR = 16
"""Waves looked at for a memory event."""

WHOLE = 1 << 32
TRACE_BARRIER, TRACE_POLL, TRACE_CTA, TRACE_STAGE, TRACE_LAST = 1, 2, 3, 4, 5


def reach_barrier(machine: Machine, wave: Wave, place: int, mask: int) -> None:
    """Every lane that has not ended must come to a barrier together."""
    wave.place = place
    wave.barriers += 1
    machine.spent += machine.barrier_cost
    others = 0
    for i in range(wave.step_count):
        others = others | load64(wave.masks + 8 * i)
    if others:
        raise_fault(machine, wave, SPLIT_BARRIER, place, 0, others, 0)


def sleep(machine: Machine, wave: Wave, count: int) -> None:
    """s_sleep takes time."""
    machine.spent += count * machine.sleep_cost
    machine.polls += 1


def read_clock(machine: Machine, wave: Wave) -> int:
    """The 100 MHz clock; a wave that reads it can end a wait by itself."""
    machine.clock_reads += 1
    machine.polls += 1
    return machine.clock


def wave_at(machine: Machine, number: int) -> Wave:
    """A wave by its number."""
    return Wave(load64(machine.waves + 8 * number))


def note(machine: Machine, value: int) -> None:
    """Add a decision to the digest of the run."""
    machine.digest = (machine.digest ^ value) * 0x100000001B3


def add_event(machine: Machine, kind: int, wave: Wave, start: int, place: int) -> None:
    """Record a stretch of time that ends now."""
    if machine.trace_count < machine.trace_room:
        event = Event(machine.trace + machine.trace_count * size_of(Event))
        event.kind = kind
        event.wave = wave.number
        event.place = place
        event.start = start
        event.end = machine.clock
    machine.trace_count += 1


# -- who runs


def draw_speed(machine: Machine, wave: Wave) -> None:
    """Speeds are log-uniform; victims keep the least."""
    if wave.victim == 0:
        wave.speed = load64(machine.speeds + 8 * draw_below(machine, machine.speed_range))


def live_wave(machine: Machine, position: int) -> Wave:
    """A wave by its place among the live ones."""
    return wave_at(machine, load64(machine.live + 8 * position))


def draw_by_weight(machine: Machine) -> int:
    """A place among the live waves, by speed."""
    total = 0
    for position in range(machine.live_count):
        total += live_wave(machine, position).speed
    ticket = draw_below(machine, total)
    for position in range(machine.live_count):
        speed = live_wave(machine, position).speed
        if ticket < speed:
            return position
        ticket -= speed
    return 0


def draw_by_rejection(machine: Machine) -> int:
    """The same for many waves; a rejected one gains a little, so that it ends."""
    while 1:
        position = draw_below(machine, machine.live_count)
        wave = live_wave(machine, position)
        if (draw(machine) >> 32) < wave.speed:
            return position
        wave.speed += (wave.speed >> 6) + 1
    return 0


def next_position(machine: Machine) -> int:
    """The place among the live waves of the one that goes on."""
    if machine.seeded == 0:
        machine.position += 1
        if machine.position >= machine.live_count:
            machine.position = 0
        return machine.position
    position = draw_by_weight(machine) if machine.live_count <= MOST_WEIGHED else draw_by_rejection(machine)
    if draw_below(machine, REDRAW) == 0:
        draw_speed(machine, live_wave(machine, position))
    note(machine, position)
    return position


def remove_live(machine: Machine, position: int) -> None:
    """Take a wave out of the live ones; the last one takes its place."""
    machine.live_count -= 1
    store64(machine.live + 8 * position, load64(machine.live + 8 * machine.live_count))


def add_live(machine: Machine, wave: Wave) -> None:
    """A wave can run."""
    wave.state = RUNNABLE
    store64(machine.live + 8 * machine.live_count, wave.number)
    machine.live_count += 1


def start_ctas(machine: Machine) -> None:
    """Start CTAs in order as long as the next one fits."""
    while machine.started < machine.cta_count:
        cta = Cta(machine.ctas + machine.started * size_of(Cta))
        busy = machine.busy + 8 * cta.rank
        if load64(busy) + cta.share > WHOLE:
            return
        store64(busy, load64(busy) + cta.share)
        machine.started += 1
        cta.started_at = machine.clock
        cta.stage_at = machine.clock
        for i in range(cta.wave_count):
            add_live(machine, wave_at(machine, cta.first_wave + i))


# -- memory events


def memory_event(machine: Machine) -> None:
    """A pending store of some wave becomes visible in part, or a late load samples in part."""
    start = draw_below(machine, machine.wave_count)
    for i in range(NEAR):
        number = (start + i) % machine.wave_count
        wave = wave_at(machine, number)
        if wave.stores or wave.loads:
            if wave.loads and (wave.stores == 0 or draw(machine) & 1):
                sample_some(machine, wave)
            else:
                commit_some(machine, wave)
            note(machine, number)
            return


def memory_events(machine: Machine, points: int) -> None:
    """One chance of an event for every scheduling point that was passed."""
    for _ in range(points):
        if (draw(machine) & 0xFFFF) < machine.commit_rate:
            memory_event(machine)


# -- turns


def advance_clock(machine: Machine) -> None:
    """The clock goes on by the work of the turn, shared among the waves that run at the same time."""
    cost = machine.spent + (machine.work - machine.counted_work) * machine.operation_cost
    machine.counted_work = machine.work
    machine.spent = 0
    running = machine.live_count
    machine.clock_part += cost // running
    machine.clock += machine.clock_part >> 16
    machine.clock_part = machine.clock_part & 0xFFFF


def mark_progress(machine: Machine) -> None:
    """Something happened that others may see: nobody is idle."""
    machine.seen_progress = machine.progress
    machine.spin_epoch += 1
    machine.spinning = 0
    machine.spins_needed = SPINS
    machine.clock_reads = 0
    machine.blind = 0
    machine.next_jump = 100
    machine.jumped = 0


def arrive(machine: Machine, position: int, wave: Wave) -> int:
    """A wave comes to the barrier of its CTA."""
    remove_live(machine, position)
    end_spin(machine, wave)
    wave.state = AT_BARRIER
    wave.stopped_at = machine.clock
    cta = Cta(wave.cta)
    cta.waiting += 1
    mark_progress(machine)
    return release_barrier(machine, cta)


def release_barrier(machine: Machine, cta: Cta) -> int:
    """When all waves that still run are here they go on; one that ended without coming is a mistake."""
    if cta.waiting == 0 or cta.waiting < cta.running:
        return 0
    if cta.running < cta.wave_count:
        machine.fault_wave = cta.first_wave
        return 1
    cta.waiting = 0
    if machine.trace:
        first = wave_at(machine, cta.first_wave)
        add_event(machine, TRACE_STAGE, first, cta.stage_at, first.place)
        cta.stage_at = machine.clock
    for i in range(cta.wave_count):
        wave = wave_at(machine, cta.first_wave + i)
        if machine.trace:
            add_event(machine, TRACE_BARRIER, wave, wave.stopped_at, wave.place)
        add_live(machine, wave)
    return 0


def end_wave(machine: Machine, position: int, wave: Wave) -> int:
    """A wave ends; its stores may stay pending until the end of the kernel."""
    remove_live(machine, position)
    end_spin(machine, wave)
    wave.state = ENDED
    wave.loads = 0
    mark_progress(machine)
    cta = Cta(wave.cta)
    cta.running -= 1
    if cta.running:
        return release_barrier(machine, cta)
    if machine.trace:
        add_event(machine, TRACE_CTA, wave, cta.started_at, wave.place)
        add_event(machine, TRACE_LAST, wave, cta.stage_at, wave.place)
    busy = machine.busy + 8 * cta.rank
    store64(busy, load64(busy) - cta.share)
    left = machine.left + 8 * cta.launch
    store64(left, load64(left) - 1)
    if load64(left) == 0:
        finish_launch(machine, cta.launch, cta.rank)
    start_ctas(machine)
    return 0


def finish_launch(machine: Machine, launch: int, rank: int) -> None:
    """The end of a kernel: all its stores are done, and everything that its rank wrote reaches memory."""
    for number in range(machine.wave_count):
        wave = wave_at(machine, number)
        if wave.stores and Cta(wave.cta).launch == launch:
            complete_stores(machine, wave, 0, 0)
            wave.stores = 0
    for i in range(machine.cache_count):
        cache = Cache(load64(machine.all_caches + 8 * i))
        if cache.rank == rank:
            write_back(machine, cache)


def end_spin(machine: Machine, wave: Wave) -> None:
    """A wave that polled for a while does something else, or something happened meanwhile."""
    if machine.trace and wave.spins >= SPINS:
        add_event(machine, TRACE_POLL, wave, wave.stopped_at, wave.spin_place)
    wave.spins = 0
    wave.stopped_at = machine.clock
    wave.spin_place = wave.place


def note_spin(machine: Machine, wave: Wave) -> int:
    """After a turn without an event that others see: does everybody only repeat itself? Returns an outcome or 0."""
    if machine.progress != machine.seen_progress:
        end_spin(machine, wave)
        mark_progress(machine)
        return 0
    if machine.polls == machine.seen_polls:
        # It computes: neither progress that others see nor a poll.
        return 0
    machine.seen_polls = machine.polls
    if wave.spin_epoch != machine.spin_epoch:
        end_spin(machine, wave)
        wave.spin_epoch = machine.spin_epoch
    wave.spins += 1
    if wave.spins == machine.spins_needed:
        machine.spinning += 1
        if machine.spinning >= machine.live_count:
            return idle(machine)
    return 0


def idle(machine: Machine) -> int:
    """Every wave that can run only polls. Let a pending store arrive; else let time pass; else nobody can go on."""
    machine.spinning = 0
    machine.spin_epoch += 1
    machine.spins_needed = 2
    for number in range(machine.wave_count):
        wave = wave_at(machine, number)
        if wave.stores:
            commit_all(machine, wave, store_at(wave, draw_below(machine, wave.stores)))
            forget_stores(wave)
            return 0
    if machine.clock_reads == 0:
        # A bounded wait may look at the clock only now and then.
        machine.blind += 1
        return DEADLOCK if machine.blind > BLIND_ROUNDS else 0
    machine.clock += machine.next_jump
    machine.jumped += machine.next_jump
    machine.next_jump = machine.next_jump * 2
    if machine.next_jump > machine.jump_limit:
        machine.next_jump = machine.jump_limit
    if machine.jumped > machine.idle_limit:
        return STUCK
    return 0


def run_machine(machine: Machine, unused: int) -> int:
    """Run until all waves have ended or something is wrong. Returns the outcome."""
    start_ctas(machine)
    while machine.live_count:
        machine.turns += 1
        position = next_position(machine)
        wave = wave_at(machine, load64(machine.live + 8 * position))
        slice_ = machine.slice_limit
        if machine.seeded:
            slice_ = 1 + draw_below(machine, slice_)
        machine.budget = slice_
        call2(wave.step, address_of(wave), address_of(machine))
        if machine.fault_kind:
            return FAULTED
        advance_clock(machine)
        if machine.commit_rate:
            memory_events(machine, slice_ - (machine.budget if machine.budget > 0 else 0))
        outcome = 0
        if wave.event == DONE:
            if end_wave(machine, position, wave):
                return BAD_BARRIER
        elif wave.event == BARRIER:
            if arrive(machine, position, wave):
                return BAD_BARRIER
        else:
            outcome = note_spin(machine, wave)
        if outcome:
            return outcome
        if below(machine.work_limit, machine.work):
            return WORK_LIMIT
        if machine.turns == machine.pause_at:
            return PAUSED
    if machine.started < machine.cta_count:
        return DEADLOCK
    for i in range(machine.cta_count):
        if Cta(machine.ctas + i * size_of(Cta)).waiting:
            return DEADLOCK
    return FINISHED
