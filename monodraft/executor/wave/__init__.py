"""One wave: what generated code calls for everything that is not arithmetic. One file a concern."""

from monodraft.executor.wave.buffers import Buffers
from monodraft.executor.wave.local import LocalMemory


class Wave(Buffers, LocalMemory):
    """64 lanes in lockstep, with their memory."""
