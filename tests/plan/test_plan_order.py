"""The proof that a plan cannot deadlock and overwrites nothing early; seen to fail on plans that are wrong."""

from dataclasses import replace

import pytest

from monodraft.errors import KernelError
from monodraft.plan.order import Order, check_order, turns
from monodraft.plan.shape import AllReduce, StepShape
from monodraft.plan.step import Plan, Stage
from monodraft.testing import random_config

pytestmark = pytest.mark.numbers

CONFIG = random_config(num_kv_heads=2)


def plan(**options: object) -> Plan:
    return Plan(StepShape(CONFIG, **{"ctas": 4, "positions": 512, **options}))  # type: ignore[arg-type]


class Altered(Plan):
    """A plan with some stages changed."""

    def __init__(self, base: Plan, change: dict[str, dict[str, object]], without: tuple[str, ...] = ()) -> None:
        super().__init__(base.shape)
        stages: list[Stage] = [
            replace(stage, **change.get(stage.name, {}))  # type: ignore[arg-type]
            for stage in base.stages
            if stage.name not in without
        ]
        self.__dict__["stages"] = tuple(stages)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("ctas", [2, 5, 8])
@pytest.mark.parametrize("algorithm", [AllReduce.ONE_SHOT, AllReduce.TWO_STAGE])
def test_every_plan_is_in_order(ranks: int, ctas: int, algorithm: AllReduce) -> None:
    if ranks == 1 and algorithm is AllReduce.TWO_STAGE:
        pytest.skip("one rank has nothing to reduce")
    for rows in (0, 16):
        each = plan(ranks=ranks, ctas=ctas, requests=2, context_rows=rows, all_reduce=algorithm)
        assert check_order(each) > 0


@pytest.mark.parametrize("splits", [2, 4])
def test_split_keys_are_in_order(splits: int) -> None:
    assert check_order(plan(ranks=2, ctas=8, splits=splits)) > 0
    with pytest.raises(KernelError, match="reads what may not have been written"):
        check_order(Altered(plan(ranks=2, ctas=8, splits=splits), {"attention_join": {"waits": ()}}))


def test_commit_only_launches_are_in_order() -> None:
    assert check_order(plan(requests=0)) > 0


@pytest.mark.parametrize(
    ("stage", "region"),
    [("qkv", "x8"), ("attention", "qkv"), ("o", "attention"), ("gate_up", "x8"), ("down", "act"), ("lm_head", "final")],
)
def test_a_missing_wait_is_found(stage: str, region: str) -> None:
    """Without the wait of a stage, what it reads may not have been written."""
    with pytest.raises(KernelError, match="reads what may not have been written") as error:
        check_order(Altered(plan(ranks=2), {stage: {"waits": ()}}))
    assert error.value.faults[0].where == region


def test_exchange_memory_that_is_put_before_peers_have_read_is_found() -> None:
    """Pairs of the next launch would race if nothing waited for the other rank."""
    base = plan(ranks=2)
    with pytest.raises(KernelError, match="overwrites what may still be read"):
        check_order(Altered(base, {"post": {"waits": ()}, "input": {"waits": ()}, "chain": {"waits": ()}}))


def test_a_wait_for_a_later_stage_is_a_deadlock() -> None:
    base = plan()
    later = base.stage("gate_up").waits[0]
    with pytest.raises(KernelError, match="deadlock"):
        check_order(Altered(base, {"qkv": {"waits": (replace(later, producer="down", region="flags.act"),)}}))


def test_a_slice_poll_knows_only_its_own_tiles() -> None:
    """Two stages: what one rank's sum stage has heard is less than what every o tile knows."""
    two = plan(ranks=2, ctas=16, all_reduce=AllReduce.TWO_STAGE)
    order = Order(two)
    heard = order.after((0, order.turn("o", 0)), (0, order.turn("o_sum", 0)), across=True)
    assert heard.any()
    assert not heard.all()
    assert order.after((0, order.turn("o", 0)), (0, order.turn("gate_up", 0)), across=True).all()


def test_turns_run_layers_and_slots_in_order() -> None:
    names = [(turn.stage.name, turn.repeat) for turn in turns(plan())]
    assert names.index(("input", 0)) + 1 == names.index(("qkv", 1))
    assert names[-2:] == [("chain", 6), ("confidence", 0)] or names[-1] == ("confidence", 0)
    assert names.count(("chain", 3)) == 1
