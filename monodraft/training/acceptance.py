"""Accepted length of greedy drafts along the target's own greedy text, slot by slot.

Greedy text is fixed, and a draft depends only on committed text, so drafting from every anchor of the text at once
and walking anchor -> anchor + accepted + 1 visits exactly the rounds of the speculative loop.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from monodraft.training.draft_model import DraftModel, make_blocks
from monodraft.training.features import target_features


@dataclass(frozen=True)
class Acceptance:
    """`tokens_per_round` counts the target's own token; `by_slot[j]` is the share of rounds that accept slot j."""

    rounds: int
    tokens_per_round: float
    by_slot: tuple[float, ...]


@torch.no_grad()
def greedy_texts(target: PreTrainedModel, prompts: torch.Tensor, new_tokens: int) -> torch.Tensor:
    """The target's greedy continuations of prompts [B, P]: int64 [B, P + new_tokens]; the end token is not a stop."""
    return target.generate(  # type: ignore[operator]
        input_ids=prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=new_tokens,
        min_new_tokens=new_tokens, do_sample=False,
    )  # fmt: skip


@torch.no_grad()
def measure_acceptance(
    model: DraftModel, target: PreTrainedModel, texts: torch.Tensor, prompt: int, group: int = 8
) -> Acceptance:
    """Walk the rounds of every text [B, T] from position `prompt` on (the first new token is the first anchor)."""
    block = model.config.block_size
    rounds, tokens_seen = 0, 0
    slots = [0] * block
    for piece in texts.split(group):
        lengths = accepted_lengths(model, target, piece, prompt)
        for row in lengths.tolist():
            at = 0
            while at < len(row):
                rounds += 1
                tokens_seen += row[at] + 1
                for slot in range(row[at]):
                    slots[slot] += 1
                at += row[at] + 1
    return Acceptance(rounds, tokens_seen / rounds, tuple(s / rounds for s in slots))


@torch.no_grad()
def accepted_lengths(model: DraftModel, target: PreTrainedModel, texts: torch.Tensor, prompt: int) -> torch.Tensor:
    """Leading drafts equal to the text, for every anchor from `prompt` on that has a whole block after it: [B, A]."""
    config = model.config
    features, _ = target_features(target, texts, config.target_layer_ids)
    anchors = torch.arange(prompt, texts.shape[1] - config.block_size, device=texts.device).expand(texts.shape[0], -1)
    truth = texts.unfold(1, config.block_size, 1)[:, prompt + 1 :][:, : anchors.shape[1]]
    results = []
    for part in anchors.split(64, 1):
        blocks = make_blocks(part, texts.shape[1], config.block_size, config.windows[0])
        with torch.autocast(texts.device.type, dtype=torch.bfloat16):
            tokens = texts.gather(1, part)
            drafts = model.draft_greedy(model.hidden(features, tokens, blocks), tokens)
        first = int(part[0, 0]) - prompt
        same = drafts == truth[:, first : first + part.shape[1]]
        results.append(same.long().cumprod(-1).sum(-1))
    return torch.cat(results, 1)
