"""A draft step in which a CTA of a rank can be made to fail at a hand-off, chosen when it is launched.

The kernel is traced from the very stages; only the two device words that hand data over are replaced: `publish`, and
`st` of a put. They read from spare words of the victim rank's `epoch` array which CTA fails from which hand-off on, and
how. Without a fault in those words the kernel computes what the shipping one computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache, partial
from typing import Any

import flydsl.expr as fx
import pytest
import torch

import monodraft.executor as ex
from monodraft.checkpoint.config import DraftConfig, MarkovKind
from monodraft.checkpoint.weights import DraftWeights
from monodraft.device import words as dw
from monodraft.drafter import Anchor, ContextRows
from monodraft.executor.fast import kernel as native
from monodraft.hosts.executor_drafter import ExecutorDrafter
from monodraft.hosts.workspace import Workspace
from monodraft.plan.order import turns
from monodraft.plan.shape import AllReduce, StepShape
from monodraft.plan.step import Plan
from monodraft.stages import attention_shares, context, exchange, layer, linear, markov, markov_inner, rows, step
from monodraft.stages.scope import Step
from monodraft.testing import random_config, random_weights

MODULES = (attention_shares, context, exchange, layer, linear, markov, markov_inner, rows, step)
FIRST = 4
"""Word of `epoch` where the fault stands: kind, CTA, hand-off, ticks."""


@dataclass(frozen=True)
class HandOff:
    """A put or publish of a launch: stage, layer or slot, region."""

    stage: str
    repeat: int
    region: str


def hand_offs(plan: Plan) -> list[HandOff]:
    """All hand-offs of a launch, in program order: a stage's puts, then its flags."""
    found = []
    for turn in turns(plan):
        stage = turn.stage
        regions = [region for region in stage.writes if region.startswith(("pairs.", "candidates"))]
        found += [HandOff(stage.name, turn.repeat, region) for region in [*regions, stage.flags] if region]
    return found


class Kind(IntEnum):
    """What becomes of the victim's hand-offs from the given one on."""

    NONE = 0
    DIES = 1
    LATE = 2
    STALE = 3


@dataclass(frozen=True)
class Fault:
    """CTA `cta` of rank `rank` fails at hand-off number `hand_off` (of `hand_offs`) of its launch.

    DIES: nothing that it hands over from then on arrives. LATE: it stands still before that hand-off until `ticks`
    after its deadline (below 0: before it). STALE: that hand-off alone carries the tag of the launch before.
    """

    kind: Kind = Kind.NONE
    rank: int = 0
    cta: int = 0
    hand_off: int = 0
    ticks: int = 0


def write_faults(workspace: Workspace, *faults: Fault) -> None:
    """Put faults, at most one a rank, where the victims' kernels read them; clears all others."""
    for rank, view in enumerate(workspace.local):
        own = next((fault for fault in faults if fault.rank == rank), Fault())
        view("epoch")[FIRST : FIRST + 4] = own.kind, own.cta, own.hand_off, own.ticks


class Notes(list[tuple[str, str, str]]):
    """The record of hand-offs; its last entry says which one is being traced."""


@dataclass
class Tracing:
    """What the replaced words know while a kernel is traced."""

    plan: Plan
    notes: Notes
    step: Any = None
    repeat: Any = None

    @property
    def puts(self) -> bool:
        """Whether a put is being traced: what is stored after it was noted, before anything else is."""
        return bool(self.notes) and self.notes[-1][0] == "put"

    def number(self) -> Any:
        """Number of the hand-off that is being traced."""
        _, stage, region = self.notes[-1]
        places = [i for i, each in enumerate(hand_offs(self.plan)) if (each.stage, each.region) == (stage, region)]
        if len(places) == 1:
            return fx.Int32(places[0])
        return self.repeat * (places[1] - places[0]) + places[0]

    def word(self, index: int) -> Any:
        """A word of the fault."""
        return dw.first_lane(dw.ld(self.step.local.at("epoch"), fx.Int32(FIRST + index)))

    def victim(self) -> Any:
        return self.step.cta == self.word(1)

    def dead(self) -> Any:
        return (self.word(0) == Kind.DIES) & self.victim() & (self.number() >= self.word(2))

    def tag_error(self) -> Any:
        """What is subtracted from the tag of this hand-off."""
        active = (self.word(0) == Kind.STALE) & self.victim() & (self.number() == self.word(2))
        return active.select(fx.Int32(1), fx.Int32(0))

    def stand_still(self) -> None:
        """A late victim waits."""
        active = (self.word(0) == Kind.LATE) & self.victim() & (self.number() == self.word(2))
        until = self.step.bound.deadline + fx.Int64(self.word(3))
        spin_until(active.select(until, fx.Int64(0)))


@dw.traced
def spin_until(time: Any) -> None:
    """Wait for a time of the 100 MHz clock."""
    now = dw.clock()
    while now < time:
        now = dw.clock()


class Words:
    """The device words, with hand-offs that can fail."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def __getattr__(self, name: str) -> Any:
        return getattr(dw, name)

    def st(self, base: Any, idx: Any, v: Any, cm: int = 0, nbytes: Any = None) -> None:
        if not self._tracing.puts:
            dw.st(base, idx, v, cm=cm, nbytes=nbytes)
            return
        self._tracing.stand_still()
        error = self._tracing.tag_error()
        words = [v[i] - error if i % 2 else v[i] for i in range(v.numel)]
        idx = self._tracing.dead().select(fx.Int32(nbytes // 4), idx)
        dw.st(base, idx, fx.Vector.from_elements(words, fx.Int32), cm=cm, nbytes=nbytes)

    def publish(self, base: Any, i: Any, tag: Any, cm: int = dw.CM_DEV) -> None:
        self._tracing.stand_still()
        nowhere = self._tracing.step.local.at("epoch") + 60 - fx.Int64(i) * 4
        base = self._tracing.dead().select(nowhere, base)
        dw.publish(base, i, tag - self._tracing.tag_error(), cm=cm)


@contextmanager
def failing(tracing: Tracing) -> Iterator[None]:
    """Stages traced in here hand over through `Words`."""
    scope, decoder_layer, draft_slot = step.scope, step.decoder_layer, markov.draft_slot

    def faulty_scope(*args: Any, **kwargs: Any) -> Step:
        tracing.step = scope(*args, **kwargs)
        return tracing.step

    def faulty_layer(own: Step, index: Any) -> None:
        tracing.repeat = index
        decoder_layer(own, index)

    def faulty_slot(own: Step, slot: Any, held: Any) -> list[Any]:
        tracing.repeat = slot
        return draft_slot(own, slot, held)

    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            if hasattr(module, "dw"):
                patch.setattr(module, "dw", Words(tracing))
        patch.setattr(step, "scope", faulty_scope)
        patch.setattr(step, "decoder_layer", faulty_layer)
        patch.setattr(markov, "draft_slot", faulty_slot)
        yield


def faulty_program(plan: Plan) -> ex.Program:
    """The plan's kernel, lowered, with hand-offs that can be made to fail."""
    tracing = Tracing(plan, Notes())
    with failing(tracing):
        return ex.lower(step.launcher(plan, tracing.notes), *step.placeholders())


@contextmanager
def quickly_translated() -> Iterator[None]:
    """Native code of kernels without optimisation: a fifth of the time to make, and these launches are short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "compiled", partial(native.compiled, optimise=0))
        yield


CTAS = 3
TICKS = 700_000
"""Bound of a launch: ten times what the step takes undisturbed."""
JUMP = 2_000
"""Most ticks that the clock skips while everybody polls."""
ROWS, TOKEN = 5, 3


@dataclass(frozen=True)
class Setting:
    """What the plans of the launches here differ in. 2 ranks, a block of 2, 2 layers; so small that a launch takes a
    tenth of a second."""

    mode: AllReduce = AllReduce.TWO_STAGE
    markov: MarkovKind = MarkovKind.VANILLA
    splits: int = 0
    requests: int = 1

    def __str__(self) -> str:
        parts = [self.mode.value] + ([] if self.markov is MarkovKind.VANILLA else [self.markov.value])
        return "-".join([*parts, *([f"splits{self.splits}"] if self.splits else [])])

    @property
    def ctas(self) -> int:
        """Keys split over CTAs need one for each request, K/V head (2 a rank) and share."""
        return max(CTAS, 2 * self.requests * self.splits)

    @property
    def config(self) -> DraftConfig:
        return random_config(
            block_size=2, vocab_size=128, ffn_size=128, hidden_size=128, markov_rank=32, markov=self.markov
        )

    @property
    def weights(self) -> DraftWeights:
        return weights_of(self.markov)

    def plan(self, requests: int = 1, context_rows: int = 16) -> Plan:
        """The plan of a launch."""
        shape = StepShape(
            self.config, ranks=2, ctas=self.ctas, requests=requests, context_rows=context_rows, capacity=self.requests,
            pages=4 * self.requests, page_size=32, positions=128, all_reduce=self.mode, splits=self.splits,
        )  # fmt: skip
        return Plan(shape)


@cache
def weights_of(markov: MarkovKind) -> DraftWeights:
    return random_weights(Setting(markov=markov).config)


class FaultyDrafter(ExecutorDrafter):
    """An ExecutorDrafter on 2 ranks whose launches can fail. `turn` drafts the same block again and again."""

    def __init__(self, setting: Setting = Setting(), ticks: int = TICKS) -> None:
        super().__init__(
            setting.config,
            setting.weights,
            ranks=2,
            ctas=setting.ctas,
            positions=128,
            page_size=32,
            max_requests=setting.requests,
            all_reduce=setting.mode,
            splits=setting.splits,
            ticks=ticks,
            gpu=ex.Gpu.mi355x(cus=setting.ctas, xcds=setting.ctas),  # no two CTAs share an L2
            schedule=lambda _: self.schedule_of_turn,
        )
        self._run["limits"] = ex.Limits(jump=JUMP)
        self.schedule_of_turn = ex.Schedule.round_robin()

    def program(self, requests: int, context_rows: int, sampled: bool = False) -> tuple[Plan, ex.Program]:
        key = requests, context_rows, sampled
        if key not in self._programs:
            plan = Plan(replace(self.shape, requests=requests, context_rows=context_rows, sampled=sampled))
            self._programs[key] = plan, faulty_program(plan)
        return self._programs[key]

    def turn(self, *faults: Fault, schedule: ex.Schedule | None = None, request: int = 0) -> torch.Tensor:
        """Open a request, commit ROWS rows, draft; the tokens. A StepFailed leaves the request open for `again`."""
        self.schedule_of_turn = schedule or ex.Schedule.round_robin()
        if request in self._tables:  # left by a test that failed
            self.reset()
            self.close(request)
        self.open(request)
        self.commit([ContextRows(request, 0, features())])
        write_faults(self.workspace, *faults)
        tokens = self.again(request)
        self.close(request)
        return tokens

    def again(self, request: int = 0) -> torch.Tensor:
        """Draft from where the request stands."""
        with quickly_translated():
            return self.propose([Anchor(request, TOKEN, ROWS)])[0].tokens

    def recovered(self, request: int = 0) -> torch.Tensor:
        """After a StepFailed: the same call once more, nothing failing, after `reset`."""
        write_faults(self.workspace)
        self.schedule_of_turn = ex.Schedule.round_robin()
        self.reset()
        tokens = self.again(request)
        self.close(request)
        return tokens


def features() -> torch.Tensor:
    """ROWS context rows."""
    return torch.randn(ROWS, Setting().config.feature_size, generator=torch.Generator().manual_seed(1)).bfloat16()
