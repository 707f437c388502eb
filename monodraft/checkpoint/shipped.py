"""Where the pair that comes with the package lies: the only place that knows."""

from __future__ import annotations

from pathlib import Path

PAIR = Path(__file__).resolve().parents[1] / "pair"
DRAFTER = PAIR / "drafter"
"""Folder of the shipped drafter (M3.1 family)."""
TARGET = PAIR / "target"
"""Folder of the shipped target (a stock transformers causal LM)."""
