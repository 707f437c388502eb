"""Executor drafters and their references, made once a process: tracing and translating a kernel takes many seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from comparison import Evidence, Outcome, check_rows, compare_draft, unrounded
from head_bounds import Heads

import monodraft.executor as ex
from monodraft.checkpoint.config import DraftConfig, Family, MarkovKind
from monodraft.drafter import Anchor, ContextRows
from monodraft.hosts.executor_drafter import ExecutorDrafter
from monodraft.plan.shape import AllReduce
from monodraft.reference import ReferenceDrafter
from monodraft.testing import random_config, random_weights

CTAS = 4
OUTPUTS = ("tokens", "confidence", "final")


@dataclass(frozen=True)
class Case:
    """A small drafter on some ranks: `requests` blocks of 7 a launch."""

    family: Family = Family.MINIMAX_M31
    ranks: int = 1
    requests: int = 1
    markov: MarkovKind = MarkovKind.VANILLA
    all_reduce: AllReduce = AllReduce.AUTO
    splits: int = 0
    overrides: tuple[tuple[str, Any], ...] = ()

    @property
    def config(self) -> DraftConfig:
        return random_config(self.family, markov=self.markov, **dict(self.overrides))

    def __str__(self) -> str:
        more = [f"{name}={value}" for name, value in self.overrides]
        more += [f"splits={self.splits}"] if self.splits else []
        parts = [self.family.value, f"ranks{self.ranks}", f"requests{self.requests}", self.markov.value]
        return "-".join([*parts, self.all_reduce.value, *more])


@cache
def drafters(case: Case) -> tuple[ExecutorDrafter, ReferenceDrafter]:
    """The executor's drafter (schedules seeded by the launch's number, harsh memory) and the reference's."""
    config = case.config
    weights = random_weights(config)
    executed = ExecutorDrafter(
        config,
        weights,
        ranks=case.ranks,
        ctas=CTAS,
        positions=512,
        max_requests=max(2, case.requests),
        all_reduce=case.all_reduce,
        splits=case.splits,
        schedule=ex.Schedule.random,
    )
    return executed, ReferenceDrafter(config, weights, "mxfp8", ranks=case.ranks)


@dataclass
class Conversation:
    """The same commits and proposals to several drafters, round after round, from one seed."""

    drafters: tuple[Any, ...]
    requests: int
    seed: int = 0
    temperature: float = 0.0
    positions: list[int] = field(default_factory=list)
    anchors: list[Anchor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._generator = torch.Generator().manual_seed(self.seed)
        self.positions = [0] * self.requests
        for drafter in self.drafters:
            for request in range(self.requests):
                drafter.open(request)

    def close(self) -> None:
        """Leave the drafters as they were."""
        for drafter in self.drafters:
            for request in range(self.requests):
                drafter.close(request)

    def number(self, least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (1,), generator=self._generator))

    def rows(self, most: int) -> list[ContextRows]:
        """1 .. `most` new rows for every request."""
        config = self.drafters[0].config
        rows = []
        for request in range(self.requests):
            count = self.number(1, most)
            features = torch.randn(count, config.feature_size, generator=self._generator).bfloat16()
            rows.append(ContextRows(request, self.positions[request], features))
            self.positions[request] += count
        return rows

    def turn(self, most: int = 8) -> list[Any]:
        """Commit and propose once: for every request a tuple of drafts, references' with their margins."""
        rows = self.rows(most)
        vocabulary = self.drafters[0].config.vocab_size
        self.anchors = [
            Anchor(request, self.number(0, vocabulary - 1), position, self.temperature, 1000 + request)
            for request, position in enumerate(self.positions)
        ]
        results = []
        for drafter in self.drafters:
            drafter.commit(rows)
            propose = getattr(drafter, "propose_with_margins", drafter.propose)
            results.append(propose(self.anchors, logits=True))
        return list(zip(*results, strict=True))


def compare(case: Case, rounds: int, seed: int = 0, temperature: float = 0.0) -> Outcome:
    """Drafts of the executor against the reference's, over some rounds: final rows (`check_rows`), tokens from the
    kernel's own rows and against the reference's (`compare_draft`). All ranks are byte-equal."""
    executed, reference = drafters(case)
    weights = random_weights(executed.config)
    exact, heads = unrounded(executed.config, weights), Heads(executed.config, weights)
    conversation = Conversation((executed, reference, exact), case.requests, seed, temperature)
    outcome = Outcome()
    try:
        for _ in range(rounds):
            with reference.recording() as rounded, exact.recording() as smooth:
                drafts = conversation.turn()
            rows = final_rows(executed, len(rounded["final"]))
            check_rows(rows, rounded["final"], smooth["final"], outcome)
            blocks = (each.double().split(executed.config.block_size) for each in (rows, rounded["final"]))
            for (ours, wanted, _), anchor, kernel, other in zip(drafts, conversation.anchors, *blocks, strict=True):
                evidence = Evidence(heads, anchor, kernel, other)
                compare_draft(ours, wanted, outcome, same_rows=torch.equal(kernel, other), evidence=evidence)
            assert len(set(outputs(executed))) == 1, "ranks differ"
    finally:
        conversation.close()
    return outcome


def final_rows(executed: ExecutorDrafter, count: int) -> torch.Tensor:
    """The kernel's first `count` final rows, bf16."""
    return torch.from_numpy(executed.workspace.local[0]("final")[:count].view("int16").copy()).view(torch.bfloat16)


def outputs(drafter: ExecutorDrafter) -> list[bytes]:
    """What each rank wrote."""
    return [b"".join(view(name).tobytes() for name in OUTPUTS) for view in drafter.workspace.local]
