"""Every stage of the 16-bit numerics against float64, from the stage's own recorded inputs, within a derived bound.

u = 2^-24 bounds the relative error of a float32 operation, U = 2^-8 that of a rounding to bf16. Bounds are first order
in u and U, times `SECOND_ORDER` for the products of two of them. A bound that holds for one stage at a time finds an
extra rounding, a missing one in the wrong direction, or a wrong operand, which the noise of a whole draft would hide.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from monodraft.checkpoint.config import Activation, DraftConfig, Family, Norm
from monodraft.checkpoint.weights import DraftWeights, Matrix
from monodraft.drafter import Anchor
from monodraft.formats import mxfp8_torch
from monodraft.reference import ReferenceDrafter
from monodraft.reference.matrices import decode, pack
from monodraft.reference.rope import Rope
from monodraft.testing import random_weights
from reference.cases import SIXTEEN_BIT, random_features, small_config, start

pytestmark = pytest.mark.numbers

u = 2.0**-24
U = 2.0**-8
SECOND_ORDER = 1.02
LENGTH = 9

Bounded = tuple[torch.Tensor, torch.Tensor]
"""A float64 value and a bound on how far the drafter's may be from it."""


class Stages:
    """One recorded greedy draft of one request, and what float64 makes of each stage's inputs."""

    def __init__(self, config: DraftConfig, numerics: str, ranks: int) -> None:
        self.config, self.numerics, self.ranks = config, numerics, ranks
        self.weights: DraftWeights = random_weights(config, seed=5, mxfp8=False)
        self.features = random_features(config, LENGTH)
        drafter = ReferenceDrafter(config, self.weights, numerics, ranks=ranks, page_size=4)
        with drafter.recording() as record:
            start(drafter, 0, self.features)
            self.draft = drafter.propose([Anchor(0, 5, LENGTH)], logits=True)[0]
        self.record = record

    def check(self, name: str, wanted: Bounded) -> None:
        found = self.record[name].double()
        value, bound = wanted
        worst = ((found - value).abs() / (SECOND_ORDER * bound + 1e-300)).max()
        assert worst <= 1.0, f"{name}: {float(worst):.3g} of the bound"

    def linear(self, x: torch.Tensor, weight: Matrix, in_layer: bool = True) -> Bounded:
        """x W^T, rounded to bf16; in `mxfp8` with x quantised and a float32 rounding for each chunk and wave."""
        quantised = in_layer and self.numerics == "mxfp8"
        w = decode(pack(weight)) if in_layer and self.numerics != "bf16" else decode(weight)
        y, size = x.double() @ w.T, x.double().abs() @ w.abs().T
        bound = 2.0**-40 * size
        if quantised:
            _, scales = mxfp8_torch.encode(x)
            step = (2.0 ** (scales.double() - 127)).repeat_interleave(32, -1)
            # e4m3: half a unit of 3 fraction bits, or half the least subnormal 2^-9, times the block's scale.
            bound = (2.0**-4 * x.double().abs() + 2.0**-10 * step) @ w.abs().T
            roundings = -(-x.shape[-1] // 128) + 7
            bound = bound + roundings * u * (size + bound)
        return y, bound + U * (y.abs() + bound)

    def row_parallel(self, x: torch.Tensor, weight: Matrix) -> Bounded:
        """Partials in bf16, added in float32 in rank order, rounded to bf16."""
        assert isinstance(weight, torch.Tensor)
        parts = [self.linear(a, w) for a, w in zip(x.chunk(self.ranks, -1), weight.chunk(self.ranks, -1), strict=True)]
        value, bound = sum(p[0] for p in parts), sum(p[1] for p in parts)
        assert isinstance(value, torch.Tensor)
        assert isinstance(bound, torch.Tensor)
        if self.ranks > 1:
            size = sum(p[0].abs() for p in parts)
            bound = bound + (self.ranks - 1) * u * size + U * (value.abs() + bound)
        return value, bound

    def norm(self, x: Bounded, weight: torch.Tensor | None) -> Bounded:
        """RMSNorm in float32, no rounding to bf16.

        Sum of squares, division, eps (halved by the root), the root, two products and 1 + w: 7 u.
        A change d of x changes y_i by d_i r w_i, and through the root by y_i |d| / |x| at most.
        """
        value, delta = x
        mean = value.square().mean(-1, keepdim=True) + self.config.rms_norm_eps
        factor = torch.ones(()) if weight is None else weight.double() + (self.config.norm is Norm.GEMMA)
        y = value / mean.sqrt() * factor
        through_root = y.abs() * delta.square().mean(-1, keepdim=True).sqrt() / mean.sqrt()
        return y, 7 * u * y.abs() + delta / mean.sqrt() * factor.abs() + through_root

    def rope(self, x: Bounded, positions: torch.Tensor) -> Bounded:
        """Two float32 products of a float32 cosine and sine, one sum: 3 u of the parts' magnitudes."""
        rope = Rope(self.config, torch.device("cpu"))
        angle = positions.float()[:, None] * rope.inv_freq
        tables = angle.double().cos(), angle.double().sin()
        value = rope.rotate(x[0], tables)
        size = rope.rotate(x[0].abs(), (tables[0].abs(), -tables[1].abs()))
        size = torch.maximum(size, rope.rotate(x[0].abs(), (tables[0].abs(), tables[1].abs())))
        moved = torch.maximum(
            rope.rotate(x[1], (tables[0].abs(), -tables[1].abs())),
            rope.rotate(x[1], (tables[0].abs(), tables[1].abs())),
        )
        return value, moved.abs() + 3 * u * size.abs()

    def attention(self, layer: int) -> Bounded:
        """Softmax over the context keys that the pool holds and the block's own keys, by repeated heads and a mask."""
        config, record = self.config, self.record
        q = record[f"layer{layer}.q"].double()
        keys, values = (
            torch.cat([record[f"context.layer{layer}.{n}"], record[f"layer{layer}.{n}"]])
            .double()
            .repeat_interleave(config.num_heads // config.num_kv_heads, 1)
            for n in ("k", "v")
        )
        at = torch.arange(LENGTH + config.block_size)
        window = config.windows[layer] or 10**6
        hidden = (at[LENGTH:, None] - at[None, :]).abs() >= window
        scores = torch.einsum("qhd,khd->hqk", q, keys) * config.score_scale
        scores = scores.masked_fill(hidden, -torch.inf)
        p = scores.softmax(-1)
        value = torch.einsum("hqk,khd->qhd", p, values)
        size = torch.einsum("hqk,khd->qhd", p, values.abs())
        # Score and maximum: two roundings and a rounded scale each, and their difference; exp, sum and division.
        largest = scores.masked_fill(hidden, 0).abs().amax(-1).T[..., None]
        relative = U + (7 * largest + 4) * u
        bound = (relative + (7 * largest + 4) * u) * size
        return value.flatten(1), (bound + U * (value.abs() + bound)).flatten(1)

    def gated(self, gate: torch.Tensor, up: torch.Tensor) -> Bounded:
        g, x, config = gate.double(), up.double(), self.config
        alpha = config.swiglu.alpha if config.swiglu else 1.0
        if config.activation is Activation.GELU_TANH:
            value = torch.nn.functional.gelu(g, approximate="tanh") * x
        elif config.activation is Activation.SILU:
            value = g * g.sigmoid() * x
        else:
            assert config.swiglu is not None
            g = g.clamp(max=config.swiglu.limit)
            value = g * (alpha * g).sigmoid()
            value = value * (x.clamp(-config.swiglu.limit, config.swiglu.limit) + config.swiglu.beta)
        # alpha and its product move the argument of sigmoid by 2 u |alpha g|, and sigmoid by no more relatively.
        bound = (6 + 2 * (alpha * g).abs()) * u * value.abs()
        return value, bound + U * (value.abs() + bound)


def stored(x: Bounded) -> Bounded:
    """A rounding to bf16."""
    return x[0], x[1] + U * (x[0].abs() + x[1])


def plain(x: torch.Tensor) -> Bounded:
    return x.double(), torch.zeros_like(x, dtype=torch.float64)


def check_layer(stages: Stages, index: int) -> None:
    """All stages of one decoder layer."""
    config, record, w = stages.config, stages.record, stages.weights.layers[index]
    at = f"layer{index}."
    stream = record["embedding"] if index == 0 else record[f"layer{index - 1}.stream"]
    block = torch.arange(LENGTH, LENGTH + config.block_size)
    h = record[at + "input_norm"]
    shape = (-1, config.head_dim)

    def heads(x: Bounded) -> Bounded:
        return x[0].unflatten(-1, shape), x[1].unflatten(-1, shape)

    stages.check(at + "input_norm", stored(stages.norm(plain(stream), w.input_norm)))
    stages.check(at + "q_linear", heads(stages.linear(h, w.q)))
    stages.check(at + "q", stored(stages.rope(stages.norm(plain(record[at + "q_linear"]), w.q_norm), block)))
    for prefix, x, positions in ((at, h, block), (f"context.{at}", record["context"], torch.arange(LENGTH))):
        raw = heads(stages.linear(x, w.k))
        stages.check(prefix + "k", stored(stages.rope(stages.norm(raw, w.k_norm), positions)))
        v = raw if config.shared_kv_projection else heads(stages.linear(x, w.v))
        stages.check(prefix + "v", stored(stages.norm(v, None)) if config.value_norm else v)
    stages.check(at + "attention", stages.attention(index))
    stages.check(at + "o", stages.row_parallel(record[at + "attention"], w.o))
    check_residual(stages, stream, at + "o", w.attention_output_norm)
    stages.check(at + "post_norm", stored(stages.norm(plain(record[at + "o.residual"]), w.post_norm)))
    h = record[at + "post_norm"]
    stages.check(at + "gate", stages.linear(h, w.gate))
    stages.check(at + "up", stages.linear(h, w.up))
    stages.check(at + "ffn", stages.gated(record[at + "gate"], record[at + "up"]))
    stages.check(at + "down", stages.row_parallel(record[at + "ffn"], w.down))
    check_residual(stages, record[at + "o.residual"], at + "down", w.ffn_output_norm)
    scale = torch.ones(1) if w.layer_scalar is None else w.layer_scalar.float()
    assert torch.equal(record[at + "stream"], record[at + "down.residual"] * scale)


def check_residual(stages: Stages, stream: torch.Tensor, name: str, norm: torch.Tensor | None) -> None:
    """bf16(stream) + delta in float32, not rounded again: bit for bit where no norm stands between."""
    joined, old = stages.record[f"{name}.residual"], stream.bfloat16().float()
    assert joined.dtype is torch.float32
    if norm is None:
        assert torch.equal(joined, old + stages.record[name].float())
        return
    delta, bound = stored(stages.norm(plain(stages.record[name]), norm))
    stages.check(f"{name}.residual", (old.double() + delta, bound + u * (old.double() + delta).abs()))


def check_heads(stages: Stages) -> None:
    """Final norm, base logits, Markov bias, corrected logits, choice, confidence."""
    config, record, w = stages.config, stages.record, stages.weights
    last = record[f"layer{config.num_layers - 1}.stream"]
    stages.check("final", stored(stages.norm(plain(last), w.final_norm)))
    base, bound = stages.linear(record["final"], w.lm_head, in_layer=False)
    if config.logit_softcap is not None:
        base = config.logit_softcap * (base / config.logit_softcap).tanh()
        base, bound = stored((base, bound + 4 * u * base.abs()))
    stages.check("base_logits", (base[None], bound[None]))
    tokens = stages.draft.tokens
    e = w.markov_w1[torch.cat([torch.tensor([5]), tokens[:-1]])]
    bias, bound = stages.linear(e, w.markov_w2, in_layer=False)
    stages.check("markov_bias", (bias[None], bound[None]))
    corrected = record["base_logits"].float() + record["markov_bias"].float()
    assert torch.equal(record["corrected_logits"], corrected)
    assert stages.draft.logits is not None
    assert torch.equal(stages.draft.logits, corrected[0])
    assert torch.equal(tokens, corrected[0].argmax(-1))
    assert w.confidence_weight is not None
    assert w.confidence_bias is not None
    assert stages.draft.confidence is not None
    joined = torch.cat([record["final"], e], -1).double()
    dot = (joined @ w.confidence_weight.double().T)[:, 0]
    wanted = dot + w.confidence_bias.double()
    assert ((stages.draft.confidence - wanted).abs() <= SECOND_ORDER * u * (dot.abs() + wanted.abs()) + 1e-12).all()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("numerics", SIXTEEN_BIT)
@pytest.mark.parametrize("family", [Family.MINIMAX_M31, Family.QWEN3, Family.GEMMA4])
def test_every_stage_is_within_its_bound(family: Family, numerics: str, ranks: int) -> None:
    stages = Stages(small_config(family, windows=(6, None)), numerics, ranks)
    context = stages.norm(stages.linear(stages.features, stages.weights.fc, in_layer=False), stages.weights.hidden_norm)
    stages.check("context", stored(context))
    for index in range(stages.config.num_layers):
        check_layer(stages, index)
    check_heads(stages)


def test_residual_of_the_norm_is_unrounded_and_of_the_sum_is_rounded() -> None:
    """Two layers' streams carry more bits than bf16; what the next layer adds to is their bf16."""
    record = Stages(small_config(), "bf16", 1).record
    stream = record["layer0.stream"]
    assert not torch.equal(stream, stream.bfloat16().float())


def _swiglu(gate: float, up: float) -> float:
    from monodraft.reference.ffn import gated
    from monodraft.reference.numerics import Bf16

    one: Callable[[float], torch.Tensor] = lambda x: torch.tensor([[x]]).bfloat16()  # noqa: E731
    return float(gated(Bf16(), small_config(), one(gate), one(up)))


def test_swiglu_clamps_the_gate_above_only_and_up_on_both_sides() -> None:
    """g = min(g, 7), u in [-7, 7], out = g sigmoid(1.702 g) (u + 1), one rounding to bf16."""

    def wanted(g: float, x: float) -> float:
        value = torch.tensor(g * (x + 1), dtype=torch.float64) * torch.sigmoid(torch.tensor(1.702 * g).double())
        return float(value.float().bfloat16())

    assert _swiglu(100.0, 2.0) == _swiglu(7.0, 2.0) == wanted(7.0, 2.0)
    assert _swiglu(-20.0, 2.0) == wanted(-20.0, 2.0) != _swiglu(-7.0, 2.0)
    assert _swiglu(1.0, 50.0) == _swiglu(1.0, 7.0) == wanted(1.0, 7.0)
    assert _swiglu(1.0, -50.0) == _swiglu(1.0, -7.0) == wanted(1.0, -7.0)
    assert _swiglu(1.0, -1.0) == 0.0
