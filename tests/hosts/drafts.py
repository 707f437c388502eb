"""Executor drafters and their references, made once a process: tracing and translating a kernel takes many seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

import monodraft.executor as ex
from monodraft.checkpoint.config import DraftConfig, Family, MarkovKind
from monodraft.drafter import Anchor, ContextRows, Draft
from monodraft.hosts.executor_drafter import ExecutorDrafter
from monodraft.plan.shape import AllReduce
from monodraft.reference import ReferenceDrafter
from monodraft.reference.drafter import MarginDraft
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
        anchors = [
            Anchor(request, self.number(0, vocabulary - 1), position, self.temperature, 1000 + request)
            for request, position in enumerate(self.positions)
        ]
        results = []
        for drafter in self.drafters:
            drafter.commit(rows)
            propose = getattr(drafter, "propose_with_margins", drafter.propose)
            results.append(propose(anchors, logits=True))
        return list(zip(*results, strict=True))


@dataclass
class Outcome:
    """What a comparison found: drafted tokens compared, and near ties at which the two parted (margin, bound)."""

    compared: int = 0
    near_ties: list[tuple[float, float]] = field(default_factory=list)
    error: float = 0.0
    noise: float = 0.0


def compare(case: Case, rounds: int, seed: int = 0, temperature: float = 0.0) -> Outcome:
    """Drafts of the executor against the reference's, over some rounds.

    Tokens are equal, or part where the reference's lead is at most twice the largest difference of that row's logits:
    no smaller lead can be turned. Final rows differ from the `mxfp8` reference by no more than that differs from exact
    arithmetic, in the root mean square: f32 sums in another order turn a rounding to bf16 here and there, that may turn
    one to e4m3, and no chain of such turns is larger than the roundings themselves. All ranks are byte-equal.
    """
    executed, reference = drafters(case)
    exact = ReferenceDrafter(executed.config, random_weights(executed.config), "exact")
    conversation = Conversation((executed, reference, exact), case.requests, seed, temperature)
    outcome = Outcome()
    try:
        for _ in range(rounds):
            with reference.recording() as rounded, exact.recording() as smooth:
                drafts = conversation.turn()
            final = torch.from_numpy(executed.workspace.local[0]("final").view("int16").copy()).view(torch.bfloat16)
            final = final[: len(rounded["final"])].double()
            for ours, wanted, _ in drafts:
                compare_draft(ours, wanted, outcome, same_rows=torch.equal(final, rounded["final"].double()))
            outcome.error = max(outcome.error, float((final - rounded["final"]).norm() / final.norm()))
            outcome.noise = max(outcome.noise, float((rounded["final"] - smooth["final"]).norm() / final.norm()))
            assert len(set(outputs(executed))) == 1, "ranks differ"
    finally:
        conversation.close()
    assert outcome.error <= outcome.noise, outcome
    return outcome


def compare_draft(ours: Draft, wanted: MarginDraft, outcome: Outcome, same_rows: bool = False) -> None:
    """One block: equal tokens up to a near tie, after which the two follow different tokens.

    Where the final rows are the `same_rows`, logits are two roundings to bf16 of sums in another order: all but a few
    in a thousand are equal; confidences differ in f32 sums only.
    """
    for slot, (token, other) in enumerate(zip(ours.tokens.tolist(), wanted.draft.tokens.tolist(), strict=True)):
        outcome.compared += 1
        if token != other:
            bound = 2 * float((ours.logits[slot] - wanted.draft.logits[slot]).abs().max())
            assert float(wanted.margins[slot]) <= bound, (slot, wanted.margins, bound)
            outcome.near_ties.append((float(wanted.margins[slot]), bound))
            return
    if same_rows:
        equal = (ours.logits == wanted.draft.logits).double().mean()
        assert float(equal) > 0.995, equal
        if wanted.draft.confidence is not None:
            torch.testing.assert_close(ours.confidence, wanted.draft.confidence, rtol=0, atol=1e-4)


def outputs(drafter: ExecutorDrafter) -> list[bytes]:
    """What each rank wrote."""
    return [b"".join(view(name).tobytes() for name in OUTPUTS) for view in drafter.workspace.local]
