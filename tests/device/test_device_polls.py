"""What a bounded wait costs, read off its assembly: nothing on the success path, a compare a failed round."""

from __future__ import annotations

import pytest

pytest.importorskip("flydsl")

from device_compiled import kernel

from monodraft.device.isa import Kernel
from monodraft.device.words import CHECK_EVERY

pytestmark = pytest.mark.compile_only

WAITS = ("_spin", "poll_pairs", "poll_rows", "wait_flags", "row_sum4")


def wait_mark(compiled: Kernel) -> int:
    (mark,) = [i for i, each in enumerate(compiled.instructions) if each.mark == "wait"]
    return mark


def poll_loop(compiled: Kernel) -> frozenset[int]:
    (loop,) = compiled.loops()
    return loop


def health_loads(compiled: Kernel) -> set[int]:
    """Loads of the poll loop at a fixed place (no per-lane offset)."""
    return {
        i for i in poll_loop(compiled) if (x := compiled.instructions[i]).is_load and x.operands.split(", ")[1] == "off"
    }


def clocks(compiled: Kernel) -> set[int]:
    return {i for i, each in enumerate(compiled.instructions) if each.mnemonic == "s_memrealtime"}


@pytest.mark.parametrize("name", WAITS)
def test_success_at_once_reads_neither_clock_nor_health(name: str) -> None:
    """Outside the loop, which only a failed round enters, there is no clock read and no load but the round's own."""
    compiled = kernel(name)
    loop = poll_loop(compiled)
    assert clocks(compiled) <= loop
    assert len(clocks(compiled)) == 1
    assert len(health_loads(compiled)) == 1
    # The success path exists: the end is reachable without entering the loop.
    end = next(i for i, each in enumerate(compiled.instructions) if each.mnemonic == "s_endpgm")
    assert end in compiled.reachable(wait_mark(compiled), frozenset(loop))


@pytest.mark.parametrize("name", WAITS)
def test_rounds_between_checks_skip_clock_and_health(name: str) -> None:
    """The loop can go round without clock and health word: only every CHECK_EVERY-th round takes that branch."""
    compiled = kernel(name)
    checks = frozenset(clocks(compiled) | health_loads(compiled))
    short = compiled.loops(without=checks)
    assert len(short) == 1
    masks = [str(compiled.instructions[i]) for i in poll_loop(compiled) if "s_and_b32" in str(compiled.instructions[i])]
    assert any(mask.endswith(f", {CHECK_EVERY - 1}") for mask in masks), masks


@pytest.mark.parametrize("name", WAITS)
def test_failed_round_costs_the_loads_and_a_few_scalar_operations(name: str) -> None:
    """Beyond the loads and the tag compares, a round between checks costs at most 15 instructions."""
    compiled = kernel(name)
    (short,) = compiled.loops(without=frozenset(clocks(compiled) | health_loads(compiled)))
    kinds = [compiled.instructions[i] for i in short]
    loads = [x for x in kinds if x.is_load]
    compares = [x for x in kinds if x.mnemonic.startswith(("v_cmp_ne", "s_or_b64", "v_or", "v_cndmask"))]
    moves = [x for x in kinds if x.mnemonic.startswith(("s_mov", "v_mov", "v_add"))]
    assert len(kinds) - len(loads) - len(compares) - len(moves) <= 15, [str(x) for x in kinds]


@pytest.mark.parametrize("name", WAITS)
def test_loads_of_a_round_go_out_together_and_are_waited_for_once(name: str) -> None:
    """In the order of the text: all loads of a round, then one s_waitcnt vmcnt(0), and no other vmcnt wait."""
    compiled = kernel(name)
    loop = sorted(poll_loop(compiled) - health_loads(compiled))
    rounds = [i for i in loop if compiled.instructions[i].is_load]
    span = [compiled.instructions[i] for i in loop if rounds[0] <= i <= rounds[-1]]
    assert not [x for x in span if x.mnemonic == "s_waitcnt"], [str(x) for x in span]
    checked = max(clocks(compiled) | health_loads(compiled))
    after = [compiled.instructions[i] for i in loop if i > rounds[-1]]
    waits = [x for i, x in zip((i for i in loop if i > rounds[-1]), after, strict=True) if "vmcnt" in x.operands]
    # One for the round; the health load of a checked round has its own.
    assert all(x.drains for x in waits)
    assert len(waits) == (2 if checked > rounds[-1] else 1)


@pytest.mark.parametrize(("name", "loads"), [("poll_pairs", 4), ("poll_rows", 3), ("wait_flags", 1), ("row_sum4", 16)])
def test_a_round_is_one_batch_of_wide_loads(name: str, loads: int) -> None:
    compiled = kernel(name)
    assert len([i for i in poll_loop(compiled) - health_loads(compiled) if compiled.instructions[i].is_load]) == loads
