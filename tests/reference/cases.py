"""Small drafters and calls that the tests of the reference share."""

from __future__ import annotations

from typing import Any

import torch

from monodraft.checkpoint.config import DraftConfig, Family
from monodraft.drafter import Anchor, ContextRows, Draft
from monodraft.reference import ReferenceDrafter
from monodraft.testing import random_config

SIXTEEN_BIT = ("bf16", "w8a16", "mxfp8")


def small_config(family: Family = Family.MINIMAX_M31, **overrides: Any) -> DraftConfig:
    """Hidden 64, 4 heads of 32 over 2 K/V heads, 2 layers, block 4, vocabulary 96."""
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "num_heads": 4,
        "num_kv_heads": 2,
        "ffn_size": 128,
        "vocab_size": 96,
        "block_size": 4,
        "markov_rank": 16,
    }
    return random_config(family, **(sizes | overrides))


def random_features(config: DraftConfig, rows: int, seed: int = 0) -> torch.Tensor:
    """bf16 [rows, m H]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, config.feature_size, generator=generator).bfloat16()


def start(drafter: ReferenceDrafter, request: int, features: torch.Tensor) -> None:
    """Open a request and commit its whole context at once."""
    drafter.open(request)
    drafter.commit([ContextRows(request, 0, features)])


def propose_one(drafter: ReferenceDrafter, request: int, token: int, **options: Any) -> Draft:
    """One greedy block with logits, at the end of what the request has committed."""
    anchor = Anchor(request, token, drafter.pool.length(request), **options)
    return drafter.propose([anchor], logits=True)[0]


def same_bits(a: Draft, b: Draft) -> bool:
    """Whether two drafts have the same tokens and, bit for bit, the same logits and confidence."""
    assert a.logits is not None
    assert b.logits is not None
    parts = [torch.equal(a.tokens, b.tokens), torch.equal(a.logits, b.logits)]
    if a.confidence is not None and b.confidence is not None:
        parts.append(torch.equal(a.confidence, b.confidence))
    return all(parts)
