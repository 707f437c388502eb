"""Text that the target writes itself: what a drafter meets in use, half greedy, half sampled."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from monodraft.training.target_model import sample_windows
from monodraft.training.vocabulary import END_ID


@torch.no_grad()
def write_texts(
    target: PreTrainedModel,
    tokens: torch.Tensor,
    count: int,
    length: int,
    prompt: int = 48,
    group: int = 1024,
    seed: int = 3,
) -> torch.Tensor:
    """`count` texts of `length` tokens: a prompt cut from the stream `tokens`, then the target's own continuation.

    Returns int64 [count, length] on the device of `tokens`. The first half of every group is greedy, the rest is
    sampled at temperature 1. The end token does not stop a text.
    """
    generator = torch.Generator(device="cpu").manual_seed(seed)
    torch.manual_seed(seed)
    texts = []
    for start in range(0, count, group):
        prompts = sample_windows(tokens, min(group, count - start), prompt, generator)
        half = len(prompts) // 2
        for part, sampled in ((prompts[:half], False), (prompts[half:], True)):
            options = {"do_sample": True, "temperature": 1.0, "top_k": 0} if sampled else {"do_sample": False}
            with torch.autocast(tokens.device.type, dtype=torch.bfloat16):
                texts.append(
                    target.generate(  # type: ignore[operator]
                        input_ids=part,
                        attention_mask=torch.ones_like(part),
                        max_new_tokens=length - prompt,
                        min_new_tokens=length - prompt,
                        pad_token_id=END_ID,
                        **options,
                    )
                )
    return torch.cat(texts)
