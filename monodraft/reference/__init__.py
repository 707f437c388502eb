"""The drafter in plain PyTorch: the contract that every kernel is compared with (docs/reference.md)."""

from monodraft.reference.drafter import MarginDraft, ReferenceDrafter
from monodraft.reference.numerics import NUMERICS, W8A16, Bf16, Exact, Mxfp8, Numerics
from monodraft.reference.sampling import draft_probabilities

__all__ = [
    "NUMERICS",
    "W8A16",
    "Bf16",
    "Exact",
    "MarginDraft",
    "Mxfp8",
    "Numerics",
    "ReferenceDrafter",
    "draft_probabilities",
]
