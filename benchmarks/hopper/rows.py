"""Final rows of the Hopper kernels, and what its heads must make of them: bounds for the comparison of tests/hosts.

Beside the roundings of docs/hosts.md: the kernels multiply by the final norm's 1 / rms behind the LM head's sums, and a
matrix instruction rounds inside. All bounds are relative to sums of magnitudes, with u = 2^-24.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch

# The comparison and its bounds are the tests' own: one definition of equal, kept where it is itself tested.
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "hosts"))

from comparison import heads_in_bf16
from head_bounds import Block, Heads
from intervals import Interval, dot, gamma, ulp

from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.weights import DraftWeights
from monodraft.hopper.drafter import HopperDrafter
from monodraft.hopper.geometry import Geometry
from monodraft.hopper.ranks import RankGroups
from monodraft.hopper.workspace import Workspace

INSTRUCTION = 40
"""Roundings, in u, of one m16n8k16 that adds sixteen products to its accumulator. The emulator: sixteen. A tensor core
aligns what it adds to the greatest and cuts off what lies lower: with no bit to spare each of the seventeen, and the
result, loses less than 2 u of the greatest, which is at most the sum of magnitudes: 36 u; in two blocks of eight 40."""

LANES, EPILOGUE_WARPS, CHUNK, UNIT = 32, 16, 128, 16


@dataclass(frozen=True)
class Rows:
    """What a step left of its query rows: what the LM head read, bf16 as float64 [rows, H], and the factors [rows]."""

    stored: torch.Tensor
    factors: Interval

    def __getitem__(self, rows: slice) -> Rows:
        return Rows(self.stored[rows], self.factors[rows])

    @property
    def finished(self) -> torch.Tensor:
        """The final rows, float64 [rows, H]: stored ones times the middle of what their factors may be."""
        return Block(self.stored, torch.empty(0), self.factors).finished


def plain(buffer: torch.Tensor) -> torch.Tensor:
    """Activations in fragment order [rows, K] to row-major."""
    rows, k = buffer.shape
    return buffer.view(rows // 8, k // 32, 8, 4, 8).permute(0, 2, 1, 3, 4).reshape(rows, k)


def rank_workspaces(ours: HopperDrafter) -> list[Workspace]:
    """The workspaces of all ranks."""
    return ours.workspace.ranks if isinstance(ours.workspace, RankGroups) else [ours.workspace]


def final_rows(ours: HopperDrafter, count: int) -> Rows:
    """The first `count` query rows of the last launch. AssertionError where ranks hold different bytes."""
    first, *others = ([each.buffers[name] for name in ("hidden", "squares")] for each in rank_workspaces(ours))
    for other in others:
        assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(first, other, strict=True))
    hidden, squares = first
    config = ours.config
    stored = plain(hidden)[:count, : config.hidden_size].double()
    return Rows(stored, factors(squares[0, :count].double(), config))


def factors(squares: torch.Tensor, config: DraftConfig) -> Interval:
    """1 / rms of rows, float32 [rows], from their partial sums of squares [rows, n].

    A term passes through at most ceil(n / 32) + 5 roundings of the sum; the product with 1 / H, 1 / H itself and the
    sum with eps (fused or not) make three more; rsqrtf is good to two units in the last place.
    """
    mean = squares.sum(-1) / config.hidden_size + config.rms_norm_eps
    off = gamma(-(-squares.shape[-1] // LANES) + 5 + 3)
    high, low = ((mean * (1 + sign * off)).rsqrt() for sign in (-1, 1))
    return Interval(low - 2 * ulp(low), high + 2 * ulp(high)).float32()


@dataclass(frozen=True)
class HopperHeads(Heads):
    """`Heads` as the kernels of one geometry round."""

    geometry: Geometry

    @property
    def roundings(self) -> tuple[int, int]:
        """Of a term of the LM head's and of w2's sums: the instructions of the warp's share of K; the LM head's shares
        and parts are added one by one."""
        head = self.geometry.linears["lm_head"]
        shares = 1 << head.split_log2
        instructions = head.parts * -(-head.part_chunks // shares) * (CHUNK // UNIT)
        return INSTRUCTION * instructions + shares + head.parts, INSTRUCTION * (self.geometry.rank_padded // UNIT)

    def base(self, block: Block, w: torch.Tensor) -> Interval:
        """Sums, factor, bf16, and Gemma4's cap: quotient, tanhf (two units in the last place), product, bf16."""
        sums = dot(Interval.of(block.rows), w, self.roundings[0])
        found = (sums if block.factors is None else sums * block.factors[:, None]).bf16()
        cap = self.config.logit_softcap
        if cap is None:
            return found
        curved = _tanh(found / cap) * cap
        return curved.bf16()

    def exact_base(self, block: Block, w: torch.Tensor) -> torch.Tensor:
        found, cap = super().exact_base(block, w), self.config.logit_softcap
        return found if cap is None else cap * (found / cap).tanh()

    def confidence(self, block: Block) -> Interval:
        """Dot of the row, times its factor; plus the dot of the w1 row; plus the bias.

        A term of the row passes through its product, four sums of its eight, two of each turn of its thread (K / 4096
        and one a part), 5 over lanes, 16 over warps and the parts; one of the w1 row through its product, r / 32 and 5.
        """
        weights, hidden = self.weights, self.config.hidden_size
        assert weights.confidence_weight is not None
        assert weights.confidence_bias is not None
        row, serial = weights.confidence_weight.double().split([hidden, weights.confidence_weight.shape[1] - hidden], 1)
        parts = self.geometry.linears["lm_head"].parts
        turns = parts + hidden // (LANES * EPILOGUE_WARPS * 8)
        found = dot(Interval.of(block.rows), row, 5 + 2 * turns + 5 + EPILOGUE_WARPS + parts)[:, 0]
        found = found if block.factors is None else found * block.factors
        if self.config.confidence_with_markov:
            e = Interval.of(weights.markov_w1[block.previous])
            found = found + dot(e, serial, 1 + -(-serial.shape[1] // LANES) + 5)[:, 0]
        return found + weights.confidence_bias

    def noise_error(self, noise: torch.Tensor) -> torch.Tensor:
        """Logarithms in float64, rounded once: the other neighbour at most."""
        return ulp(noise)


def _tanh(x: Interval) -> Interval:
    ends = [end.tanh() for end in (x.low, x.high)]
    return Interval(ends[0] - 2 * ulp(ends[0]), ends[1] + 2 * ulp(ends[1])).float32()


def heads_of(ours: HopperDrafter, weights: DraftWeights) -> HopperHeads:
    """The heads of a drafter made of `weights`, on its device."""
    nothing, device, heads = torch.empty(0), ours.workspace.device, heads_in_bf16(weights)
    names = ("lm_head", "markov_w1", "markov_w2", "confidence_weight", "confidence_bias")
    found = {name: getattr(heads, name) for name in names}
    moved = {name: None if value is None else value.to(device) for name, value in found.items()}
    return HopperHeads(ours.config, replace(heads, layers=(), fc=nothing, embed=nothing, **moved), ours.geometry)
