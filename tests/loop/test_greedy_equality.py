"""Greedy speculative text equals what transformers' own `generate` writes, token for token (pitfall 12)."""

from __future__ import annotations

import pytest
import torch
from scripted import run
from tiny_models import ARCHITECTURES, LAYERS, VOCAB, tiny_drafter, tiny_model

from monodraft.checkpoint.config import Family
from monodraft.drafter import Anchor, Draft
from monodraft.loop.plain import compare, generate_plain
from monodraft.loop.request import Request
from monodraft.loop.sampling import Sampling
from monodraft.loop.session import Session
from monodraft.loop.target import Target
from monodraft.reference import ReferenceDrafter

pytestmark = pytest.mark.numbers


def prompts(count: int) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(2)
    lengths = torch.randint(1, 30, (count,), generator=generator).tolist()
    return [tuple(torch.randint(0, VOCAB, (n,), generator=generator).tolist()) for n in lengths]


def oracle(architecture: str, prompt: tuple[int, ...], count: int) -> list[int]:
    """transformers' greedy search."""
    ids = torch.tensor([prompt])
    options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False}
    output = tiny_model(architecture).generate(ids, attention_mask=torch.ones_like(ids), **options)
    return output[0, len(prompt) :].tolist()


class PerfectDrafter(ReferenceDrafter):
    """The reference's state and checks, with the target's own continuation as draft. Needs the text of each anchor."""

    texts: dict[int, list[int]]

    def propose(self, anchors, *, logits=False):  # type: ignore[no-untyped-def]
        return [self._perfect(a, d) for a, d in zip(anchors, super().propose(anchors, logits=logits), strict=True)]

    def _perfect(self, anchor: Anchor, draft: Draft) -> Draft:
        text = self.texts[anchor.request]
        assert text[anchor.position] == anchor.token
        block = text[anchor.position + 1 :][: len(draft.tokens)]
        draft.tokens[: len(block)] = torch.tensor(block, dtype=torch.int64)
        return draft


@pytest.mark.parametrize("family", [Family.MINIMAX_M31, Family.QWEN3])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_random_drafter_changes_nothing(architecture: str, family: Family) -> None:
    session = Session(Target(tiny_model(architecture), LAYERS), tiny_drafter(family=family), prefill_chunk=7)
    requests = [Request(prompt, 24) for prompt in prompts(3)]
    for request, output in zip(requests, run(session, *requests), strict=True):
        assert output == oracle(architecture, request.prompt, 24)


def test_perfect_drafter_is_accepted_whole_and_pitfall_8_at_every_slot() -> None:
    target = Target(tiny_model(), LAYERS)
    base = tiny_drafter()
    base.__class__ = PerfectDrafter
    assert isinstance(base, PerfectDrafter)
    requests = [Request(prompt, 26) for prompt in prompts(4)]
    base.texts = {i: [*r.prompt, *oracle("qwen3", r.prompt, 40)] for i, r in enumerate(requests)}
    session = Session(target, base)
    outputs = run(session, *requests)
    for id, output in enumerate(outputs):
        assert output == base.texts[id][len(requests[id].prompt) :][:26]
        statistics = session.statistics(id)
        assert statistics.accepted == statistics.verified == [5, 5, 5, 5]  # 1 + 5 * 5 tokens: every slot, every round
        assert statistics.tokens_per_round == 5.0


@pytest.mark.parametrize("numerics", ["exact", "bf16", "w8a16", "mxfp8"])
def test_every_numerics_gives_the_same_text(numerics: str) -> None:
    session = Session(Target(tiny_model(), LAYERS), tiny_drafter(numerics))
    [prompt] = prompts(1)
    [output] = run(session, Request(prompt, 12))
    assert output == oracle("qwen3", prompt, 12)


def test_prefix_restore_pitfall_9_gives_the_text_and_the_drafts_of_a_fresh_request() -> None:
    """Same output, and the same drafts were accepted: the draft K/V came along with the target's."""

    def continued(prefix_of: int | None) -> tuple[list[int], list[int], int]:
        session = Session(Target(tiny_model(), LAYERS), tiny_drafter("bf16"))
        [first] = run(session, Request(prompts(1)[0], 20))
        prompt = (*prompts(1)[0], *first[:15], 3, 1, 4)
        id = session.add(Request(prompt, 25, prefix_of=prefix_of))
        while session.running:
            session.step()
        return session.output(id), session.statistics(id).accepted, session.statistics(id).restored_positions

    restored, fresh = continued(0), continued(None)
    assert restored[:2] == fresh[:2]
    assert restored[0] == oracle("qwen3", (*prompts(1)[0], *oracle("qwen3", prompts(1)[0], 15), 3, 1, 4), 25)
    assert (restored[2], fresh[2]) == (len(prompts(1)[0]) + 15, 0)


def test_prefix_restore_of_a_running_request_leaves_it_alone() -> None:
    session = Session(Target(tiny_model(), LAYERS), tiny_drafter())
    prompt = prompts(2)[1]
    session.add(Request(prompt, 30))
    for _ in range(3):
        session.step()
    text = (*prompt, *session.output(0))
    session.add(Request((*text, 5), 20, prefix_of=0))
    while session.running:
        session.step()
    assert session.output(0) == oracle("qwen3", prompt, 30)
    assert session.output(1) == oracle("qwen3", (*text, 5), 20)
    assert session.statistics(1).restored_positions == len(text) - 1


def test_sampled_run_on_a_real_target_repeats_and_does_not_depend_on_the_company() -> None:
    def outputs(*seeds: int) -> list[list[int]]:
        session = Session(Target(tiny_model(), LAYERS), tiny_drafter("bf16"))
        return run(session, *(Request(prompts(1)[0], 20, sampling=Sampling(1.0, top_p=0.9), seed=s) for s in seeds))

    [alone] = outputs(4)
    assert outputs(1, 4, 9)[1] == alone
    assert outputs(5)[0] != alone


def test_plain_run_is_the_oracle_and_the_comparison_finds_a_difference() -> None:
    target = Target(tiny_model(), LAYERS)
    [prompt] = prompts(1)
    plain = generate_plain(target, Request(prompt, 20), prefill_chunk=5)
    text = oracle("qwen3", prompt, 20)
    assert list(plain.tokens) == text
    assert all(margin > 0 for margin in plain.margins)
    assert compare(text, plain).equal
    wrong = [*text[:7], text[7] + 1, *text[8:]]
    assert (compare(wrong, plain).first_difference, compare(wrong, plain).margin) == (7, plain.margins[7])
    assert compare(text[:5], plain).first_difference == 5
