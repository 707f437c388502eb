"""The fast engine: a lowered kernel as 64-lane SIMD code for the host CPU, under a scheduler that is native code too.

See docs/executor-fast.md for what it models and what it leaves to the reference engine.
"""

from monodraft.executor.fast.engine import FastEngine, Runner, prepare

__all__ = ["FastEngine", "Runner", "prepare"]
