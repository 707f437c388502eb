"""What Python becomes under FlyDSL's rewriter, executed: control flow, divergence, carried values, integers."""

from __future__ import annotations

from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
import kernel_words as k
import numpy as np
import pytest
from flydsl.expr import const_expr, range_constexpr

import monodraft.executor as ex

pytestmark = pytest.mark.executed
T = np.arange(64)


def if_without_else(t, n):
    x = fx.Int32(1)
    if t < n:
        x = t * 2
    return x


def conditional_expression(t, n):
    x = t * 2 if t < n else t * 3
    return x


def for_range(t, n):
    s = fx.Int32(0)
    for i in range(n):
        s = s + i * t
    return s


def for_range_step(t, n):
    s = 0
    for i in range(2, n, 2):
        s += i
    return fx.Int32(s)


def trip_count_per_lane(t, n):
    s = fx.Int32(0)
    for i in range(t):
        s = s + i
    return s


def divergent_while(t, n):
    x = t
    c = fx.Int32(0)
    while x > 0:
        x = x >> 1
        c = c + 1
    return c


def while_and(t, n):
    x = t
    c = fx.Int32(0)
    while x > 0 and c < n:
        x = x >> 1
        c = c + 1
    return c


def nested_divergence(t, n):
    s = fx.Int32(0)
    for i in range(t & 7):
        if (t + i) % 3 == 0:
            j = fx.Int32(0)
            while j < i:
                s = s + j
                j = j + 1
        else:
            s = s + 1
    return s


def vector_in_while(t, n):
    v = fx.Vector.from_elements([t, t + 1], fx.Int32)
    i = fx.Int32(0)
    while i < n:
        v = v + v
        i = i + 1
    return v[1]


def swap_in_loop(t, n):
    a, b = t, t + 1
    for _ in range(n):
        a, b = b, a
    return a - b


def vector_index_per_lane(t, n):
    v = fx.Vector.from_elements([t, t * 10, t * 100, t * 1000], fx.Int32)
    return v[t & 3]


def boolean_logic(t, n):
    r = fx.Int32(0)
    if 1 < t < n and not t == 2:  # noqa: SIM201
        r = fx.Int32(1)
    return r


def select_or(t, n):
    return ((t < n) | (t > 60)).select(fx.Int32(7), fx.Int32(8))


def floor_division(t, n):
    return (t - 10) // 4


def c_remainder(t, n):
    return (t - 10) % 4


def unsigned_division(t, n):
    return fx.Int32((fx.Uint32(t) - 10) // fx.Uint32(4) & 0xFF)


def arithmetic_shift(t, n):
    return fx.Int32(-8) >> (t & 3)


def wide_shifts(t, n):
    return fx.Int32((fx.Int64(t) << 33) >> 33)


def float_truncation(t, n):
    return fx.Int32(fx.Float32(t) / 3.0)


@flyc.jit
def remainder_by_loop(x, m):
    while x > m:
        x = x - m
    return x


def jit_helper_in_branch(t, n):
    s = t
    if t > 3:
        s = remainder_by_loop(t, n)
    return s


def if_in_unrolled_loop(t, n):
    x = t
    for i in range_constexpr(3):
        if t > i:
            x = x + i
    return x


def early_return_at_trace_time(t, n):
    if const_expr(True):
        return t + 1
    return t


def nested_reference(t: int) -> int:
    s = 0
    for i in range(t & 7):
        s += sum(range(i)) if (t + i) % 3 == 0 else 1
    return s


CASES = [
    (if_without_else, np.where(T < 5, T * 2, 1)),
    (conditional_expression, np.where(T < 5, T * 2, T * 3)),
    (for_range, T * 10),
    (for_range_step, 6),
    (trip_count_per_lane, T * (T - 1) // 2),
    (divergent_while, [int(t).bit_length() for t in T]),
    (while_and, [min(int(t).bit_length(), 5) for t in T]),
    (nested_divergence, [nested_reference(int(t)) for t in T]),
    (vector_in_while, (T + 1) * 32),
    (swap_in_loop, 1),
    (vector_index_per_lane, T * 10 ** (T & 3)),
    (boolean_logic, (T > 1) & (T < 5) & (T != 2)),
    (select_or, np.where((T < 5) | (T > 60), 7, 8)),
    (floor_division, (T - 10) // 4),
    (c_remainder, np.fmod(T - 10, 4)),
    (unsigned_division, ((T - 10) & 0xFFFFFFFF) // 4 & 0xFF),
    (arithmetic_shift, -8 >> (T & 3)),
    (wide_shifts, T),
    (float_truncation, (T.astype(np.float32) / np.float32(3)).astype(int)),
    (jit_helper_in_branch, [t if t <= 3 else (t - 1) % 5 + 1 for t in T]),
    (if_in_unrolled_loop, T + np.where(T > 1, 1, 0) + np.where(T > 2, 2, 0)),
    (early_return_at_trace_time, T + 1),
]


def run(function: Any, schedule: ex.Schedule) -> np.ndarray:
    inner = k.traced(function)

    def body(bases, n):
        t = fx.Int32(fx.thread_idx.x)
        k.store(k.resource(bases[0]), t * 4, inner(t, n))

    memory = ex.Memory()
    out = memory.array(0, "out", np.zeros(64, np.int32))
    ex.run(k.launch(k.program(body, bases=1), [out], 5), memory=memory, schedule=schedule)
    return out.array.copy()


@pytest.mark.parametrize(("function", "wanted"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_language(function: Any, wanted: Any) -> None:
    expected = np.broadcast_to(np.asarray(wanted, np.int32), 64)
    np.testing.assert_array_equal(run(function, ex.Schedule.round_robin()), expected)
    np.testing.assert_array_equal(run(function, ex.Schedule.random(3)), expected)
