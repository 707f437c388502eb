"""Whole generations of a pair and rounds of random drafters: every draft of the kernels beside the reference's."""

from __future__ import annotations

import time
from typing import Any

import torch
from beside import Shadowed

from monodraft.checkpoint import load_drafter
from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.shipped import PAIR, TARGET
from monodraft.checkpoint.weights import DraftWeights
from monodraft.drafter import Anchor, ContextRows
from monodraft.hopper.drafter import HopperDrafter
from monodraft.loop.pair import load_target
from monodraft.loop.plain import compare, generate_plain
from monodraft.loop.prompts import held_out_prompts
from monodraft.loop.request import Request
from monodraft.loop.sampling import Sampling
from monodraft.loop.session import Session
from monodraft.loop.speculate import Speculation, warm_up
from monodraft.reference.drafter import ReferenceDrafter


def shadowed(
    drafter: str, mxfp8: bool, prompts: int = 6, new_tokens: int = 96, temperature: float = 0.0, **options: Any
) -> dict[str, object]:
    """Drafts over whole generations of the shipped pair beside the reference's: near ties and what is refused, listed
    (`Shadowed`). `options`: further ones of `HopperDrafter`."""
    config, weights = load_drafter(PAIR / drafter, TARGET)
    both = _both(config, weights, mxfp8, max_positions=2048, **options)
    target = load_target(TARGET, config, dtype=torch.float32, device=str(both.ours.workspace.device))
    session = Session(target, both)
    requests = _requests(target, prompts, new_tokens, temperature)
    speculation = Speculation(session, requests)
    speculation.run()
    return both.figures()


def rounds(
    config: DraftConfig, weights: DraftWeights, mxfp8: bool, count: int = 24, seed: int = 3, **options: Any
) -> dict[str, object]:
    """`count` rounds of a random drafter beside the reference: 1 to block + 1 new context rows of random features, an
    anchor of any id, a draft. The same figures as of `shadowed`."""
    both = _both(config, weights, mxfp8, **({"max_positions": 512} | options))
    generator, length = torch.Generator().manual_seed(seed), 0
    both.open(0)
    for _ in range(count):
        added = int(torch.randint(1, config.block_size + 2, (), generator=generator))
        features = torch.randn(added, config.feature_size, generator=generator).bfloat16()
        both.commit([ContextRows(0, length, features.to(both.ours.workspace.device))])
        length += added
        both.propose([Anchor(0, int(torch.randint(0, config.vocab_size, (), generator=generator)), length)])
    return both.figures()


def _both(config: DraftConfig, weights: DraftWeights, mxfp8: bool, **options: Any) -> Shadowed:
    """The kernels, and the reference with as many simulated ranks."""
    ours = HopperDrafter(config, weights, mxfp8=mxfp8, max_requests=8, **options)
    numerics, device = "w8a16" if mxfp8 else "bf16", str(ours.workspace.device)
    theirs = ReferenceDrafter(
        config, weights, numerics, device=device, max_requests=8, ranks=int(options.get("ranks", 1))
    )
    return Shadowed(ours, theirs, weights)


def _requests(target: object, prompts: int, new_tokens: int, temperature: float = 0.0) -> list[Request]:
    """Requests of the held-out prompts; the seed of each is its number."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    stop = target.stop_tokens  # type: ignore[attr-defined]
    texts = list(held_out_prompts().values())[:prompts]
    return [
        Request(
            tuple(tokenizer(text).input_ids), new_tokens, sampling=Sampling(temperature), seed=seed, stop_tokens=stop
        )
        for seed, text in enumerate(texts)
    ]


def speed(drafter: str, mxfp8: bool, new_tokens: int = 128) -> dict[str, object]:
    """Tokens per second of one request with the kernels and without speculation, and whether the texts are equal."""
    config, weights = load_drafter(PAIR / drafter, TARGET)
    target = load_target(TARGET, config, dtype=torch.float32, device="cuda")
    session = Session(target, HopperDrafter(config, weights, mxfp8=mxfp8, max_requests=4, max_positions=2048))
    request = _requests(target, 1, new_tokens)[0]
    warm_up(session, request)
    start = time.perf_counter()
    speculation = Speculation(session, [request])
    speculation.run()
    seconds = time.perf_counter() - start
    output = speculation.outputs()[0]
    plain = generate_plain(target, request)
    return {
        "tokens": len(output),
        "tokens/s": len(output) / seconds,
        "plain tokens/s": plain.tokens_per_second,
        "equal": compare(output, plain).equal,
    }
