"""Executor drafters and their references, made once a process: tracing and translating a kernel takes many seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from head_bounds import Block, Heads, possible

import monodraft.executor as ex
from monodraft.checkpoint.config import DraftConfig, Family, MarkovKind
from monodraft.checkpoint.layout import LINEARS
from monodraft.checkpoint.weights import DraftWeights
from monodraft.drafter import Anchor, ContextRows, Draft
from monodraft.hosts.executor_drafter import ExecutorDrafter
from monodraft.plan.shape import AllReduce
from monodraft.reference import ReferenceDrafter
from monodraft.reference.drafter import MarginDraft
from monodraft.reference.matrices import pack
from monodraft.reference.sampling import scores as reference_scores
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


@dataclass
class Outcome:
    """What a comparison found: drafted tokens compared, and near ties at which the two parted (lead, bound).

    `error` and `noise`: largest relative distance of a launch's final rows to the reference's, and the reference's to
    arithmetic without roundings; `ratio`: the largest quotient of the two in one launch.
    """

    compared: int = 0
    near_ties: list[tuple[float, float]] = field(default_factory=list)
    error: float = 0.0
    noise: float = 0.0
    ratio: float = 0.0


@dataclass(frozen=True)
class Evidence:
    """What a block's tokens must follow from: final rows of the kernel and of the reference, float64 [g, H]."""

    heads: Heads
    anchor: Anchor
    kernel: torch.Tensor
    reference: torch.Tensor


def unrounded(config: DraftConfig, weights: DraftWeights) -> ReferenceDrafter:
    """The reference without roundings, of the very weights that `mxfp8` computes with: its linears in MXFP8."""
    layers = tuple(replace(layer, **{name: pack(getattr(layer, name)) for name in LINEARS}) for layer in weights.layers)
    return ReferenceDrafter(config, replace(weights, layers=layers), "exact")


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


def check_rows(rows: torch.Tensor, reference: torch.Tensor, exact: torch.Tensor, outcome: Outcome) -> None:
    """Final rows of a launch are one way to round what `exact` has, as the reference's are another.

    Let n be what the reference's roundings add to the exact rows, n' what the kernel's add. Every stage of the kernel
    rounds where the reference does (`test_stage_bounds.py`), so n' has the size of n; roundings that both share make
    them alike, those that sums in another order turn make them, at worst, independent. Then |n' - n|^2 is at most
    |n|^2 + |n'|^2 = 2 |n|^2: over the rows of a launch, the distance is at most sqrt(2) of the reference's own.
    """
    exact = exact.double()
    error, noise = ((a.double() - b.double()).norm() for a, b in ((rows, reference), (reference, exact)))
    outcome.error = max(outcome.error, float(error / exact.norm()))
    outcome.noise = max(outcome.noise, float(noise / exact.norm()))
    outcome.ratio = max(outcome.ratio, float(error / noise))
    assert float(error) <= math.sqrt(2) * float(noise), (float(error), float(noise))


def compare_draft(
    ours: Draft, wanted: MarginDraft, outcome: Outcome, same_rows: bool = False, evidence: Evidence | None = None
) -> None:
    """One block: equal tokens up to a near tie, after which the two follow different tokens.

    With `evidence`, tokens, logits and confidence are what float64 makes of the kernel's own rows (`check_chain`), and
    a token may differ where the reference's lead over it is at most what its rows' distance to the kernel's moves these
    two scores, and roundings (`Heads.lead`); without, only where the reference has a tie. Where the final rows are the
    `same_rows`, logits are two roundings to bf16 of sums in another order: all but a few in a thousand are equal. (Not
    behind a gate or a recurrent state: one rounding of it that turns moves all logits of a slot, or of all later ones.)
    """
    if evidence is not None:
        check_chain(ours, evidence)
    for slot, (token, other) in enumerate(zip(ours.tokens.tolist(), wanted.draft.tokens.tolist(), strict=True)):
        outcome.compared += 1
        if token != other:
            lead, bound = float(wanted.margins[slot]), 0.0
            if evidence is not None:
                lead, bound = leads(ours, wanted.draft, evidence, slot)
            assert lead <= bound, (slot, lead, bound)
            outcome.near_ties.append((lead, bound))
            return
    if same_rows and (evidence is None or evidence.heads.config.markov is MarkovKind.VANILLA):
        equal = (ours.logits == wanted.draft.logits).double().mean()
        assert float(equal) > 0.995, equal


def check_chain(ours: Draft, evidence: Evidence) -> None:
    """Tokens, logits and confidence of a block follow from the kernel's rows, along its own chain of tokens."""
    heads, anchor = evidence.heads, evidence.anchor
    block = Block.of(evidence.kernel, anchor, ours.tokens)
    logits = heads.logits(block)
    scores = heads.scores(logits, anchor)
    for slot, token in enumerate(ours.tokens.tolist()):
        assert possible(scores[slot], token), (slot, token)
    if ours.logits is not None:
        logits.check(ours.logits, "logits")
    if ours.confidence is not None:
        heads.confidence(block).check(ours.confidence, "confidence")


def leads(ours: Draft, wanted: Draft, evidence: Evidence, slot: int) -> tuple[float, float]:
    """The reference's lead of its token over the kernel's in a slot where they part, and the most that it can be."""
    assert wanted.logits is not None
    token, other = int(wanted.tokens[slot]), int(ours.tokens[slot])
    anchor = evidence.anchor
    score = reference_scores(wanted.logits[slot], anchor.temperature, anchor.seed, anchor.position + slot)
    blocks = (Block.of(evidence.kernel, anchor, ours.tokens), Block.of(evidence.reference, anchor, wanted.tokens))
    return float(score[token] - score[other]), evidence.heads.lead(*blocks, anchor, slot, token, other)


def outputs(drafter: ExecutorDrafter) -> list[bytes]:
    """What each rank wrote."""
    return [b"".join(view(name).tobytes() for name in OUTPUTS) for view in drafter.workspace.local]
