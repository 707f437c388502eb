"""Times of a step: CUDA-graph replays between events, median."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

CEILING = 4.37e12
"""Bytes per second that a read-only kernel reaches on this GPU (measured; benchmarks/results/hopper)."""


def microseconds(replay: Callable[[], None], repeats: int = 30, warm: int = 5) -> dict[str, float]:
    """Median, least and greatest time of `replay` in microseconds."""
    for _ in range(warm):
        replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return {"median": statistics.median(times), "least": min(times), "greatest": max(times), "repeats": repeats}


def captured(function: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A CUDA graph of `function`, warmed up on a side stream first."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            function()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph
