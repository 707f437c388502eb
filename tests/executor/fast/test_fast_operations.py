"""Every family of operations gives the same words on both engines, over edge values and random ones."""

from typing import Any

import flydsl.expr as fx
import kernel_words as k
import numpy as np
import operation_table as table
import pytest

import monodraft.executor as ex

pytestmark = pytest.mark.executed
WAVES = 16
MODEL = ex.MemoryModel.sequential().without("races")


def program(body: Any) -> tuple[ex.Program, int]:
    """A kernel that applies a body to three input words a lane, and how many words it writes."""
    count: list[int] = []
    inner = k.traced(body)

    def kernel(bases: list[Any], n: Any) -> None:
        lane = fx.Int32(fx.block_idx.x) * 64 + fx.Int32(fx.thread_idx.x)
        words = [k.load(k.resource(base), lane * 4) for base in bases[:3]]
        results = inner(*words)
        count.append(len(results))
        for row, item in enumerate(results):
            k.store(k.resource(bases[3]), row * (WAVES * 256) + lane * 4, item)

    lowered = k.program(kernel, ctas=WAVES, bases=4)
    return lowered, count[-1]


def outcome(lowered: ex.Program, rows: int, words: np.ndarray, engine: Any) -> np.ndarray:
    memory = ex.Memory()
    bases = [memory.array(0, name, row) for name, row in zip("abc", words, strict=True)]
    out = memory.array(0, "out", np.zeros((rows, WAVES * 64), np.int32))
    ex.run(k.launch(lowered, [*bases, out]), memory=memory, model=MODEL, engine=engine)
    return out.array.copy()


@pytest.mark.parametrize("name", table.BODIES)
def test_both_engines_give_the_same_words(name: str) -> None:
    lowered, rows = program(table.BODIES[name])
    words = table.inputs(WAVES)
    reference, fast = (outcome(lowered, rows, words, engine) for engine in ("reference", "fast"))
    different = np.argwhere(reference != fast)
    if different.size:
        row, lane = different[0]
        given = [f"{int(w) & 0xFFFFFFFF:#010x}" for w in words[:, lane]]
        seen = [f"{int(each[row, lane]) & 0xFFFFFFFF:#010x}" for each in (reference, fast)]
        pytest.fail(f"{len(different)} words differ; result {row} of {given}: reference {seen[0]}, fast {seen[1]}")
