"""Train the small target: a stock transformers Qwen3 causal LM on the corpus."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from monodraft.training.schedule import Report, learning_rate
from monodraft.training.vocabulary import BEGIN_ID, END_ID


@dataclass(frozen=True)
class TargetRecipe:
    """Shape and training of the target. Sizes suit kernels on up to 8 ranks; about 10 M parameters."""

    hidden_size: int = 256
    num_layers: int = 8
    num_heads: int = 8
    num_kv_heads: int = 2
    head_dim: int = 64
    ffn_size: int = 1024
    vocab_size: int = 4096
    max_positions: int = 4096
    sequence: int = 2048
    batch: int = 32
    steps: int = 2400
    peak_lr: float = 2e-3
    weight_decay: float = 0.1
    seed: int = 1


def build_target(recipe: TargetRecipe) -> Qwen3ForCausalLM:
    """An untrained target with tied embeddings, float32."""
    config = Qwen3Config(
        vocab_size=recipe.vocab_size,
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.ffn_size,
        num_hidden_layers=recipe.num_layers,
        num_attention_heads=recipe.num_heads,
        num_key_value_heads=recipe.num_kv_heads,
        head_dim=recipe.head_dim,
        max_position_embeddings=recipe.max_positions,
        tie_word_embeddings=True,
        bos_token_id=BEGIN_ID,
        eos_token_id=END_ID,
        pad_token_id=END_ID,
        dtype=torch.float32,
    )
    torch.manual_seed(recipe.seed)
    return Qwen3ForCausalLM(config)


def train_target(tokens: torch.Tensor, recipe: TargetRecipe, device: torch.device, report: Report) -> Qwen3ForCausalLM:
    """Train on the token stream `tokens` [n] int64 (on `device`); `report(step, values)` is called now and then."""
    model = build_target(recipe)
    torch.nn.Module.to(model, device)
    decay = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": recipe.weight_decay}, {"params": rest, "weight_decay": 0.0}],
        lr=recipe.peak_lr,
        betas=(0.9, 0.95),
        fused=device.type == "cuda",
    )
    forward = torch.compile(model) if device.type == "cuda" else model
    generator = torch.Generator(device="cpu").manual_seed(recipe.seed)
    model.train()
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, recipe.steps, recipe.peak_lr)
        batch = sample_windows(tokens, recipe.batch, recipe.sequence + 1, generator)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = forward(input_ids=batch[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 200 == 0 or step == recipe.steps - 1:
            report(step, {"loss": loss.item()})
    return model.eval()


def sample_windows(tokens: torch.Tensor, count: int, length: int, generator: torch.Generator) -> torch.Tensor:
    """`count` random windows of `length` tokens from the stream: int64 [count, length]."""
    starts = torch.randint(len(tokens) - length, (count,), generator=generator)
    index = starts[:, None] + torch.arange(length)
    return tokens[index.to(tokens.device)]


@torch.no_grad()
def bits_per_byte(
    model: Qwen3ForCausalLM, files: list[torch.Tensor], byte_counts: list[int], sequence: int, device: torch.device
) -> float:
    """Held-out code length: each file is cut into pieces of `sequence` tokens, each piece starts without context."""
    nats = 0.0
    for ids in files:
        for start in range(0, len(ids) - 1, sequence):
            piece = ids[start : start + sequence + 1].to(device)[None]
            if piece.shape[1] < 2:
                continue
            with torch.autocast(device.type, dtype=torch.bfloat16):
                logits = model(input_ids=piece[:, :-1], use_cache=False).logits
            nats += torch.nn.functional.cross_entropy(logits[0].float(), piece[0, 1:], reduction="sum").item()
    return nats / math.log(2) / sum(byte_counts)
