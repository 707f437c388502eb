"""Wide accesses that lie partly beyond their buffer follow the rules of memory as whole ones do, on both engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flydsl.expr as fx
import kernel_words as k
import numpy as np
import pytest
from flydsl.expr import const_expr, rocdl

import monodraft.executor as ex

pytestmark = [pytest.mark.executed, pytest.mark.parametrize("engine", ["reference", "fast"])]
SEEDS = 60
BLIND = ex.MemoryModel.harsh().without("races")
EDGE = 12
"""Bytes of the small buffers: three of the four words of lane 0."""

Arrays = dict[str, np.ndarray]


def outcomes(body: Callable[..., None], engine: Any, ctas: int = 1, **arrays: Any) -> list[Arrays]:
    """What the arrays hold after each of `SEEDS` schedules."""
    lowered = k.program(k.traced(body), ctas=ctas, bases=len(arrays))
    found = []
    for seed in range(SEEDS):
        memory = ex.Memory()
        regions = {name: memory.array(0, name, values) for name, values in arrays.items()}
        schedule = ex.Schedule.random(seed)
        launch = k.launch(lowered, list(regions.values()))
        ex.run(launch, memory=memory, engine=engine, model=BLIND, schedule=schedule)
        found.append({name: region.array for name, region in regions.items()})
    return found


def load_after_store(bases, n):
    t = fx.Int32(fx.thread_idx.x)
    data, small, out = k.resource(bases[0]), k.resource(bases[0], EDGE), k.resource(bases[1])
    k.store(data, t * 16, t + 1, k.SYSTEM)
    k.store(out, t * 16, k.load(small, t * 16, fx.Int32x4, k.SYSTEM))


def test_a_wave_sees_its_own_stores_at_the_edge(engine: str) -> None:
    for found in outcomes(load_after_store, engine, data=np.full(256, -1, np.int32), out=np.zeros(256, np.int32)):
        np.testing.assert_array_equal(found["out"][:4], [1, -1, -1, 0])


def store_after_store(bases, n):
    t = fx.Int32(fx.thread_idx.x)
    data, small = k.resource(bases[0]), k.resource(bases[0], EDGE)
    k.store(data, t * 16, t + 1, k.SYSTEM)
    k.store(small, t * 16, k.words(t + 5, t + 6, t + 7, t + 8), k.SYSTEM)


def test_stores_of_one_dword_keep_their_order_at_the_edge(engine: str) -> None:
    for found in outcomes(store_after_store, engine, data=np.full(256, -1, np.int32)):
        np.testing.assert_array_equal(found["data"][:5], [5, 6, 7, -1, 2])


def store_after_load(bases, n):
    t = fx.Int32(fx.thread_idx.x)
    data, small, out = k.resource(bases[0]), k.resource(bases[0], EDGE), k.resource(bases[1])
    x = k.load(data, t * 16, fx.Int32, k.SYSTEM)
    k.store(small, t * 16, k.words(t + 5, t + 6, t + 7, t + 8), k.SYSTEM)
    k.store(out, t * 4, x)


def test_a_load_does_not_see_a_later_store_of_its_wave_at_the_edge(engine: str) -> None:
    for found in outcomes(store_after_load, engine, data=np.full(256, -1, np.int32), out=np.zeros(64, np.int32)):
        assert (found["out"] == -1).all()


def handed_on(bases: list[Any], before_flag: Callable[[Any, Any], Any]) -> None:
    """CTA 0 does `before_flag` and raises a flag; CTA 1 sees the flag and reads the data's first word. What
    `before_flag` returns is stored after the flag."""
    t, bid = fx.Int32(fx.thread_idx.x), fx.Int32(fx.block_idx.x)
    data, flag, out = (k.resource(each) for each in bases)
    if bid == 0:
        kept = before_flag(bases[0], t)
        if t == 0:
            k.store(flag, 0, 1, k.SYSTEM)
        k.store(data, 768 + t * 4, kept)
    else:
        k.wait_for(flag)
        k.store(out, t * 4, k.load(data, 0, fx.Int32, k.SYSTEM))


def missed(engine: str, before_flag: Callable[[Any, Any], Any]) -> int:
    """In how many schedules the flag overtook the data."""

    def body(bases, n):
        k.traced(handed_on)(bases, before_flag)

    arrays = {"data": np.zeros(256, np.int32), "flag": np.zeros(4, np.int32), "out": np.zeros(64, np.int32)}
    return sum(bool((found["out"] != 5).any()) for found in outcomes(body, engine, ctas=2, **arrays))


@pytest.mark.parametrize("drained", [True, False])
def test_a_store_at_the_edge_is_late_until_it_is_drained(engine: str, drained: bool) -> None:
    def before(base: Any, t: Any) -> Any:
        k.store(k.resource(base, EDGE), t * 16, k.words(t + 5, t + 6, t + 7, t + 8), k.SYSTEM)
        if const_expr(drained):
            k.drain()
        return t

    assert missed(engine, before) == 0 if drained else missed(engine, before) > 0


@pytest.mark.parametrize("size", [0, EDGE], ids=["beyond", "edge"])
@pytest.mark.parametrize("outstanding", [1, 2])
@pytest.mark.parametrize("kind", ["load", "store"])
def test_an_access_past_the_end_is_one_instruction_to_vmcnt(
    engine: str, kind: str, outstanding: int, size: int
) -> None:
    """After it, vmcnt(1) means that the store before it is done, and vmcnt(2) does not."""

    def before(base: Any, t: Any) -> Any:
        kept = t
        k.store(k.resource(base), t * 4, 5, k.SYSTEM)
        small = k.resource(base + 512, size)
        if const_expr(kind == "load"):
            kept = k.load(small, t * 16, fx.Int32x4, k.SYSTEM)[0]
        else:
            k.store(small, t * 16, k.words(t, t, t, t), k.SYSTEM)
        rocdl.s_waitcnt(vmcnt=outstanding)
        return kept

    assert missed(engine, before) == 0 if outstanding == 1 else missed(engine, before) > 0


def poison_at_the_edge(bases, n):
    t = fx.Int32(fx.thread_idx.x)
    v = k.load(k.resource(bases[0], EDGE), t * 16, fx.Int32x4)
    k.store(k.resource(bases[1]), t * 16, v)


def test_reading_what_nobody_wrote_is_told_at_the_edge(engine: Any) -> None:
    memory = ex.Memory()
    data = memory.array(0, "data", np.zeros(4, np.int32), initialised=False)
    out = memory.array(0, "out", np.zeros(256, np.int32))
    launch = k.launch(k.program(k.traced(poison_at_the_edge)), [data, out])
    with pytest.raises(ex.UninitialisedRead, match="byte 0 of data") as caught:
        ex.run(launch, memory=memory, engine=engine, model=BLIND)
    assert caught.value.where.lanes == (0,)
