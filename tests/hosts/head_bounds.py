"""What the heads must make of given final rows: logits, tokens and confidence as intervals, from the weights alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from intervals import DOUBLE, Interval, U, concatenated, dot, sigmoid, stacked, tanh

from monodraft.checkpoint.config import DraftConfig, MarkovKind
from monodraft.checkpoint.weights import DraftWeights
from monodraft.drafter import Anchor
from monodraft.reference.sampling import GREEDY_BELOW, gumbel

UNIT, WAVES = 32, 8
"""Values of K that one bf16 matrix instruction sums, and waves that share a K axis."""

IDS_AT_ONCE = 1 << 12
"""Ids whose weights are widened to float64 at a time."""


def tile_roundings(depth: int, unit: int = UNIT) -> int:
    """Roundings of a term of a tile whose instructions sum `unit` values of K each: one an instruction of its wave's
    share of K, and one a wave added; waves without a share add zeros."""
    units = -(-depth // unit)
    return -(-units // WAVES) + min(units, WAVES) - 1


def row_roundings(parts: int) -> int:
    """Roundings of a term of the confidence dot: 16 in a thread, the `parts` of a row, 6 over lanes, 7 over waves."""
    return 16 + parts - 1 + 6 + WAVES - 1


def half_bf16(values: torch.Tensor) -> torch.Tensor:
    """Half a unit in the last place of bf16 at float64 `values`."""
    return torch.ldexp(torch.ones_like(values), values.abs().clamp(min=2.0**-126).frexp().exponent - 9)


def gumbel_error(noise: torch.Tensor) -> torch.Tensor:
    """Most that the kernel's Gumbel noise differs from the reference's float32 `noise` (float64).

    A logarithm (v_log_f32, times a constant) is off by 4 u relative: an ulp is 2 u, constant and product u each. The
    inner one, -ln(u), gets its argument off by 2 u from a conversion and a sum, which moves it by at most 3 u, and near
    u = 1 takes a product and a quotient more: 10 u relative in all, which the outer one turns into 10 u absolute.
    One u stands for the second order, one relative for the reference's rounding.
    """
    return (11 + 5 * noise.abs()) * U


def possible(scores: Interval, token: int) -> bool:
    """Whether `token` is the choice of some scores [V] of the interval: none higher, none as high with a lower id."""
    best = scores.high[token]
    return bool((scores.low[:token] < best).all()) and bool((scores.low[token:] <= best).all())


@dataclass(frozen=True)
class Block:
    """Final rows of a block, bf16 as float64 [g, H], and the ids [g] that its slots follow, the anchor's first.

    `factors` [g]: of a kernel that multiplies by the final norm's 1 / rms behind the linear, what it may have taken.
    """

    rows: torch.Tensor
    previous: torch.Tensor
    factors: Interval | None = None

    @classmethod
    def of(cls, rows: torch.Tensor, anchor: Anchor, tokens: torch.Tensor, factors: Interval | None = None) -> Block:
        """The block whose drafted ids are `tokens` [g]."""
        previous = torch.cat([torch.tensor([anchor.token]), tokens[:-1].cpu()])
        return cls(rows.double(), previous.to(rows.device), factors)

    def until(self, slot: int) -> Block:
        """Its rows up to `slot`, which is the last."""
        factors = None if self.factors is None else self.factors[: slot + 1]
        return Block(self.rows[: slot + 1], self.previous[: slot + 1], factors)

    def row(self, slot: int) -> Block:
        """One row alone."""
        factors = None if self.factors is None else self.factors[slot : slot + 1]
        return Block(self.rows[slot : slot + 1], self.previous[slot : slot + 1], factors)

    @property
    def finished(self) -> torch.Tensor:
        """The rows with their factors, float64 [g, H]; of a factor's interval the middle."""
        if self.factors is None:
            return self.rows
        return self.rows * ((self.factors.low + self.factors.high) / 2)[:, None]


@dataclass(frozen=True)
class Heads:
    """LM head, Markov head and confidence of a drafter, over the whole vocabulary."""

    config: DraftConfig
    weights: DraftWeights

    def logits(self, block: Block) -> Interval:
        """Corrected logits [g, V]: float32 of the sum of two bf16."""
        markov = self.markov_rows(block)
        tiles = zip(self.weights.lm_head.split(IDS_AT_ONCE), self.weights.markov_w2.split(IDS_AT_ONCE), strict=True)
        return concatenated([self.base(block, w) + self.bias(markov, w2) for w, w2 in tiles], 1)

    def base(self, block: Block, w: torch.Tensor) -> Interval:
        """Base logits of some ids [g, n], bf16; `w`: their rows of the LM head [n, H]."""
        return dot(Interval.of(block.rows), w, self.roundings[0]).bf16()

    def exact_base(self, block: Block, w: torch.Tensor) -> torch.Tensor:
        """The same of exact arithmetic, float64."""
        return block.finished @ w.double().T

    def bias(self, markov: Interval, w2: torch.Tensor) -> Interval:
        """Markov biases of some ids [g, n], bf16; `w2`: their rows of w2 [n, r]."""
        return dot(markov, w2, self.roundings[1]).bf16()

    def markov_rows(self, block: Block, above: Interval | None = None) -> Interval:
        """What w2 is multiplied by, bf16 [g, r]: the w1 row of the id before, or what a gate or an rnn makes of it.
        `above`: the inner linear's sums of the rows, where they are known."""
        e = Interval.of(self.weights.markov_w1[block.previous])
        if self.config.markov is MarkovKind.VANILLA:
            return e
        _, serial, bias = self._inner()
        above = self.inner_sums(block.rows) if above is None else above
        roundings = serial.shape[-1] // UNIT
        if self.config.markov is MarkovKind.GATED:
            inner = (above + dot(e, serial, roundings) + bias).bf16()
            return (sigmoid(inner) * e).bf16()
        r = self.config.markov_rank
        state, found = Interval.of(torch.zeros(r, device=block.rows.device)), []
        for slot in range(len(block.rows)):
            both = concatenated([state, e[slot]], 0)
            inner = (above[slot] + dot(both[None], serial, roundings)[0] + bias).bf16()
            gate = sigmoid(inner[:r])
            state = (gate * state + (-gate + 1.0) * tanh(inner[r : 2 * r])).bf16()
            found.append(tanh(inner[2 * r :]).bf16())
        return stacked(found)

    def inner_sums(self, rows: torch.Tensor) -> Interval:
        """Inner linear of final rows (bf16 as float64 [g, H]), float32: its columns for the hidden row, no bias yet."""
        columns, _, _ = self._inner()
        return dot(Interval.of(rows), columns, tile_roundings(columns.shape[-1]))

    def _inner(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Inner linear's columns for the hidden row and for the serial input, and its bias (`DraftWeights`)."""
        weights, hidden, r = self.weights, self.config.hidden_size, self.config.markov_rank
        if self.config.markov is MarkovKind.GATED:
            assert weights.markov_gate is not None
            assert weights.markov_gate_bias is not None
            return *weights.markov_gate.split([hidden, r], 1), weights.markov_gate_bias
        assert weights.markov_joint is not None
        assert weights.markov_joint_bias is not None
        serial, columns = weights.markov_joint.split([2 * r, hidden], 1)
        return columns, serial, weights.markov_joint_bias

    def confidence(self, block: Block) -> Interval:
        """Confidence [g]: float32 of a dot and its bias."""
        assert self.weights.confidence_weight is not None
        assert self.weights.confidence_bias is not None
        x, parts = block.rows, 1
        if self.config.confidence_with_markov:
            x, parts = torch.cat([x, self.weights.markov_w1[block.previous].double()], 1), 2
        return (
            dot(Interval.of(x), self.weights.confidence_weight, row_roundings(parts))[:, 0]
            + self.weights.confidence_bias
        )

    def scores(self, logits: Interval, anchor: Anchor) -> Interval:
        """What the ids of a block are chosen by, [g, V]: logits, or with a temperature their quotients plus noise."""
        if anchor.temperature < GREEDY_BELOW:
            return logits
        noise = _noise(anchor, range(len(logits.low)), logits.low.shape[-1], logits.low.device)
        return logits / anchor.temperature + Interval.around(noise, self.noise_error(noise)).float32()

    def noise_error(self, noise: torch.Tensor) -> torch.Tensor:
        """Most that the kernel's Gumbel noise differs from the reference's float32 `noise` (float64)."""
        return gumbel_error(noise)

    def lead(self, kernel: Block, reference: Block, anchor: Anchor, slot: int, wanted: int, found: int) -> float:
        """Most by which the reference's score of `wanted` leads that of `found` where the kernel chose `found` instead.

        Both followed the same ids up to `slot`. A score is s = w . h + w2 . z, rounded. The kernel's choice says
        s'(found) >= s'(wanted), so the lead is at most (s - s')(wanted) - (s - s')(found) = (w_a - w_b) . (h - h') +
        (w2_a - w2_b) . (z - z'), plus what either rounds. None of the kernel's logits enters. Where base logits are
        capped, w . h stands for its capped value.
        """
        ids = torch.tensor([wanted, found], device=self.weights.lm_head.device)
        w, w2 = self.weights.lm_head[ids].double(), self.weights.markov_w2[ids].double()
        side, z, z_kernel = w2[0] - w2[1], self._markov_row(reference, slot), self._markov_row(kernel, slot)
        rows = reference.row(slot), kernel.row(slot)
        towards = (self.exact_base(rows[0], w) - self.exact_base(rows[1], w))[0]
        moved = towards[0] - towards[1]
        moved += torch.maximum(side * (z.low - z_kernel.high), side * (z.high - z_kernel.low)).sum()
        noise = _noise(anchor, range(slot, slot + 1), self.config.vocab_size, ids.device)[0, ids]
        errors = torch.zeros_like(noise)
        for row, markov in zip(rows, (z, z_kernel), strict=True):
            errors += self._score_errors((w, w2), (row, markov), anchor, noise)
        return float(moved / _divisor(anchor) + errors.sum())

    def _markov_row(self, block: Block, slot: int) -> Interval:
        """`markov_rows` of one slot."""
        return self.markov_rows(block.until(slot))[slot]

    def _score_errors(
        self,
        sides: tuple[torch.Tensor, torch.Tensor],
        inputs: tuple[Block, Interval],
        anchor: Anchor,
        noise: torch.Tensor,
    ) -> torch.Tensor:
        """Most that scores of some ids [n] differ from their exact sums through rounding, float64 [n].

        `sides`: their rows of the LM head and of w2; `inputs`: what these are multiplied by; `noise` theirs [n].
        """
        (w, w2), (block, markov) = sides, inputs
        base, exact = self.base(block, w)[0], self.exact_base(block, w)[0]
        raw = dot(markov[None], w2, self.roundings[1])[0]
        most = exact.abs() + raw.magnitude
        errors = torch.maximum(base.high - exact, exact - base.low)
        errors += w.shape[1] * DOUBLE * (block.finished.abs() @ w.abs().T)[0]
        errors += (raw.high - raw.low) / 2 + half_bf16(raw.magnitude)
        errors += U * (most + errors)
        if anchor.temperature < GREEDY_BELOW:
            return errors
        most = (most + errors) / _divisor(anchor)
        return errors / _divisor(anchor) + U * most + self.noise_error(noise) + U * (most + noise.abs())

    @property
    def roundings(self) -> tuple[int, int]:
        """Of a term of the LM head's and of w2's sums."""
        return tile_roundings(self.config.hidden_size), self.config.markov_rank // UNIT


def _divisor(anchor: Anchor) -> float:
    """The temperature as float32, 1 for a greedy choice."""
    return float(torch.tensor(anchor.temperature, dtype=torch.float32)) if anchor.temperature >= GREEDY_BELOW else 1.0


def _noise(anchor: Anchor, slots: range, count: int, device: torch.device) -> torch.Tensor:
    """The reference's Gumbel noise of ids 0 .. count - 1 in some slots, float32 as float64 [slots, count]."""
    return torch.stack([gumbel(anchor.seed, anchor.position + slot, count, device) for slot in slots]).double()
