"""A stand-in for libamdhip64: the same functions over host memory. It records calls, and fails where it is told to."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from monodraft.hosts.consensus import Ranks
from monodraft.hosts.hip_library import COMPUTE_UNITS, LDS_PER_BLOCK

OUT_OF_MEMORY, INVALID, CAPTURE_UNSUPPORTED = 2, 1, 900


NAMES = {
    OUT_OF_MEMORY: b"hipErrorOutOfMemory",
    INVALID: b"hipErrorInvalidValue",
    CAPTURE_UNSUPPORTED: b"hipErrorStreamCaptureUnsupported",
}
SYNCHRONOUS = ("hipMemcpy", "hipMemset", "hipMalloc", "hipFree", "hipStreamSynchronize", "hipStreamBeginCapture")
"""What a thread may not call while it captures."""


class FakeGroup:
    """What the threads of a test, one a rank, share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=20)
        self.values: list[Any] = [None] * size


class ThreadRanks(Ranks):
    """`Ranks` over threads."""

    def __init__(self, group: FakeGroup, rank: int) -> None:
        self._group, self.rank, self.size = group, rank, group.size

    def gather(self, value: Any) -> list[Any]:
        self._group.values[self.rank] = value
        self._group.barrier.wait()
        values = list(self._group.values)
        self._group.barrier.wait()
        return values


class FakeHip:
    """Device memory is host memory, so copies are real and a peer's mapping is the memory itself.

    `fail`: code to return by function name; `on_launch(arguments)` is the kernel, given its argument values.
    """

    def __init__(self, units: int = 256, lds: int = 160 * 1024, resident: int = 1, **fail: int) -> None:
        self.units, self.lds, self.resident, self.fail = units, lds, resident, fail
        self.calls: list[str] = []
        self.blocks: dict[int, Any] = {}
        self.uncached: set[int] = set()
        self.opened: list[int] = []
        self.streams = self.modules = 0
        self.recorded: list[list[int]] | None = None  # launches of a capture that is under way
        self.graphs: dict[int, list[list[int]]] = {}  # launches by handle, of graphs and of their executables
        self.on_launch: Callable[[list[int]], None] = lambda arguments: None

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("hip"):
            raise AttributeError(name)
        work = getattr(type(self), "_" + name, None)
        if work is None:
            raise AttributeError(name)

        def function(*arguments: Any) -> int:
            self.calls.append(name)
            if name == "hipStreamEndCapture" and name in self.fail:
                self.recorded = None  # a capture that ends badly has ended
            if self.recorded is not None and name in SYNCHRONOUS:
                return CAPTURE_UNSUPPORTED
            return self.fail[name] if name in self.fail else work(self, *arguments) or 0

        return function

    @property
    def left(self) -> tuple[int, int, int, int]:
        """What has not been given back: allocations, mappings, streams, modules with graphs and their executables."""
        return len(self.blocks), len(self.opened), self.streams, self.modules + len(self.graphs)

    def _hipGetErrorName(self, code: int) -> bytes:  # noqa: N802
        return NAMES.get(code, b"hipErrorUnknown")

    def _hipGetDeviceCount(self, count: Any) -> None:  # noqa: N802
        count._obj.value = 1

    def _hipSetDevice(self, device: Any) -> None:  # noqa: N802
        pass

    def _hipDeviceGetAttribute(self, value: Any, attribute: Any, device: Any) -> None:  # noqa: N802
        value._obj.value = {COMPUTE_UNITS: self.units, LDS_PER_BLOCK: self.lds}[attribute.value]

    def _hipMalloc(self, address: Any, nbytes: Any) -> None:  # noqa: N802
        block = ctypes.create_string_buffer(b"\xa5" * nbytes.value, nbytes.value)
        address._obj.value = ctypes.addressof(block)
        self.blocks[address._obj.value] = block

    def _hipExtMallocWithFlags(self, address: Any, nbytes: Any, flags: Any) -> None:  # noqa: N802
        assert flags.value == 3
        self._hipMalloc(address, nbytes)
        self.uncached.add(address._obj.value)

    def _hipFree(self, address: Any) -> None:  # noqa: N802
        del self.blocks[address.value]

    def _hipMemcpy(self, target: Any, source: Any, nbytes: Any, kind: Any) -> None:  # noqa: N802
        ctypes.memmove(target.value, source.value, nbytes.value)

    def _hipMemset(self, address: Any, value: Any, nbytes: Any) -> None:  # noqa: N802
        ctypes.memset(address.value, value.value, nbytes.value)

    def _hipMemGetAddressRange(self, base: Any, size: Any, address: Any) -> None:  # noqa: N802
        base._obj.value, size._obj.value = address.value, len(self.blocks[address.value])

    def _hipIpcGetMemHandle(self, handle: Any, address: Any) -> None:  # noqa: N802
        assert address.value in self.uncached
        ctypes.memmove(ctypes.addressof(handle._obj), address.value.to_bytes(8, "little"), 8)

    def _hipIpcOpenMemHandle(self, address: Any, handle: Any, flags: Any) -> None:  # noqa: N802
        address._obj.value = int.from_bytes(bytes(handle)[:8], "little")
        self.opened.append(address._obj.value)

    def _hipIpcCloseMemHandle(self, address: Any) -> None:  # noqa: N802
        self.opened.remove(address.value)

    def _hipModuleLoadData(self, module: Any, data: Any) -> None:  # noqa: N802
        self.modules += 1
        module._obj.value = 0x1000

    def _hipModuleUnload(self, module: Any) -> None:  # noqa: N802
        self.modules -= 1

    def _hipModuleGetFunction(self, function: Any, module: Any, name: bytes) -> None:  # noqa: N802
        function._obj.value = 0x2000

    def _hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(self, count: Any, *_: Any) -> None:  # noqa: N802
        count._obj.value = self.resident

    def _hipStreamCreateWithFlags(self, stream: Any, flags: Any) -> None:  # noqa: N802
        self.streams += 1
        stream._obj.value = 0x3000

    def _hipStreamDestroy(self, stream: Any) -> None:  # noqa: N802
        self.streams -= 1

    def _hipStreamSynchronize(self, stream: Any) -> None:  # noqa: N802
        pass

    def _hipModuleLaunchKernel(self, function: Any, *rest: Any) -> None:  # noqa: N802
        *sizes, _, pointers, _ = rest
        self.grid = [size.value for size in sizes]
        kinds = [ctypes.c_int64] * 8 + [ctypes.c_int32] * 2
        arguments = [kind.from_address(p).value for kind, p in zip(kinds, pointers, strict=True)]
        if self.recorded is None:
            self.on_launch(arguments)
        else:
            self.recorded.append(arguments)

    def _hipStreamBeginCapture(self, stream: Any, mode: Any) -> int:  # noqa: N802
        assert mode.value == 1
        if self.recorded is not None:
            return INVALID
        self.recorded = []
        return 0

    def _hipStreamEndCapture(self, stream: Any, graph: Any) -> int:  # noqa: N802
        if self.recorded is None:
            return INVALID
        graph._obj.value = self._keep(self.recorded)
        self.recorded = None
        return 0

    def _hipGraphInstantiate(self, executable: Any, graph: Any, *nothing: Any) -> None:  # noqa: N802
        assert [value.value for value in nothing] == [None, None, 0]
        executable._obj.value = self._keep(self.graphs[graph.value])

    def _keep(self, launches: list[list[int]]) -> int:
        handle = 0x4000 + len(self.calls)
        self.graphs[handle] = launches
        return handle

    def _hipGraphLaunch(self, executable: Any, stream: Any) -> None:  # noqa: N802
        for arguments in self.graphs[executable.value]:
            self.on_launch(arguments)

    def _hipGraphExecDestroy(self, executable: Any) -> None:  # noqa: N802
        del self.graphs[executable.value]

    _hipGraphDestroy = _hipGraphExecDestroy  # noqa: N815


def words(address: int, count: int, dtype: Any = np.uint32) -> np.ndarray:
    """Device memory as an array."""
    nbytes = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype)
