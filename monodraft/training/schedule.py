"""The learning-rate schedule of both trainings: linear warm-up, then cosine to a tenth."""

from __future__ import annotations

import math
from collections.abc import Callable

Report = Callable[[int, dict[str, float]], None]
"""Called now and then while training with the step and the latest losses."""


def learning_rate(step: int, steps: int, peak: float, warmup: int = 100) -> float:
    """Rate at `step` of `steps`."""
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return peak * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))
