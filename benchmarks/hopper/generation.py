"""Whole generations of a pair and rounds of random drafters: every draft of the kernels beside the reference's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from monodraft.checkpoint import load_drafter
from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.shipped import PAIR, TARGET
from monodraft.checkpoint.weights import DraftWeights
from monodraft.drafter import Anchor, ContextRows, Draft
from monodraft.hopper.drafter import HopperDrafter
from monodraft.loop.pair import load_target
from monodraft.loop.plain import compare, generate_plain
from monodraft.loop.prompts import held_out_prompts
from monodraft.loop.request import Request
from monodraft.loop.sampling import Sampling
from monodraft.loop.session import Session
from monodraft.loop.speculate import Speculation, warm_up
from monodraft.reference.drafter import ReferenceDrafter
from monodraft.reference.sampling import scores


class Shadowed:
    """Drafts with `ours` and notes where `theirs` drafts otherwise, with its lead at the first difference."""

    def __init__(self, ours: HopperDrafter, theirs: ReferenceDrafter) -> None:
        self.ours, self.theirs, self.config = ours, theirs, ours.config
        self.drafts = self.tokens = 0
        self.differences: list[dict[str, float]] = []

    def open(self, request: int) -> None:
        self.ours.open(request), self.theirs.open(request)  # type: ignore[func-returns-value]

    def close(self, request: int) -> None:
        self.ours.close(request), self.theirs.close(request)  # type: ignore[func-returns-value]

    def fork(self, source: int, request: int, length: int) -> None:
        self.ours.fork(source, request, length), self.theirs.fork(source, request, length)  # type: ignore[func-returns-value]

    def commit(self, rows: Sequence[ContextRows]) -> None:
        self.ours.commit(rows), self.theirs.commit(rows)  # type: ignore[func-returns-value]

    def propose(self, anchors: Sequence[Anchor], *, logits: bool = False) -> list[Draft]:
        ours = self.ours.propose(anchors, logits=True)
        theirs = self.theirs.propose_with_margins(anchors, logits=True)
        for anchor, draft, proposal in zip(anchors, ours, theirs, strict=True):
            wanted = proposal.draft
            self.drafts += 1
            self.tokens += len(draft.tokens)
            slots = (draft.tokens != wanted.tokens.cpu()).nonzero()
            if len(slots):
                slot = int(slots[0])
                assert draft.logits is not None
                assert wanted.logits is not None
                own, other = (
                    scores(each[slot].cpu(), anchor.temperature, anchor.seed, anchor.position + slot)
                    for each in (draft.logits, wanted.logits)
                )
                error, lead = float((own - other).abs().max()), float(proposal.margins[slot])
                self.differences.append({"lead": lead, "greatest score error": error, "near tie": lead <= 2 * error})
        return ours


def shadowed(
    drafter: str, mxfp8: bool, prompts: int = 6, new_tokens: int = 96, temperature: float = 0.0, **options: Any
) -> dict[str, object]:
    """Drafts over whole generations of the shipped pair that differ from the reference's, all listed.

    A difference is a near tie where the reference's lead is at most twice the greatest difference of the two backends'
    scores in that row: the sum of the errors of the two candidates. Scores are the corrected logits; sampled, over the
    temperature and with the noise, which is the same for both. `options`: further ones of `HopperDrafter`.
    """
    config, weights = load_drafter(PAIR / drafter, TARGET)
    both = _both(config, weights, mxfp8, max_positions=2048, **options)
    target = load_target(TARGET, config, dtype=torch.float32, device=str(both.ours.workspace.device))
    session = Session(target, both)
    requests = _requests(target, prompts, new_tokens, temperature)
    speculation = Speculation(session, requests)
    speculation.run()
    return _figures(both)


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
    return _figures(both)


def _both(config: DraftConfig, weights: DraftWeights, mxfp8: bool, **options: Any) -> Shadowed:
    """The kernels, and the reference with as many simulated ranks."""
    ours = HopperDrafter(config, weights, mxfp8=mxfp8, max_requests=8, **options)
    numerics, device = "w8a16" if mxfp8 else "bf16", str(ours.workspace.device)
    theirs = ReferenceDrafter(
        config, weights, numerics, device=device, max_requests=8, ranks=int(options.get("ranks", 1))
    )
    return Shadowed(ours, theirs)


def _figures(both: Shadowed) -> dict[str, object]:
    worst = [difference for difference in both.differences if not difference["near tie"]]
    return {
        "drafts": both.drafts,
        "tokens": both.tokens,
        "differing": len(both.differences),
        "not near ties": len(worst),
        "differences": both.differences,
    }


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
