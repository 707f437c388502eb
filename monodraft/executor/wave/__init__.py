"""One wave: what generated code calls for everything that is not arithmetic. One file a concern."""

from monodraft.executor.wave.direct import DirectToLds


class Wave(DirectToLds):
    """64 lanes in lockstep, with their memory."""
