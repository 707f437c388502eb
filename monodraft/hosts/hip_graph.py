"""One launch of the step as a HIP graph: captured once, replayed with the same arguments as often as wanted.

Written to be run, and NOT run by us: no AMD GPU was at hand. Tests run it on a stand-in for the HIP library.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields

from monodraft.errors import Fault, KernelError
from monodraft.hosts.hip_library import Hip, HipError
from monodraft.plan.step import Plan


class Graph:
    """The launch of `plan` that `launch()` enqueues on `stream`, captured. Its arguments are fixed (addresses, bound of
    `ticks`, rank); what it computes is not: the kernel reads its inputs and its epoch from the device's memory.

    Raises HipError naming the call that failed; the stream is out of capture then, and nothing stays allocated. `close`
    frees the graph and may be called twice.
    """

    def __init__(self, hip: Hip, plan: Plan, ticks: int, stream: int, launch: Callable[[], None]) -> None:
        self.plan, self.ticks = plan, ticks
        self._hip, self._stream = hip, stream
        with ExitStack() as owned:
            graph = self._captured(launch)
            owned.callback(hip.destroy_graph, graph)
            self._executable = hip.instantiate(graph)
            owned.callback(hip.destroy_executable, self._executable)
            self._owned = owned.pop_all()

    def _captured(self, launch: Callable[[], None]) -> int:
        """The graph of what `launch` enqueues. The stream is taken out of capture whatever happens."""
        self._hip.begin_capture(self._stream)
        try:
            launch()
        except BaseException:
            self._abandon()
            raise
        graph = self._hip.end_capture(self._stream)
        if not graph:
            raise HipError("nothing was captured", [Fault("hipStreamEndCapture", "a null graph", "a graph")])
        return graph

    def _abandon(self) -> None:
        """End a capture in which something failed; that is the error to tell, not what ending it says."""
        try:
            graph = self._hip.end_capture(self._stream)
        except HipError:
            return
        if graph:
            self._hip.destroy_graph(graph)

    def check(self, plan: Plan, ticks: int) -> None:
        """Refuse a launch that is not the captured one, naming what differs: other rows need another graph. Raises
        KernelError."""
        shape, own = plan.shape, self.plan.shape
        names = [field.name for field in fields(own) if getattr(shape, field.name) != getattr(own, field.name)]
        faults = [Fault(name, str(getattr(shape, name)), f"{getattr(own, name)}, as captured") for name in names]
        if ticks != self.ticks:
            faults.append(Fault("ticks", str(ticks), f"{self.ticks}, as captured"))
        if faults:
            raise KernelError("this graph was captured for another launch", faults)

    def replay(self) -> None:
        """Enqueue the launch once more."""
        if self._executable == 0:
            raise KernelError("this graph cannot be replayed", [Fault("graph", "closed", "an open one")])
        self._hip.launch_graph(self._executable, self._stream)

    def close(self) -> None:
        """Free the graph."""
        self._executable = 0
        self._owned.close()
