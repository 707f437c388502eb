"""The table of known operations: how each becomes a Python expression on lanes. One file a family."""

from monodraft.executor.operations import arithmetic, control, convert, cross_lane, matrices, memory, vectors
from monodraft.executor.operations.table import KNOWN, Known, find

__all__ = [
    "KNOWN",
    "Known",
    "arithmetic",
    "control",
    "convert",
    "cross_lane",
    "find",
    "matrices",
    "memory",
    "vectors",
]
