"""Seeds, replays, victims, the clock, and the trace of a run."""

from __future__ import annotations

import itertools
import json
from typing import Any

import flydsl.expr as fx
import handoffs
import kernel_words as k
import numpy as np
import pytest
from handoffs import Handoff

import monodraft.executor as ex

pytestmark = pytest.mark.executed
ENGINES = ("reference", "fast")


def trace(schedule: ex.Schedule, spec: Handoff = Handoff(), engine: str = "reference") -> tuple[str, ex.Report]:  # noqa: B008
    _, report = handoffs.run(handoffs.program(spec), schedule, trace=True, engine=engine)
    return json.dumps(ex.perfetto(report), sort_keys=True) + ex.summary(report), report


SCHEDULES = {
    "round robin": ex.Schedule.round_robin(),
    "random": ex.Schedule.random(11),
    "starve a wave": ex.Schedule.adversarial(11, starve="wave"),
    "starve a chosen cta": ex.Schedule.adversarial(11, starve=ex.Pick(rank=0, cta=0)),
    "delay a store": ex.Schedule.adversarial(11, delay="store"),
    "delay the flag": ex.Schedule.adversarial(11, delay="flag"),
    "victim by seed": ex.Schedule.adversarial(12),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", SCHEDULES)
def test_same_schedule_same_trace_byte_for_byte(name: str, engine: str) -> None:
    first, report = trace(SCHEDULES[name], engine=engine)
    second, again = trace(SCHEDULES[name], engine=engine)
    assert first == second
    assert report.decisions == again.decisions


def test_other_seeds_are_other_runs() -> None:
    assert len({trace(ex.Schedule.random(seed))[0] for seed in range(6)}) == 6


def test_recorded_decisions_replay_the_run() -> None:
    first, report = trace(ex.Schedule.random(3))
    second, again = trace(ex.Schedule.replay(report.decisions, seed=3))
    assert first == second
    assert again.decisions == report.decisions


def test_a_failure_prints_its_seed_and_the_seed_replays_it() -> None:
    lowered = handoffs.program(Handoff(writer=k.PLAIN, reader=k.PLAIN, drain=False))
    messages = set()
    for _ in range(3):
        with pytest.raises(ex.Race) as caught:
            handoffs.run(lowered, ex.Schedule.random(17))
        assert "seed 17" in str(caught.value)
        messages.add(str(caught.value))
    assert len(messages) == 1


def test_a_wrong_result_is_found_again_from_its_seed() -> None:
    lowered = handoffs.program(Handoff(drain=False))
    bad = [seed for seed in range(12) if not handoffs.run(lowered, ex.Schedule.random(seed))[0]]
    assert bad
    assert not any(handoffs.run(lowered, ex.Schedule.random(seed))[0] for seed in bad)


def turns_until(schedule: ex.Schedule, cta: int, engine: str) -> float:
    """When a CTA of two equal ones ends, as a share of the run."""

    def body(bases, n):
        t = fx.Int32(fx.thread_idx.x)
        out = k.resource(bases[0])
        for i in range(n):
            k.store(out, (fx.Int32(fx.block_idx.x) * 64 + t) * 4, t + i, k.SYSTEM)
            k.drain()

    memory = ex.Memory()
    out = memory.array(0, "out", np.zeros(128, np.int32))
    launch: Any = k.launch(k.program(k.traced(body), ctas=2, bases=1), [out], 40)
    report = ex.run(launch, memory=memory, schedule=schedule, trace=True, engine=engine)  # type: ignore[arg-type]
    ends = {span.cta: span.end for span in report.spans if span.name == "CTA"}
    return ends[cta] / max(ends.values())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_starved_cta_comes_last(engine: str) -> None:
    for seed in range(5, 15):
        for victim in (0, 1):
            schedule = ex.Schedule.adversarial(seed, starve=ex.Pick(cta=victim))
            assert turns_until(schedule, victim, engine) == 1
            assert turns_until(schedule, 1 - victim, engine) < 0.6


@pytest.mark.parametrize("engine", ENGINES)
def test_a_delayed_region_becomes_visible_only_when_it_must(engine: str) -> None:
    """The flag is never drained by its writer: it arrives when nothing else can happen."""
    lowered = handoffs.program(Handoff())
    ok, report = handoffs.run(lowered, ex.Schedule.adversarial(2, delay="flag"), engine=engine)
    _, free = handoffs.run(lowered, ex.Schedule.random(2), engine=engine)
    assert ok
    assert report.ticks > free.ticks


# ---- the clock


def timed_wait(bases, n):
    """Waits for a flag that never comes, at most n ticks; stores how long it took."""
    t = fx.Int32(fx.thread_idx.x)
    flag, out = k.resource(bases[0]), k.resource(bases[1])
    begin = k.clock()
    now = begin
    seen = k.load(flag, 0, fx.Int32, k.SYSTEM)
    while (seen == 0) & (now - begin < fx.Int64(n)):
        seen = k.load(flag, 0, fx.Int32, k.SYSTEM)
        now = k.clock()
    k.store(out, t * 4, fx.Int32(now - begin))


@pytest.mark.parametrize("bound", [1_000, 1_000_000, 100_000_000])
def test_bounded_waits_end_near_their_bound(bound: int) -> None:
    for schedule in (ex.Schedule.round_robin(), ex.Schedule.random(8)):
        memory = ex.Memory()
        flag = memory.array(0, "flag", np.zeros(16, np.int32))
        out = memory.array(0, "out", np.zeros(64, np.int32))
        ex.run(k.launch(k.program(k.traced(timed_wait)), [flag, out], bound), memory=memory, schedule=schedule)
        waited = int(out.array[0])
        assert bound <= waited <= bound + 2 * ex.Limits().jump


def slow_producer(bases, n):
    """CTA 0 raises the flag after n ticks; CTA 1 waits at most a million."""
    t = fx.Int32(fx.thread_idx.x)
    flag, out = k.resource(bases[0]), k.resource(bases[1])
    begin = k.clock()
    now = begin
    if fx.Int32(fx.block_idx.x) == 0:
        while now - begin < fx.Int64(n):
            now = k.clock()
        k.store(flag, 0, 1, k.SYSTEM)
    else:
        seen = k.load(flag, 0, fx.Int32, k.SYSTEM)
        while (seen == 0) & (now - begin < 1_000_000):
            seen = k.load(flag, 0, fx.Int32, k.SYSTEM)
            now = k.clock()
        k.store(out, t * 4, seen)


@pytest.mark.parametrize(("ticks", "arrives"), [(900_000, 1), (1_100_000, 0)])
def test_a_producer_just_under_and_just_over_the_deadline(ticks: int, arrives: int) -> None:
    memory = ex.Memory()
    flag = memory.array(0, "flag", np.zeros(16, np.int32))
    out = memory.array(0, "out", np.full(64, -1, np.int32))
    lowered = k.program(k.traced(slow_producer), ctas=2)
    ex.run(k.launch(lowered, [flag, out], ticks), memory=memory, limits=ex.Limits(jump=20_000))
    assert (out.array == arrives).all()


def test_work_takes_time() -> None:
    def busy(rounds: int) -> float:
        def body(bases, n):
            x = fx.Int32(fx.thread_idx.x)
            for _ in range(n):
                x = x * 3 + 1
            k.store(k.resource(bases[0]), fx.Int32(fx.thread_idx.x) * 4, x)

        memory = ex.Memory()
        out = memory.array(0, "out", np.zeros(64, np.int32))
        return ex.run(k.launch(k.program(k.traced(body), bases=1), [out], rounds), memory=memory).ticks

    assert busy(2000) > 1.9 * busy(1000)


# ---- the trace


LATE = ex.Schedule.adversarial(4, starve=ex.Pick(cta=0))


@pytest.mark.parametrize("engine", ENGINES)
def test_perfetto_structure(engine: str) -> None:
    _, report = trace(LATE, engine=engine)
    document: dict[str, Any] = json.loads(json.dumps(ex.perfetto(report)))
    events = document["traceEvents"]
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M"}
    complete = [e for e in events if e["ph"] == "X"]
    assert {e["ph"] for e in events} == {"M", "X"}
    assert all(set(e) == {"name", "cat", "ph", "pid", "tid", "ts", "dur"} for e in complete)
    assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in complete)
    assert {(e["pid"], e["tid"]) for e in complete} <= named
    assert {e["cat"] for e in complete} == {"stage", "barrier", "poll"}
    # Stages of a CTA follow each other and fill its life.
    for cta in (0, 1):
        life, *stages = [e for e in complete if e["tid"] == cta * 64]
        assert life["name"] == "CTA"
        assert stages[0]["ts"] == life["ts"]
        for before, after in itertools.pairwise(stages):
            assert abs(before["ts"] + before["dur"] - after["ts"]) < 0.002
        assert abs(stages[-1]["ts"] + stages[-1]["dur"] - life["ts"] - life["dur"]) < 0.002


@pytest.mark.parametrize("engine", ENGINES)
def test_summary_counts_are_the_kernels_own(engine: str) -> None:
    text, report = trace(LATE, engine=engine)
    assert report.bytes["store system"] >= 16 * handoffs.THREADS
    assert report.instructions["barrier"] == 4
    assert sum(report.instructions.values()) == report.wave_ops
    for word in ("instructions", "bytes", "waits", "poll", "handoffs.py"):
        assert word in text


def test_trace_files_and_refusal(tmp_path) -> None:
    _, report = trace(ex.Schedule.random(4))
    ex.write_perfetto(report, tmp_path / "run.json")
    assert json.loads((tmp_path / "run.json").read_text())["otherData"]["seed"] == 4
    _, silent = handoffs.run(handoffs.program(Handoff()), ex.Schedule.random(4))
    with pytest.raises(ex.BadLaunch, match="trace=True"):
        ex.perfetto(silent)


# ---- shrinking


def test_a_failing_schedule_shrinks_to_a_few_decisions() -> None:
    lowered = handoffs.program(Handoff(drain=False))

    def fails(schedule: ex.Schedule) -> bool:
        return not handoffs.run(lowered, schedule)[0]

    seed = next(seed for seed in range(50) if fails(ex.Schedule.random(seed)))
    _, report = handoffs.run(lowered, ex.Schedule.random(seed))
    small = ex.shrink(fails, report.decisions, attempts=120)
    assert fails(small)
    assert np.count_nonzero(small.decisions) < np.count_nonzero(report.decisions) / 2
    with pytest.raises(ValueError, match="do not fail"):
        ex.shrink(lambda schedule: False, report.decisions)


def test_a_finding_carries_its_decisions() -> None:
    lowered = handoffs.program(Handoff(writer=k.PLAIN, reader=k.PLAIN, drain=False))
    with pytest.raises(ex.Race) as caught:
        handoffs.run(lowered, ex.Schedule.random(17))
    with pytest.raises(ex.Race) as again:
        handoffs.run(lowered, ex.Schedule.replay(caught.value.decisions))
    assert again.value.places == caught.value.places
