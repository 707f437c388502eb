"""Target and drafter on a CUDA GPU: the same text as transformers writes there. Skipped where there is none."""

from __future__ import annotations

import pytest
import torch

from monodraft.checkpoint import load_drafter
from monodraft.checkpoint.shipped import DRAFTER, TARGET
from monodraft.loop.backends import make_drafter
from monodraft.loop.pair import load_target, load_tokenizer
from monodraft.loop.plain import compare, generate_plain
from monodraft.loop.prompts import held_out_prompts
from monodraft.loop.request import Request
from monodraft.loop.sampling import GREEDY, Sampling
from monodraft.loop.session import Session
from monodraft.loop.speculate import Speculation

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU; torch sees none"),
]

# float64: cuBLAS takes other kernels by width too, and TF32 is off by default but not promised.
NEW_TOKENS = 32


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(0.8, top_p=0.9)], ids=["greedy", "sampled"])
def test_shipped_pair_on_the_gpu(sampling: Sampling) -> None:
    config, weights = load_drafter(DRAFTER, TARGET)
    target = load_target(TARGET, config, dtype=torch.float64, device="cuda")
    drafter = make_drafter("reference", config, weights, numerics="exact", device="cuda")
    tokenizer = load_tokenizer(TARGET)
    texts = list(held_out_prompts().values())[:4]
    requests = [Request(tuple(tokenizer(text)["input_ids"]), NEW_TOKENS, sampling=sampling) for text in texts]
    speculation = Speculation(Session(target, drafter), requests)
    speculation.run()
    outputs = speculation.outputs()
    assert all(len(output) == NEW_TOKENS for output in outputs)
    assert speculation.report().statistics.tokens_per_round > 1.5
    if sampling.greedy:
        for request, output in zip(requests, outputs, strict=True):
            assert compare(output, generate_plain(target, request)).equal
