"""Native runtime: read-modify-write operations, lane by lane, lowest first."""

from __future__ import annotations

from monodraft.executor.fast.records import ACQUIRE, RELEASE, Machine, Wave
from monodraft.executor.fast.runtime_access import note_load
from monodraft.executor.fast.runtime_caches import load_word, store_word
from monodraft.executor.fast.runtime_checks import lds_written, look_at_addresses, within_lds, within_regions
from monodraft.executor.fast.runtime_pending import (
    LDS_FLAG,
    ORDERING_SHIFT,
    SCOPE_SHIFT,
    seen_value,
    settle_own_loads,
    settle_own_stores,
    visible,
)
from monodraft.executor.fast.runtime_waits import fence, release
from monodraft.executor.fast.words import (
    add_f32,
    add_f64,
    below,
    count_bits,
    fill_bytes,
    less_f32,
    less_f64,
    load64,
    lowest_bit,
    store64,
)

OPERATION_SHIFT = 32
ADD, SUB, AND, NAND, OR, XOR, MAX, MIN, UMAX, UMIN, FADD, FSUB, FMAX, FMIN = (
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    11,
    12,
    13,
    14,
)
COMPARE = 31


def sign_extended(value: int, nbytes: int) -> int:
    """A 4-byte integer as a signed 64-bit one."""
    return ((value & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000 if nbytes == 4 else value


def is_nan(value: int, nbytes: int) -> int:
    """Whether the bits are a NaN."""
    if nbytes == 4:
        return (value & 0x7FFFFFFF) > 0x7F800000
    return (value & 0x7FFFFFFFFFFFFFFF) > 0x7FF0000000000000


def float_extremum(old: int, new: int, nbytes: int, largest: int) -> int:
    """maxnum or minnum: the number wins over NaN, +0 is above -0."""
    if is_nan(old, nbytes):
        return new
    if is_nan(new, nbytes):
        return old
    less = less_f32(old, new) if nbytes == 4 else less_f64(old, new)
    more = less_f32(new, old) if nbytes == 4 else less_f64(new, old)
    if less == 0 and more == 0:
        return old & new if largest else old | new
    return new if less == largest else old


def integer_result(operation: int, old: int, new: int, nbytes: int) -> int:
    """The integer operations."""
    if operation == ADD:
        return old + new
    if operation == SUB:
        return old - new
    if operation == AND:
        return old & new
    if operation == NAND:
        return ~(old & new)
    if operation == OR:
        return old | new
    if operation == XOR:
        return old ^ new
    if operation == MAX:
        return new if sign_extended(old, nbytes) < sign_extended(new, nbytes) else old
    if operation == MIN:
        return new if sign_extended(new, nbytes) < sign_extended(old, nbytes) else old
    if operation == UMAX:
        return new if below(old, new) else old
    if operation == UMIN:
        return new if below(new, old) else old
    return new


def combined(operation: int, old: int, new: int, nbytes: int) -> int:
    """What an atomic writes; `operation` as LLVM numbers it."""
    if operation < FADD:
        return integer_result(operation, old, new, nbytes)
    sign = 0x80000000 if nbytes == 4 else 1 << 63
    if operation == FADD:
        return add_f32(old, new) if nbytes == 4 else add_f64(old, new)
    if operation == FSUB:
        return add_f32(old, new ^ sign) if nbytes == 4 else add_f64(old, new ^ sign)
    return float_extremum(old, new, nbytes, operation == FMAX)


def atomic_lanes(
    machine: Machine,
    wave: Wave,
    mask: int,
    addresses: int,
    first: int,
    second: int,
    target: int,
    shape: int,
    place: int,
) -> None:
    """Every active lane's atomic at its scope; `first` operands (expected values), `second` new values, old values to
    `target`."""
    wave.place = place
    shape = look_at_addresses(machine, mask, addresses, shape)
    low = machine.low
    high = machine.high
    element = shape & 255
    scope = (shape >> SCOPE_SHIFT) & 3
    ordering = (shape >> ORDERING_SHIFT) & 7
    space = shape & LDS_FLAG
    operation = (shape >> OPERATION_SHIFT) & 31
    if space:
        if not within_lds(machine, wave, mask, addresses, high, element, shape, place):
            return
        if machine.check_written and not lds_written(machine, wave, mask, addresses, element, place):
            return
    else:
        if not within_regions(machine, wave, mask, addresses, low, high, shape, place):
            return
        if ordering >= RELEASE:
            release(machine, wave, scope)
        wave.issued += 1
        machine.spent += machine.coherent_load_cost
    if wave.stores:
        settle_own_stores(machine, wave, mask, addresses, low, high + element, element, space)
    if wave.loads:
        settle_own_loads(machine, wave, low, high + element, space)
    note_load(machine, wave, place, low)
    traffic = machine.traffic + 8 * 10
    store64(traffic, load64(traffic) + count_bits(mask) * element)
    rest = mask
    while rest:
        lane = lowest_bit(rest)
        rest = rest & (rest - 1)
        address = load64(addresses + 8 * lane)
        old = 0
        if space:
            old = load_word(wave.lds + address, element)
        else:
            old = seen_value(machine, wave, address, element, scope if scope else 1)
        new = load_word(second + lane * element, element)
        writes = 1
        if operation == COMPARE:
            writes = old == load_word(first + lane * element, element)
        else:
            new = combined(operation, old, new, element)
        store_word(target + lane * element, old, element)
        if writes:
            if new != old:
                machine.progress += 1
            if space:
                store_word(wave.lds + address, new, element)
                if machine.check_written:
                    fill_bytes(wave.lds + wave.lds_bytes + address, 1, element)
            else:
                visible(machine, wave, address, element, new, scope)
    if space == 0 and ordering >= ACQUIRE and ordering != RELEASE:
        fence(machine, wave, ACQUIRE, scope)
