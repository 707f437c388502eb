"""Drafters that the Hopper tests build for, and context rows for them."""

import torch

from monodraft.checkpoint.config import DraftConfig, Family
from monodraft.drafter import ContextRows
from monodraft.testing import random_config

QWEN3_8B = random_config(
    Family.QWEN3,
    hidden_size=4096,
    num_layers=5,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    ffn_size=12288,
    vocab_size=151936,
    markov_rank=256,
    target_layer_ids=(1, 9, 17, 25, 33),
    max_positions=40960,
    num_target_layers=None,
)
M31 = random_config(
    Family.MINIMAX_M31,
    hidden_size=6144,
    num_layers=5,
    num_heads=64,
    num_kv_heads=4,
    head_dim=128,
    ffn_size=12288,
    vocab_size=200064,
    markov_rank=256,
    target_layer_ids=(3, 17, 31, 45, 59),
    max_positions=131072,
    windows=(4096,) * 5,
)
GEMMA4_12B = random_config(
    Family.GEMMA4,
    hidden_size=3840,
    num_layers=5,
    num_heads=16,
    num_kv_heads=1,
    head_dim=512,
    ffn_size=15360,
    vocab_size=262144,
    markov_rank=256,
    target_layer_ids=(5, 17, 29, 41, 46),
    max_positions=262144,
    num_target_layers=48,
)


def small(family: str = "minimax-m31", **overrides: object) -> DraftConfig:
    """A drafter of the test kind with heads of 128, which the kernels want."""
    return random_config(family, **({"head_dim": 128, "max_positions": 16384} | overrides))


def rows(config: DraftConfig, request: int, start: int, count: int) -> ContextRows:
    """Random context rows, the same for the same place."""
    generator = torch.Generator().manual_seed(1000 * request + start)
    return ContextRows(request, start, torch.randn(count, config.feature_size, generator=generator).bfloat16())
