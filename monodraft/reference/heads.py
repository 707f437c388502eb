"""LM head, Markov head and confidence head: from final rows to drafted tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from monodraft.checkpoint.config import DraftConfig, MarkovKind
from monodraft.checkpoint.weights import DraftWeights
from monodraft.reference.layer import Note
from monodraft.reference.numerics import Linear, Numerics

Choose = Callable[[int, torch.Tensor], torch.Tensor]
"""Slot j and its corrected logits float32 [B, V] to chosen ids int64 [B]."""


def _present(tensor: torch.Tensor | None, name: str) -> torch.Tensor:
    """A tensor that the config promises (the loader's audit guarantees it)."""
    assert tensor is not None, f"weights without {name}"
    return tensor


class LmHead:
    """Base logits: bf16(h W^T), then for Gemma4 bf16(c tanh(logits / c)). Splitting by vocabulary changes no bit."""

    def __init__(self, config: DraftConfig, weights: DraftWeights, numerics: Numerics, keep: bool) -> None:
        self._numerics, self._softcap = numerics, config.logit_softcap
        self._linear = numerics.linear(weights.lm_head, keep)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [M, H] to [M, V] in `store`."""
        base, cap, numerics = self._linear(hidden), self._softcap, self._numerics
        if cap is None:
            return base
        return numerics.stored(cap * numerics.map(torch.tanh, numerics.widened(base) / cap))


class MarkovHead:
    """Bias of the previous token on the logits (spec 1.6, DeepSpec `markov_head.py`). e = w1[previous].

    VANILLA: bf16(w2 e). GATED: w2 of bf16(sigmoid(bf16(Wg [h; e] + b)) * e). RNN: (a, u, o) = bf16(Wj [s; e; h] + b);
    s' = bf16((sigmoid(a) * s) + ((1 - sigmoid(a)) * tanh(u))); w2 of bf16(tanh(o)); s starts at 0.
    """

    def __init__(self, config: DraftConfig, weights: DraftWeights, numerics: Numerics, keep: bool) -> None:
        self._kind, self._numerics, self._rank = config.markov, numerics, config.markov_rank
        self._w1 = weights.markov_w1
        self._w2 = numerics.linear(weights.markov_w2, keep)
        self._inner: Linear | None = None
        if config.markov is MarkovKind.GATED:
            bias = _present(weights.markov_gate_bias, "markov_gate_bias")
            self._inner = numerics.linear(_present(weights.markov_gate, "markov_gate"), keep, bias)
        if config.markov is MarkovKind.RNN:
            bias = _present(weights.markov_joint_bias, "markov_joint_bias")
            self._inner = numerics.linear(_present(weights.markov_joint, "markov_joint"), keep, bias)

    def start(self, requests: int) -> torch.Tensor:
        """The state before slot 0, [B, r] of zeros in `store`."""
        return torch.zeros(requests, self._rank, dtype=self._numerics.store, device=self._w1.device)

    def embedding(self, previous: torch.Tensor) -> torch.Tensor:
        """w1 rows of ids [B]: [B, r] in `store`."""
        return self._numerics.stored(self._w1[previous])

    def __call__(self, hidden: torch.Tensor, e: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Final rows [B, H], embeddings [B, r] and state [B, r] to the bias [B, V] in `store` and the next state."""
        numerics = self._numerics
        if self._inner is None:
            return self._w2(e), state
        if self._kind is MarkovKind.GATED:
            gate = numerics.map(torch.sigmoid, self._inner(torch.cat([hidden, e], -1)))
            return self._w2(numerics.stored(gate * numerics.widened(e))), state
        a, candidate, output = self._inner(torch.cat([state, e, hidden], -1)).chunk(3, -1)
        gate = numerics.map(torch.sigmoid, a)
        kept = gate * numerics.widened(state)
        state = numerics.stored(kept + (1.0 - gate) * numerics.map(torch.tanh, candidate))
        return self._w2(numerics.stored(numerics.map(torch.tanh, output))), state


class ConfidenceHead:
    """fl32(p . [h; e]) + b in float32, e the plain w1 row (spec 1.6, computed in float32 as vLLM does)."""

    def __init__(self, config: DraftConfig, weights: DraftWeights, numerics: Numerics) -> None:
        self._numerics, self._with_markov = numerics, config.confidence_with_markov
        self._weight = numerics.widened(_present(weights.confidence_weight, "confidence_weight"))
        self._bias = numerics.widened(_present(weights.confidence_bias, "confidence_bias"))

    def __call__(self, hidden: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        """Final rows [B, H] and w1 rows [B, r] to logits [B] in `work`."""
        u = torch.cat([hidden, e], -1) if self._with_markov else hidden
        return self._numerics.matmul(u, self._weight)[:, 0] + self._bias


@dataclass(frozen=True)
class Chain:
    """Result of the serial chain: `tokens` int64 [B, g], `logits` float32 [B, g, V], `confidence` float32 [B, g]."""

    tokens: torch.Tensor
    logits: torch.Tensor
    confidence: torch.Tensor | None


class Heads:
    """The serial chain over the g slots: logits_j = fl32(base_j + bias(previous)), token_j chosen from these float32.

    `exact` adds in float64 and rounds the corrected logits once to float32; the choice is made from that float32.
    """

    def __init__(self, config: DraftConfig, weights: DraftWeights, numerics: Numerics, keep: bool) -> None:
        self._numerics = numerics
        self._lm_head = LmHead(config, weights, numerics, keep)
        self._markov = MarkovHead(config, weights, numerics, keep)
        self._confidence = ConfidenceHead(config, weights, numerics) if config.has_confidence else None

    def __call__(self, hidden: torch.Tensor, anchors: torch.Tensor, choose: Choose, note: Note) -> Chain:
        """Final rows [B, g, H] in `store` and anchor ids int64 [B]; `choose` picks each slot's ids."""
        numerics = self._numerics
        base = self._lm_head(hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2])
        note("base_logits", base)
        previous, state = anchors, self._markov.start(len(anchors))
        tokens, logits, biases, confidence = [], [], [], []
        for slot in range(hidden.shape[1]):
            row, e = hidden[:, slot], self._markov.embedding(previous)
            bias, state = self._markov(row, e, state)
            corrected = (numerics.widened(base[:, slot]) + numerics.widened(bias)).to(torch.float32)
            if self._confidence is not None:
                confidence.append(self._confidence(row, e).to(torch.float32))
            previous = choose(slot, corrected)
            tokens.append(previous)
            logits.append(corrected)
            biases.append(bias)
        note("markov_bias", torch.stack(biases, 1))
        chain = Chain(
            torch.stack(tokens, 1), torch.stack(logits, 1), torch.stack(confidence, 1) if confidence else None
        )
        note("corrected_logits", chain.logits)
        return chain
