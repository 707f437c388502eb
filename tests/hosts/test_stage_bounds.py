"""Every stage of the one-launch kernel against float64 of its own inputs, and sabotaged stages that must be noticed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flydsl")

from drafts import Case, Conversation, drafters
from left_behind import Launch
from number_sabotages import SABOTAGES
from stage_bounds import STAGES, Found, check_launch
from step_sabotages import Sabotage, mutant
from test_hosts_equality import EVERY, MAIN

import monodraft.executor as ex
from monodraft.checkpoint import load_drafter
from monodraft.checkpoint.config import Family, MarkovKind, SwigluOai
from monodraft.checkpoint.shipped import DRAFTER, TARGET
from monodraft.checkpoint.weights import DraftWeights
from monodraft.drafter import Anchor, ContextRows, Draft
from monodraft.executor.fast import kernel as native
from monodraft.hosts.executor_drafter import ExecutorDrafter
from monodraft.loop.pair import load_target, load_tokenizer
from monodraft.loop.request import Request
from monodraft.loop.sampling import Sampling
from monodraft.loop.session import Session
from monodraft.plan.layout import weight_block
from monodraft.plan.step import Plan
from monodraft.testing import random_weights

pytestmark = pytest.mark.executed

CLAMPED = Case(overrides=(("swiglu", SwigluOai(limit=1.0)),))
"""M3.1's layer with clamps that random gates reach."""

MOST_OPEN = 1 / 16
"""Share of a stage's values that may be left to a choice, mostly of two neighbours: what a bound proves less about."""
BEHIND_GATES = 1 / 4
"""The same of the rnn's logits: its state is not in memory, and an open value of it opens the slots that follow."""


def launched(executed: ExecutorDrafter, conversation: Conversation) -> Launch:
    """A turn of the conversation, and what it left."""
    conversation.turn()
    return Launch(executed, random_weights(executed.config), conversation.anchors)


def quickly_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Native code of the executor without optimisation: a third of the time to make, and few launches."""
    monkeypatch.setattr(native, "compiled", partial(native.compiled, optimise=0))


def check_open(found: Found) -> None:
    """Hardly a value was left to a choice."""
    print({stage: f"{share:.2%}" for stage, share in found.shares.items()})
    for stage, share in found.shares.items():
        behind = stage == "markov" and found.launch.shape.config.markov is MarkovKind.RNN
        assert share < (BEHIND_GATES if behind else MOST_OPEN), (stage, share)


@pytest.mark.parametrize("case", [CLAMPED, MAIN, Case(Family.QWEN3), Case(Family.QWEN3, 2)], ids=str)
def test_every_stage_is_what_float64_makes_of_its_inputs(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    if case is not MAIN:  # which others use too, and longer
        quickly_translated(monkeypatch)
    executed, _ = drafters(case)
    conversation = Conversation((executed,), case.requests, seed=3)
    found = None
    try:
        for _ in range(3):
            found = check_launch(launched(executed, conversation), found)
    finally:
        conversation.close()
    assert found is not None
    check_open(found)


@pytest.mark.slow
@pytest.mark.parametrize("case", EVERY, ids=str)
def test_every_stage_of_every_family_and_rank_count(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    test_every_stage_is_what_float64_makes_of_its_inputs(case, monkeypatch)


class Watched:
    """The kernel's drafter, every launch of which is checked."""

    def __init__(self, executed: ExecutorDrafter, weights: DraftWeights) -> None:
        self.executed, self.weights, self.found = executed, weights, None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.executed, name)

    def propose(self, anchors: Sequence[Anchor], *, logits: bool = False) -> list[Draft]:
        drafts = self.executed.propose(anchors, logits=logits)
        self.found = check_launch(Launch(self.executed, self.weights, anchors), self.found)
        return drafts


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_every_stage_of_every_launch_of_a_generation(ranks: int) -> None:
    """Trained weights and a target's own features: values of other sizes than random ones."""
    config, weights = load_drafter(DRAFTER, TARGET)
    watched = Watched(ExecutorDrafter(config, weights, ranks=ranks, max_requests=1), weights)
    session = Session(load_target(TARGET, config, dtype=torch.float32, device="cpu"), watched)
    prompt = tuple(load_tokenizer(TARGET)("def parse(line):")["input_ids"])
    session.add(Request(prompt=prompt, max_new_tokens=32, sampling=Sampling(0.0), seed=5))
    while session.running:
        session.step()
    assert watched.found is not None
    check_open(watched.found)


def long_context(executed: ExecutorDrafter, case: Case) -> Conversation:
    """A conversation past the window and past a page."""
    conversation = Conversation((executed,), case.requests, seed=4)
    features = torch.randn(70, executed.config.feature_size, generator=torch.Generator().manual_seed(6)).bfloat16()
    for request in range(case.requests):
        executed.commit([ContextRows(request, 0, features)])
        conversation.positions[request] = len(features)
    return conversation


def turned_by_one_percent(angles: np.ndarray) -> None:
    """cos and sin [position][2][R / 2] of angles a hundredth larger."""
    cos, sin = angles[:, 0].copy(), angles[:, 1].copy()
    wide = 1.01 * np.unwrap(np.arctan2(sin, cos).astype(np.float64), axis=0)
    angles[:, 0], angles[:, 1] = np.cos(wide), np.sin(wide)


def one_more(values: np.ndarray) -> None:
    """The first element (its bits, its byte) plus one."""
    values.reshape(-1)[0] += 1


def doubled(values: np.ndarray) -> None:
    """A bf16 weight times two, by its exponent."""
    values.reshape(-1)[5] += 1 << 7


WEIGHTS: list[tuple[str, str, Callable[[np.ndarray], None]]] = [
    ("pool", "rope", turned_by_one_percent),
    ("attention", "windows", lambda windows: windows.__setitem__(-1, 63)),
    ("attention", "q_norm", doubled),
    ("qkv", "qkv.scales", one_more),
    ("qkv", "input_norm", doubled),
    ("o", "o.scales", one_more),
    ("gate_up", "gate_up.scales", one_more),
    ("gate_up", "post_norm", doubled),
    ("down", "down.scales", one_more),
    ("final_norm", "final_norm", doubled),
    ("fc", "fc", doubled),
    ("context_norm", "hidden_norm", doubled),
    ("lm_head", "lm_head", doubled),
    ("markov", "markov_w2", doubled),
    ("confidence", "confidence", doubled),
]

RNN_WEIGHTS = [
    ("inner", "markov_inner_hidden", doubled),
    ("markov", "markov_inner_serial", doubled),
    ("markov", "markov_inner_bias", one_more),
]


def weight_array(executed: ExecutorDrafter, rank: int, name: str) -> np.ndarray:
    """A rank's weights of that name (of the last layer) as the kernel reads them."""
    block = weight_block(executed.shape)
    array = block[name]
    layer = executed.shape.layers - 1 if array.per_layer else 0
    start = block.offset(name, layer)
    kinds: dict[str, Any] = {"uint8": np.uint8, "bfloat16": np.uint16, "int32": np.int32, "float32": np.float32}
    whole = executed.workspace.weights[rank].array[start : start + array.nbytes]
    return whole.view(kinds[array.dtype]).reshape(array.shape)


def test_one_wrong_weight_is_noticed_in_its_stage() -> None:
    spoil(MAIN, WEIGHTS)


@pytest.mark.slow
def test_one_wrong_weight_of_the_rnn_is_noticed_in_its_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    quickly_translated(monkeypatch)
    spoil(Case(Family.QWEN3, markov=MarkovKind.RNN), RNN_WEIGHTS)


def spoil(case: Case, weights: list[tuple[str, str, Callable[[np.ndarray], None]]]) -> None:
    """The right kernel with one wrong number in the last rank's memory: a scale, an exponent, the angles, a window."""
    executed, _ = drafters(case)
    conversation = long_context(executed, case)
    try:
        check_open(check_launch(launched(executed, conversation)))
        for stage, name, change in weights:
            values = weight_array(executed, case.ranks - 1, name)
            right = values.copy()
            change(values)
            launch = launched(executed, conversation)
            values[...] = right
            with pytest.raises(AssertionError, match=f"^{stage} of rank"):
                check_launch(launch)
        check_open(check_launch(launched(executed, conversation)))
    finally:
        conversation.close()


class MutantDrafter(ExecutorDrafter):
    """A drafter on 2 ranks whose kernel is traced from a copy of the stages."""

    def __init__(self, sabotage: Sabotage) -> None:
        self._step = mutant(sabotage)
        config = CLAMPED.config
        super().__init__(config, random_weights(config), ranks=2, ctas=4, positions=512, max_requests=1)

    def program(self, requests: int, context_rows: int, sampled: bool = False) -> Any:
        key = requests, context_rows, sampled
        if key not in self._programs:
            plan = Plan(replace(self.shape, requests=requests, context_rows=context_rows))
            self._programs[key] = plan, ex.lower(self._step.launcher(plan), *self._step.placeholders())
        return self._programs[key]


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "sabotage"), SABOTAGES, ids=lambda each: getattr(each, "name", each))
def test_a_sabotaged_stage_is_noticed(stage: str, sabotage: Sabotage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of that stage is the first to fail."""
    quickly_translated(monkeypatch)
    executed = MutantDrafter(sabotage)
    conversation = long_context(executed, Case(ranks=2))
    launch = launched(executed, conversation)
    failed = next((name for name, failure in failures(launch) if failure is not None), None)
    assert failed == stage


def failures(launch: Launch) -> list[tuple[str, str | None]]:
    """(stage, what is wrong) in the order of the step."""
    found, results = Found(launch), []
    for check_stage in STAGES:
        failure = None
        try:
            for rank in range(launch.shape.ranks):
                check_stage(found, rank)
        except AssertionError as error:
            failure = str(error)
        results.append((check_stage.__name__, failure))
    return results
