"""The race detector: what is a race, what is not, and the two lines that it names."""

from __future__ import annotations

import flydsl.expr as fx
import handoffs
import kernel_words as k
import numpy as np
import pytest
from flydsl.expr import const_expr
from handoffs import Handoff
from kernel_words import run

import monodraft.executor as ex

pytestmark = pytest.mark.executed


def neighbours(bases, n):
    """Every CTA writes its own words; with n, also one that its neighbour writes."""
    t, cta = fx.Int32(fx.thread_idx.x), fx.Int32(fx.block_idx.x)
    out = k.pointer(fx.Int32, bases[0])
    out[cta * (64 - n) + t] = cta


def test_race_between_stores_names_both_lines() -> None:
    run(neighbours, np.zeros(256, np.int32), ctas=4)
    with pytest.raises(ex.Race, match="store and an earlier store") as caught:
        run(neighbours, np.zeros(256, np.int32), n=1, ctas=4)
    first, second = caught.value.places
    assert (first.cta, second.cta) == (1, 0)
    assert first.lanes == (0,)
    assert first.line == second.line
    run(neighbours, np.zeros(256, np.int32), n=1, ctas=4, model=ex.MemoryModel.harsh().without("races"))


def halfwords(bases, n):
    t = fx.Int32(fx.thread_idx.x)
    out = k.pointer(fx.Int16, bases[0])
    wave = t // 64
    out[(t % 64) * 2 + wave] = fx.Int16(t)


def test_neighbouring_halfwords_do_not_race() -> None:
    run(halfwords, np.zeros(128, np.int16), threads=128)


def test_a_flag_orders_only_what_was_drained() -> None:
    """A race by the rules, also in the runs where the data happened to arrive in time."""
    plain = Handoff(writer=k.PLAIN, reader=k.PLAIN)
    lowered = handoffs.program(plain)
    handoffs.run(lowered, ex.Schedule.round_robin())
    for sabotage in (
        Handoff(writer=k.PLAIN, reader=k.PLAIN, drain=False),
        Handoff(writer=k.PLAIN, reader=k.PLAIN, barrier=False),
    ):
        with pytest.raises(ex.Race, match="load and an earlier store"):
            handoffs.run(handoffs.program(sabotage), ex.Schedule.round_robin())


def one_wave(bases, drain):
    """The wave that stores the data raises the flag itself."""
    t, cta = fx.Int32(fx.thread_idx.x), fx.Int32(fx.block_idx.x)
    data, flag, out = (k.resource(each) for each in bases)
    if cta == 0:
        k.store(data, t * 4, t)
        if const_expr(drain):
            k.drain()
        k.store(flag, 0, 1, k.SYSTEM)
    else:
        k.wait_for(flag)
        k.store(out, t * 4, k.load(data, t * 4))


def test_a_flag_of_the_same_wave_hands_on_only_what_it_drained() -> None:
    arrays = (np.zeros(64, np.int32), np.zeros(16, np.int32), np.zeros(64, np.int32))
    run(lambda bases, n: k.traced(one_wave)(bases, True), *arrays, ctas=2)
    with pytest.raises(ex.Race, match="load and an earlier store"):
        run(lambda bases, n: k.traced(one_wave)(bases, False), *arrays, ctas=2)


def test_read_then_overwrite_without_order_is_a_race() -> None:
    def body(bases, n):
        t, cta = fx.Int32(fx.thread_idx.x), fx.Int32(fx.block_idx.x)
        data, out = k.resource(bases[0]), k.resource(bases[1])
        if cta == 0:
            k.store(out, t * 4, k.load(data, t * 4))
        else:
            k.store(data, t * 4, t)

    with pytest.raises(ex.Race):
        run(body, np.zeros(64, np.int32), np.zeros(64, np.int32), ctas=2)


def two_flags(bases, n):
    """CTA 0 hands on one array and then another; CTA 1 waits for flag n and reads the second."""
    t, cta = fx.Int32(fx.thread_idx.x), fx.Int32(fx.block_idx.x)
    data, flag, out = (k.resource(each) for each in bases)
    if cta == 0:
        for part in range(2):
            k.store(data, part * 256 + t * 4, t)
            k.drain()
            k.store(flag, part * 4, 1, k.SYSTEM)
    else:
        k.wait_for(flag, n)
        k.store(out, t * 4, k.load(data, 256 + t * 4))


def test_every_flag_hands_on_what_was_done_until_then() -> None:
    arrays = (np.zeros(128, np.int32), np.zeros(16, np.int32), np.zeros(64, np.int32))
    run(two_flags, *arrays, n=1, ctas=2)
    with pytest.raises(ex.Race, match="are not ordered"):
        run(two_flags, *arrays, n=0, ctas=2, schedule=ex.Schedule.random(0))


def plain_load_of_coherent_store(bases, n):
    """CTA 0 stores coherently, CTA 1 later loads plainly, and nothing orders them."""
    t, cta = fx.Int32(fx.thread_idx.x), fx.Int32(fx.block_idx.x)
    data, out = k.resource(bases[0]), k.resource(bases[1])
    if cta == 0:
        k.store(data, t * 4, t, k.SYSTEM)
    else:
        now = k.clock()
        while now < 10_000:
            now = k.clock()
        k.store(out, t * 4, k.load(data, t * 4, fx.Int32, k.SYSTEM if const_expr(n) else k.PLAIN))


def test_a_plain_load_races_with_a_coherent_store() -> None:
    arrays = (np.zeros(64, np.int32), np.zeros(64, np.int32))
    run(lambda bases, n: k.traced(plain_load_of_coherent_store)(bases, True), *arrays, ctas=2)
    with pytest.raises(ex.Race, match="load and an earlier store"):
        run(lambda bases, n: k.traced(plain_load_of_coherent_store)(bases, False), *arrays, ctas=2)


def two_readers(bases, n):
    """CTAs 0 and 1 read a word, in this order; CTA 2 overwrites it when CTA 1 (and with n CTA 0) has said so."""
    t, cta = fx.Int32(fx.thread_idx.x), fx.Int32(fx.block_idx.x)
    data, flag, out = (k.resource(each) for each in bases)
    if cta < 2:
        now = k.clock()
        while now < cta * 10_000:
            now = k.clock()
        k.store(out, cta * 256 + t * 4, k.load(data, t * 4))
        k.drain()
        k.store(flag, (cta == 0).select(n, 1) * 4, 1, k.SYSTEM)
    else:
        k.wait_for(flag, 0)
        k.wait_for(flag, 1)
        k.store(data, t * 4, t)


def test_either_of_two_readers_races_with_a_store() -> None:
    """With n = 3 the flag that would hand CTA 0's read on is set by the host instead."""
    arrays = (np.zeros(64, np.int32), np.zeros(16, np.int32), np.zeros(128, np.int32))
    run(two_readers, *arrays, n=0, ctas=3)
    arrays[1][0] = 1
    with pytest.raises(ex.Race, match="store and an earlier load") as caught:
        run(two_readers, *arrays, n=3, ctas=3)
    assert [place.cta for place in caught.value.places] == [2, 0]
