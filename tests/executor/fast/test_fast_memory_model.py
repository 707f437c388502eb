"""The fast engine catches what the memory model forbids, passes what it allows, and replays a seed exactly."""

from typing import Any

import flydsl.expr as fx
import handoffs
import kernel_words as k
import numpy as np
import pytest
from flydsl.expr import const_expr
from shared_words import Shared

import monodraft.executor as ex
from monodraft.executor.fast import Runner, prepare

pytestmark = pytest.mark.executed
SEEDS = 60
HARSH = ex.MemoryModel.harsh().without("races")


class Handoff:
    """A hand-off kernel, prepared for many seeds."""

    def __init__(self, spec: handoffs.Handoff, model: ex.MemoryModel = HARSH, ranks: int = 1) -> None:
        lowered = handoffs.program(spec)
        self.memory = ex.Memory(ranks=ranks)
        data = self.memory.array(0, "data", np.full((handoffs.THREADS, 4), -1, np.int32))
        self.out = self.memory.array(0, "out", np.zeros((65536 // 16 + handoffs.THREADS, 4), np.int32))
        flag = self.memory.array(0, "flag", np.zeros(16, np.int32))
        bases = [data, self.out, flag]
        roles = [(0, 0)] if ranks == 1 else [(1, 0), (2, 1)]
        launches = [k.launch(lowered, bases, role, rank=rank) for role, rank in roles]
        self.runner: Runner = prepare(launches, memory=self.memory, gpu=ex.Gpu.mi355x(cus=8), model=model)

    def good(self, schedule: ex.Schedule) -> bool:
        """Whether the consumer read what was produced."""
        self.report = self.runner.run(schedule)
        return bool(np.array_equal(self.out.array[: handoffs.THREADS], handoffs.expected()))

    def wrong(self, seeds: int = SEEDS) -> int:
        return sum(not self.good(ex.Schedule.random(seed)) for seed in range(seeds))


def test_a_correct_handoff_survives_everything() -> None:
    correct = Handoff(handoffs.Handoff())
    assert correct.good(ex.Schedule.round_robin())
    assert correct.wrong(300) == 0
    assert all(correct.good(ex.Schedule.adversarial(seed)) for seed in range(100))
    assert all(correct.good(ex.Schedule.adversarial(seed, delay="data")) for seed in range(20))
    across = Handoff(handoffs.Handoff(), ranks=2)
    assert across.wrong(100) == 0


PLAIN_READ = handoffs.Handoff(reader=k.PLAIN, before=True)
SABOTAGES: dict[str, tuple[handoffs.Handoff, tuple[str, ...], float]] = {
    "no drain before the flag": (handoffs.Handoff(drain=False), ("delayed_stores",), 0.3),
    "no barrier before the flag": (handoffs.Handoff(barrier=False), (), 0.01),
    "plain store": (handoffs.Handoff(writer=k.PLAIN), ("l2", "device"), 0.3),
    "plain load of a line read before": (PLAIN_READ, ("l1", "l2"), 0.3),
    "data loaded before the flag": (handoffs.Handoff(round="data first"), (), 0.004),
    "data loaded with the flag": (handoffs.Handoff(round="flag first"), ("late_loads",), 0.004),
}


@pytest.mark.parametrize("name", SABOTAGES)
def test_sabotage_is_caught_and_its_switch_turns_it_off(name: str) -> None:
    spec, switches, share = SABOTAGES[name]
    seeds = 800 if share < 0.1 else SEEDS
    assert Handoff(spec).wrong(seeds) > share * seeds
    if switches:
        assert Handoff(spec, HARSH.without(*switches)).wrong(seeds) == 0


def test_a_peer_sees_only_system_scope_stores() -> None:
    device = handoffs.Handoff(writer=k.DEVICE, flag=k.SYSTEM, reader=k.SYSTEM)
    assert Handoff(device, ranks=2).wrong(20) == 20
    assert Handoff(device, HARSH.without("device"), ranks=2).wrong(20) == 0
    assert Handoff(device).wrong(20) == 0


def test_the_same_seed_is_the_same_run() -> None:
    first, second = Handoff(handoffs.Handoff(drain=False)), Handoff(handoffs.Handoff(drain=False))
    seen = set()
    for schedule in (*map(ex.Schedule.random, range(20)), *map(ex.Schedule.adversarial, range(20))):
        outcomes = [(each.good(schedule), each.report) for each in (first, second, first)]
        assert outcomes[0] == outcomes[1] == outcomes[2]
        assert len({each.out.array.tobytes() for each in (first, second)}) == 1
        seen.add(outcomes[0][1].events[0])
    assert len(seen) > 30  # an adversarial schedule may come out as the random one of its seed


@k.traced
def torn_body(bases: list[Any], n: Any) -> None:
    """CTA 0 stores (t, t, t, n) a lane; CTA 1 polls the last word (n even: of the first pair) and reports a mix."""
    t, bid = fx.Int32(fx.thread_idx.x), fx.Int32(fx.block_idx.x)
    data, out = k.resource(bases[0]), k.resource(bases[1])
    wide = bases[2]
    if bid == 0:
        if const_expr(wide):
            k.store(data, t * 16, k.words(t, t, t, fx.Int32(7)), k.SYSTEM)
        else:
            k.store(data, t * 16, k.words(t, fx.Int32(7)), k.SYSTEM)
    if bid == 1:
        kind = fx.Int32x4 if const_expr(wide) else fx.Int32x2
        v = k.load(data, t * 16, kind, k.SYSTEM)
        now = k.clock()
        while (v[3 if const_expr(wide) else 1] != 7) & (now >= 0):
            v = k.load(data, t * 16, kind, k.SYSTEM)
            now = k.clock()
        k.store(out, t * 4, (v[0] != t).to(fx.Int32), k.SYSTEM)


@pytest.mark.parametrize(("wide", "torn"), [(False, True), (True, True), (True, False)])
def test_eight_bytes_arrive_whole_and_sixteen_do_not(wide: bool, torn: bool) -> None:
    lowered = k.program(lambda bases, n: torn_body([*bases, wide], n), ctas=2, bases=2)
    memory = ex.Memory()
    data = memory.array(0, "data", np.full((64, 4), -1, np.int32))
    out = memory.array(0, "out", np.zeros(64, np.int32))
    model = HARSH if torn else HARSH.without("torn", "late_loads")
    runner = prepare(k.launch(lowered, [data, out]), memory=memory, model=model)
    broken = 0
    for seed in range(SEEDS):
        runner.run(ex.Schedule.random(seed))
        broken += bool(out.array.any())
    assert broken > SEEDS // 2 if wide and torn else broken == 0


@k.traced
def lds_body(bases: list[Any], n: Any) -> None:
    """Waves exchange words through LDS, with a barrier between or not."""
    t = fx.Int32(fx.thread_idx.x)
    lds = fx.SharedAllocator().allocate(Shared).peek()
    lds.words[t] = t + 1
    if const_expr(bases[1]):
        fx.gpu.barrier()
    k.store(k.resource(bases[0]), t * 4, lds.words[t ^ 64])


@pytest.mark.parametrize("barrier", [True, False])
def test_lds_is_exchanged_at_barriers(barrier: bool) -> None:
    lowered = k.program(lambda bases, n: lds_body([bases[0], barrier], n), threads=128, bases=1)
    memory = ex.Memory()
    out = memory.array(0, "out", np.zeros(128, np.int32))
    runner = prepare(k.launch(lowered, [out]), memory=memory, model=HARSH.without("uninitialised"))
    good = 0
    for seed in range(SEEDS):
        runner.run(ex.Schedule.random(seed))
        good += bool((out.array == (np.arange(128) ^ 64) + 1).all())
    assert good == SEEDS if barrier else good < SEEDS // 4
    if not barrier:
        strict = prepare(k.launch(lowered, [out]), memory=memory, model=HARSH)
        with pytest.raises(ex.UninitialisedRead, match="LDS"):
            strict.run(ex.Schedule.round_robin())


@k.traced
def bare_barrier_body(bases: list[Any], n: Any) -> None:
    """The same exchange with an s_barrier alone, which does not wait for LDS stores."""
    t = fx.Int32(fx.thread_idx.x)
    lds = fx.SharedAllocator().allocate(Shared).peek()
    lds.words[t] = t + 1
    if const_expr(bases[1]):
        fx.rocdl.s_waitcnt(lgkmcnt=0)
    fx.rocdl.s_barrier()
    k.store(k.resource(bases[0]), t * 4, lds.words[t ^ 64])


@pytest.mark.parametrize(("waits", "delayed"), [(True, True), (False, True), (False, False)])
def test_a_bare_barrier_does_not_drain_lds(waits: bool, delayed: bool) -> None:
    lowered = k.program(lambda bases, n: bare_barrier_body([bases[0], waits], n), threads=128, bases=1)
    memory = ex.Memory()
    out = memory.array(0, "out", np.zeros(128, np.int32))
    model = HARSH.without("uninitialised") if delayed else HARSH.without("uninitialised", "delayed_lds")
    runner = prepare(k.launch(lowered, [out]), memory=memory, model=model)
    good = 0
    for seed in range(SEEDS):
        runner.run(ex.Schedule.random(seed))
        good += bool((out.array == (np.arange(128) ^ 64) + 1).all())
    assert good < SEEDS if delayed and not waits else good == SEEDS
