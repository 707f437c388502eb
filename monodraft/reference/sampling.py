"""The choice of a drafted token: greedy, or sampled with noise that depends on (seed, position, id) alone.

Sampled choice at temperature T (Gumbel-max): id = argmax of fl32(fl32(logit / T) + gumbel), lowest id on ties.
gumbel = fl32(-log(-log(u))), evaluated in float64; u = (x + 0.5) * 2^-32 and x the word `id % 4` of Philox4x32-10 with

    key     = (seed mod 2^32, seed div 2^32)
    counter = (id div 4, position, stream, 0)

`position` is that of the query row, anchor.position + j for the token meant for anchor.position + j + 1 (vLLM's key).
`stream` is 0 for drafts; other draws of the same seed and position must take another stream.
Philox: Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*, SC 2011.
"""

from __future__ import annotations

import torch

GREEDY_BELOW = 1e-5
"""Temperatures below this draft greedily (spec 1.6)."""

DRAFT_STREAM = 0

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def _product(a: int, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low words of a 32 x 32 bit product; int64 wraps, so its bits are those of the unsigned product."""
    wide = b * a
    return (wide >> 32) & _MASK, wide & _MASK


def philox4x32(counter: list[torch.Tensor], key: tuple[int, int]) -> list[torch.Tensor]:
    """Philox4x32-10: four words of counter (int64 tensors of one shape, below 2^32) and two of key to four words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = _product(_MULTIPLIERS[0], c0)
        high1, low1 = _product(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return [c0, c1, c2, c3]


def uniform(seed: int, position: int, count: int, device: torch.device, stream: int = DRAFT_STREAM) -> torch.Tensor:
    """float64 [count] in (0, 1), multiples of 2^-33: the u of ids 0..count-1."""
    block = torch.arange(-(-count // 4), dtype=torch.int64, device=device)
    counter = [block, torch.full_like(block, position), torch.full_like(block, stream), torch.zeros_like(block)]
    words = philox4x32(counter, (seed & _MASK, seed >> 32))
    return (torch.stack(words, -1).flatten()[:count].to(torch.float64) + 0.5) * 2.0**-32


def gumbel(seed: int, position: int, count: int, device: torch.device) -> torch.Tensor:
    """float32 [count] of Gumbel noise for ids 0..count-1."""
    return (-torch.log(-torch.log(uniform(seed, position, count, device)))).to(torch.float32)


def usable(logits: torch.Tensor) -> torch.Tensor:
    """float32 logits with NaN as -inf and +inf as the greatest float32; a row without any usable logit keeps id 0.

    So every choice is an id of the vocabulary, whatever the logits are (pitfall 25), and q is a distribution.
    """
    clean = torch.nan_to_num(logits, nan=-torch.inf, posinf=torch.finfo(torch.float32).max, neginf=-torch.inf)
    empty = clean.amax(-1) == -torch.inf
    if bool(empty.any()):
        clean[..., 0] = torch.where(empty, 0.0, clean[..., 0])
    return clean


def tempered(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """fl32(logits / T) of float32 logits. T is a tensor beside them: CUDA multiplies by the reciprocal of a number."""
    return logits / torch.tensor(temperature, dtype=torch.float64, device=logits.device).to(torch.float32)


def scores(logits: torch.Tensor, temperature: float, seed: int, position: int) -> torch.Tensor:
    """float32 [V] whose argmax is the choice: usable logits, tempered and with noise where the draft is sampled."""
    if temperature < GREEDY_BELOW:
        return usable(logits)
    return usable(tempered(logits, temperature)) + gumbel(seed, position, logits.shape[-1], logits.device)


def lowest_argmax(values: torch.Tensor) -> torch.Tensor:
    """int64 [...]: lowest id of the maximum over the last axis. No NaN in `values`."""
    ids = torch.arange(values.shape[-1], device=values.device)
    return torch.where(values == values.amax(-1, keepdim=True), ids, values.shape[-1]).amin(-1)


def draft_probabilities(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """float64 [..., V]: q, the distribution that a draft with `logits` float32 [..., V] was sampled from.

    softmax of usable(fl32(logits / T)); one-hot at the greedy choice for T below `GREEDY_BELOW`.
    """
    if temperature < GREEDY_BELOW:
        choice = lowest_argmax(usable(logits))
        return torch.nn.functional.one_hot(choice, logits.shape[-1]).to(torch.float64)
    return torch.softmax(usable(tempered(logits, temperature)).to(torch.float64), -1)
