"""Train a DSpark drafter for a frozen target: 0.1 cross-entropy + 0.9 L1 + 1.0 confidence (the recipe of DeepSpec).

Each step takes whole windows of text, runs the frozen target once for features and distributions, and drafts from
many anchors per window with the true previous token at every slot. Slot k weighs exp(-k / 4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, log_softmax, softmax
from transformers import PreTrainedModel

from monodraft.checkpoint.config import DraftConfig
from monodraft.training.draft_model import DraftModel, make_blocks
from monodraft.training.features import target_features
from monodraft.training.schedule import Report, learning_rate
from monodraft.training.target_model import sample_windows


@dataclass(frozen=True)
class DrafterRecipe:
    """How a drafter is trained."""

    sequence: int = 1024
    batch: int = 32
    anchors: int = 64
    steps: int = 3789
    peak_lr: float = 1.5e-3
    weight_decay: float = 0.01
    seed: int = 2


@dataclass(frozen=True)
class Losses:
    """Means over anchors and slots, slots weighed by exp(-k / 4); `total` is what is minimised."""

    cross_entropy: torch.Tensor
    l1: torch.Tensor
    confidence: torch.Tensor

    @property
    def total(self) -> torch.Tensor:
        return 0.1 * self.cross_entropy + 0.9 * self.l1 + self.confidence


def draft_losses(model: DraftModel, hidden: torch.Tensor, tokens: torch.Tensor, target_logits: torch.Tensor) -> Losses:
    """Losses of drafted rows.

    hidden [B, A, g, H]; tokens [B, A, g + 1]: the anchor and the g true tokens after it; target_logits [B, A, g, V]:
    the target's logits for the same g tokens.
    """
    previous, labels = tokens[..., :-1], tokens[..., 1:]
    logits = (model.base_logits(hidden) + model.bias_logits(previous)).float()
    log_q = log_softmax(logits, -1)
    p = softmax(target_logits.float(), -1)
    distance = (log_q.exp() - p).abs().sum(-1)
    cross_entropy = -log_q.gather(-1, labels[..., None])[..., 0]
    accept = 1 - 0.5 * distance.detach()
    confidence = binary_cross_entropy_with_logits(
        model.confidence_logit(hidden, previous).float(), accept, reduction="none"
    )
    weight = torch.exp(-torch.arange(labels.shape[-1], device=labels.device) / 4)
    weight = weight / weight.mean()
    return Losses((cross_entropy * weight).mean(), (distance * weight).mean(), (confidence * weight).mean())


def gather_rows(values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Rows of values [B, T, ...] at index [B, A, n]: [B, A, n, ...]."""
    batch = torch.arange(values.shape[0], device=values.device)[:, None, None]
    return values[batch, index]


def train_drafter(
    target: PreTrainedModel,
    config: DraftConfig,
    batches: Callable[[torch.Generator], torch.Tensor],
    recipe: DrafterRecipe,
    device: torch.device,
    report: Report,
) -> DraftModel:
    """Train on windows of tokens that `batches` draws: int64 [batch, sequence], on `device`. The target is frozen."""
    torch.manual_seed(recipe.seed)
    embedding = target.get_parameter("model.embed_tokens.weight")
    model = DraftModel(config, embedding).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=recipe.peak_lr,
        betas=(0.9, 0.95),
        weight_decay=recipe.weight_decay,
        fused=device.type == "cuda",
    )
    generator = torch.Generator(device="cpu").manual_seed(recipe.seed)
    block = config.block_size
    windows = set(config.windows)
    if len(windows) != 1:
        raise NotImplementedError("training with windows that differ between layers")
    window = windows.pop()
    offsets = torch.arange(block + 1, device=device)
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, recipe.steps, recipe.peak_lr)
        tokens = batches(generator)
        features, logits = target_features(target, tokens, config.target_layer_ids)
        # From position 1: an anchor needs at least one committed row before it, as in generation.
        anchors = torch.stack(
            [torch.randperm(tokens.shape[1] - block - 1, generator=generator)[: recipe.anchors] + 1 for _ in tokens]
        )
        anchors = anchors.to(device)
        index = anchors[..., None] + offsets
        blocks = make_blocks(anchors, tokens.shape[1], block, window)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            hidden = model.hidden(features, gather_rows(tokens, index[..., :1])[..., 0], blocks)
            losses = draft_losses(model, hidden, gather_rows(tokens, index), gather_rows(logits, index[..., :-1]))
        losses.total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 250 == 0 or step == recipe.steps - 1:
            report(
                step,
                {"ce": losses.cross_entropy.item(), "l1": losses.l1.item(), "confidence": losses.confidence.item()},
            )
    return model.eval()


def mixed_batches(
    corpus: torch.Tensor, own: torch.Tensor, recipe: DrafterRecipe
) -> Callable[[torch.Generator], torch.Tensor]:
    """Half windows of the corpus stream [n], half texts [count, length] that the target wrote itself."""
    half = recipe.batch // 2

    def draw(generator: torch.Generator) -> torch.Tensor:
        picks = torch.randint(len(own), (recipe.batch - half,), generator=generator)
        written = own[picks.to(own.device), : recipe.sequence]
        return torch.cat([sample_windows(corpus, half, recipe.sequence, generator), written])

    return draw
