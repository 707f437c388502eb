"""What others have published for one layer of a one-launch kernel, to set beside a projection of ours.

Comments in the source of vLLM's `minimax_m3/amd/mono` (commits 712db0c7, a1c6cb73, 41a73b51): layers of MiniMax-M3's
*target* on 4 MI355X, one launch a layer. Neither the weights nor the attention of a layer of the drafter: the two
stand side by side to show what hand-offs cost beside bytes, not to be divided by each other. Not measured by us.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedLayer:
    """Time of one layer at `tokens` query rows a step, `least_us` to `most_us`."""

    kernel: str
    tokens: int
    least_us: float
    most_us: float


VLLM_MONO = (
    PublishedLayer("vLLM mono (M3 target)", 1, 35.9, 37.3),
    PublishedLayer("vLLM mono (M3 target)", 2, 43.0, 44.0),
    PublishedLayer("vLLM mono (M3 target)", 4, 54.0, 58.0),
)
