"""MiniMax-M3.1 at its released sizes on four ranks: one step of the launch that ships, executed (nightly class).

Two cores and 18 GB at the peak: about 20 s for random weights, 90 s for the two references, 40 s to
pack, 40 s to trace, translate and execute. The embedding is zero but for the two rows that the step reads, so that its
2.5 GB a rank cost nothing.
"""

from __future__ import annotations

import resource
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from comparison import Evidence, Outcome, check_rows, compare_draft
from drafts import final_rows
from head_bounds import Heads

import monodraft.executor as ex
from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.weights import DraftWeights, LayerWeights, Mxfp8Matrix
from monodraft.drafter import Anchor, ContextRows
from monodraft.hosts.executor_drafter import ExecutorDrafter
from monodraft.reference import Exact, ReferenceDrafter
from monodraft.testing import random_config

NEEDED_GB = 18


def available_gb() -> float:
    """What Linux calls available: free memory and caches that can be dropped."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) / 1e6 for line in lines if line.startswith("MemAvailable"))


pytestmark = [
    pytest.mark.slow,
    pytest.mark.executed,
    pytest.mark.timeout(5400),
    pytest.mark.skipif(available_gb() < NEEDED_GB, reason=f"needs {NEEDED_GB} GB of memory to spare"),
]

RANKS, CTAS, LENGTH, ANCHOR = 4, 256, 12, 77
RELEASED = {
    "hidden_size": 6144, "num_layers": 5, "head_dim": 128, "num_heads": 64, "num_kv_heads": 4, "ffn_size": 12288,
    "vocab_size": 200064, "markov_rank": 256, "windows": (4096,) * 5, "target_layer_ids": (3, 17, 31, 45, 59),
    "max_positions": 524288, "mask_token_id": 200058,
}  # fmt: skip


def normal(generator: torch.Generator, rows: int, columns: int, scale: float) -> torch.Tensor:
    """bf16 [rows, columns], drawn in pieces of a few MB."""
    out = torch.empty(rows, columns, dtype=torch.bfloat16)
    for piece in out.split(512):
        piece.copy_(scale * torch.randn(piece.shape, generator=generator))
    return out


def linear(generator: torch.Generator, rows: int, columns: int) -> Mxfp8Matrix:
    """MXFP8 [rows, columns] of standard deviation near columns ** -0.5, scale bytes that differ from block to block."""
    elements = torch.empty(rows, columns, dtype=torch.uint8)
    for piece in elements.split(512):
        piece.copy_(torch.randn(piece.shape, generator=generator).to(torch.float8_e4m3fn).view(torch.uint8))
    middle = 127 - (columns.bit_length() - 1) // 2
    scales = torch.randint(middle - 1, middle + 1, (rows, columns // 32), generator=generator, dtype=torch.uint8)
    return Mxfp8Matrix(elements, scales)


def released_weights(config: DraftConfig) -> DraftWeights:
    """Random weights of the released shapes, 5 GB."""
    generator = torch.Generator().manual_seed(0)
    H, D, F = config.hidden_size, config.head_dim, config.ffn_size

    def norm(size: int) -> torch.Tensor:
        return normal(generator, 1, size, 0.1)[0]

    def layer() -> LayerWeights:
        return LayerWeights(
            input_norm=norm(H),
            q=linear(generator, config.q_size, H),
            k=linear(generator, config.kv_size, H),
            v=linear(generator, config.kv_size, H),
            o=linear(generator, H, config.q_size),
            q_norm=norm(D),
            k_norm=norm(D),
            post_norm=norm(H),
            gate=linear(generator, F, H),
            up=linear(generator, F, H),
            down=linear(generator, H, F),
        )

    embed = torch.zeros(config.vocab_size, H, dtype=torch.bfloat16)
    for token in (ANCHOR, config.mask_token_id):
        embed[token] = torch.randn(H, generator=generator).bfloat16()
    return DraftWeights(
        fc=normal(generator, H, config.feature_size, config.feature_size**-0.5),
        hidden_norm=norm(H),
        layers=tuple(layer() for _ in range(config.num_layers)),
        final_norm=norm(H),
        embed=embed,
        lm_head=normal(generator, config.vocab_size, H, H**-0.5),
        markov_w1=normal(generator, config.vocab_size, config.markov_rank, 1.0),
        markov_w2=normal(generator, config.vocab_size, config.markov_rank, config.markov_rank**-0.5),
        confidence_weight=normal(generator, 1, H + config.markov_rank, H**-0.5),
        confidence_bias=torch.zeros(1, dtype=torch.bfloat16),
    )


def say(what: str, start: float) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{what}: {time.monotonic() - start:.0f} s, peak {peak:.1f} GB", flush=True)


def test_one_step_of_the_released_sizes_on_four_ranks() -> None:
    config = random_config(**RELEASED)
    start = time.monotonic()
    weights = released_weights(config)
    say("weights", start)
    features = torch.randn(LENGTH, config.feature_size, generator=torch.Generator().manual_seed(1)).bfloat16()
    rows, anchors = [ContextRows(0, 0, features)], [Anchor(0, ANCHOR, LENGTH)]

    start = time.monotonic()
    reference = ReferenceDrafter(config, weights, "mxfp8", ranks=RANKS, max_requests=1, pages=4, kept_bytes=0)
    reference.open(0)
    reference.commit(rows)
    with reference.recording() as record:
        (wanted,) = reference.propose_with_margins(anchors, logits=True)
    rounded = record["final"]
    say("reference", start)
    del reference

    start = time.monotonic()
    ideal = ReferenceDrafter(config, weights, Exact(torch.float32), max_requests=1, pages=4, kept_bytes=0)
    ideal.open(0)
    ideal.commit(rows)
    with ideal.recording() as record:
        ideal.propose(anchors)
    smooth = record["final"]
    say("float32", start)
    del ideal, record

    start = time.monotonic()
    memory = ex.Memory(ranks=RANKS, capacity=40 << 30)
    # The harsh model keeps a copy of what each XCD has read: several times the weights. Round robin, memory as it is.
    model = ex.MemoryModel.sequential().without("races")
    executed = ExecutorDrafter(
        config, weights, ranks=RANKS, ctas=CTAS, positions=64, max_requests=1, memory=memory, model=model
    )
    nothing = torch.empty(0)
    heads = Heads(config, replace(weights, layers=(), fc=nothing, embed=nothing))
    del weights
    say("packed", start)
    executed.open(0)
    executed.commit(rows)
    start = time.monotonic()
    (draft,) = executed.propose(anchors, logits=True)
    say("traced, translated and executed", start)

    outputs = [executed.workspace.blocks(rank)[0]("tokens") for rank in range(RANKS)]
    assert all(output.tobytes() == outputs[0].tobytes() for output in outputs)
    assert draft.logits is not None
    assert wanted.draft.logits is not None
    print(draft.tokens.tolist(), wanted.draft.tokens.tolist(), wanted.margins.tolist())
    start, outcome = time.monotonic(), Outcome()
    final = final_rows(executed, len(rounded))
    check_rows(final, rounded, smooth, outcome)
    evidence = Evidence(heads, anchors[0], final.double(), rounded.double())
    compare_draft(draft, wanted, outcome, evidence=evidence)
    say(f"compared, {outcome}", start)
