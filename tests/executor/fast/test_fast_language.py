"""The language cases of the executor on the fast engine: every way of branching and looping that FlyDSL rewrites."""

from typing import Any

import flydsl.expr as fx
import kernel_words as k
import numpy as np
import pytest
from test_executor_language import CASES

import monodraft.executor as ex
from monodraft.executor.fast import prepare

pytestmark = pytest.mark.executed
SCHEDULES = [ex.Schedule.round_robin(), *map(ex.Schedule.random, range(4)), *map(ex.Schedule.adversarial, range(2))]


@pytest.mark.parametrize(("function", "wanted"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_language(function: Any, wanted: Any) -> None:
    inner = k.traced(function)

    def body(bases: list[Any], n: Any) -> None:
        t = fx.Int32(fx.thread_idx.x)
        k.store(k.resource(bases[0]), t * 4, inner(t, n))

    memory = ex.Memory()
    out = memory.array(0, "out", np.zeros(64, np.int32))
    runner = prepare(k.launch(k.program(body, bases=1), [out], 5), memory=memory)
    for schedule in SCHEDULES:
        runner.run(schedule)
        np.testing.assert_array_equal(out.array, np.broadcast_to(np.asarray(wanted, np.int32), 64))
