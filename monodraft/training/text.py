"""The corpus as tokens: one stream to train on, and the held-out files one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerFast

from monodraft.training.corpus import SourceFile
from monodraft.training.vocabulary import END_ID


@dataclass(frozen=True)
class TokenizedText:
    """`train` int64 [n]: every training file as begin, tokens, end. `held_out`: the same per held-out file."""

    train: torch.Tensor
    held_out: list[torch.Tensor]
    held_out_bytes: list[int]


def tokenize(sources: Sequence[SourceFile], tokenizer: PreTrainedTokenizerFast) -> TokenizedText:
    """Encode all files; files keep their order in the stream."""
    ids = tokenizer([s.text for s in sources])["input_ids"]
    encoded = [torch.tensor([*row, END_ID]) for row in ids]
    kept = [(e, s) for e, s in zip(encoded, sources, strict=True) if s.held_out]
    return TokenizedText(
        train=torch.cat([e for e, s in zip(encoded, sources, strict=True) if not s.held_out]),
        held_out=[e for e, _ in kept],
        held_out_bytes=[len(s.text.encode()) for _, s in kept],
    )


def held_out_prompts(text: TokenizedText, count: int, length: int, seed: int = 5) -> torch.Tensor:
    """`count` windows of `length` tokens, spread over the held-out files by their size: int64 [count, length]."""
    generator = torch.Generator().manual_seed(seed)
    long = [ids for ids in text.held_out if len(ids) > length + 1]
    weights = torch.tensor([float(len(ids)) for ids in long])
    picks = torch.multinomial(weights, count, replacement=True, generator=generator)
    rows = []
    for pick in picks.tolist():
        start = int(torch.randint(len(long[pick]) - length, (1,), generator=generator))
        rows.append(long[pick][start : start + length])
    return torch.stack(rows)
