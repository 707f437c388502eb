"""The HIP runtime through ctypes: just the calls that the ROCm host makes, errors as exceptions that name the call.

Written to be run, and NOT run by us: no AMD GPU was at hand. The tests put an object with the same functions in the
library's place. Values of flags and attributes are those of ROCm's `hip_runtime_api.h`.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from typing import Any

from monodraft.errors import Fault, MonodraftError

SUCCESS, NO_BINARY = 0, 209
UNCACHED = 3
"""hipDeviceMallocUncached: memory that no cache of any GPU keeps."""
IPC_LAZY_PEER_ACCESS = 1
TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3
NON_BLOCKING = 1
CAPTURE_THREAD = 1
"""hipStreamCaptureModeThreadLocal: calls of other threads do not spoil a capture."""
COMPUTE_UNITS, LDS_PER_BLOCK = 63, 74
"""hipDeviceAttributeMultiprocessorCount, hipDeviceAttributeMaxSharedMemoryPerBlock."""
HANDLE_BYTES = 64
NAMES = ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so")
ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


class UnsupportedBackend(MonodraftError):
    """A backend that this machine cannot run, with what is missing."""


class HipError(MonodraftError):
    """A call of the HIP runtime that failed: its name, its code, what HIP says of it."""


class IpcHandle(ctypes.Structure):
    """hipIpcMemHandle_t: passed by value."""

    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


def load_library() -> ctypes.CDLL:
    """The HIP runtime of this machine; UnsupportedBackend where there is none."""
    found = ctypes.util.find_library("amdhip64")
    for name in (*NAMES, *([found] if found else [])):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    fault = Fault("libamdhip64.so", "not found", "ROCm's HIP runtime on the library path")
    raise UnsupportedBackend("there is no ROCm on this machine", [fault])


def missing() -> str | None:
    """Why this machine cannot run the ROCm host, or None."""
    try:
        library = Hip(load_library())
        count = library.device_count()
    except MonodraftError as error:
        return "; ".join(f"{fault.where}: {fault.found}" for fault in error.faults)
    return None if count else "ROCm is here, but no GPU that it can use"


class Hip:
    """Calls on one `library` (a CDLL, or an object with the same functions). Addresses are plain integers."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function; HipError unless it returns success."""
        function = getattr(self._library, name, None)
        if function is None:
            raise UnsupportedBackend("this HIP runtime is too old", [Fault(name, "not in the library", "ROCm 6 or 7")])
        code = int(function(*arguments))
        if code != SUCCESS:
            raise HipError("a HIP call failed", [Fault(name, f"{code} ({self.describe(code)})", "0 (hipSuccess)")])

    def describe(self, code: int) -> str:
        """HIP's own name of an error."""
        function = getattr(self._library, "hipGetErrorName", None)
        if function is None:
            return "unknown error"
        function.restype = ctypes.c_char_p
        text = function(code)
        return text.decode() if isinstance(text, bytes) else "unknown error"

    def device_count(self) -> int:
        count = ctypes.c_int()
        self.call("hipGetDeviceCount", ctypes.byref(count))
        return count.value

    def set_device(self, device: int) -> None:
        """Make a GPU the current one of this thread."""
        self.call("hipSetDevice", ctypes.c_int(device))

    def attribute(self, attribute: int, device: int) -> int:
        value = ctypes.c_int()
        self.call("hipDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(attribute), ctypes.c_int(device))
        return value.value

    def allocate(self, nbytes: int) -> int:
        """Ordinary device memory."""
        address = ctypes.c_void_p()
        self.call("hipMalloc", ctypes.byref(address), ctypes.c_size_t(nbytes))
        return address.value or 0

    def allocate_uncached(self, nbytes: int) -> int:
        """Device memory that peers may write while a kernel polls it."""
        address = ctypes.c_void_p()
        flags = ctypes.c_uint(UNCACHED)
        self.call("hipExtMallocWithFlags", ctypes.byref(address), ctypes.c_size_t(nbytes), flags)
        return address.value or 0

    def free(self, address: int) -> None:
        self.call("hipFree", ctypes.c_void_p(address))

    def copy(self, target: int, source: int, nbytes: int, kind: int) -> None:
        """Copy and wait."""
        arguments = ctypes.c_void_p(target), ctypes.c_void_p(source), ctypes.c_size_t(nbytes), ctypes.c_int(kind)
        self.call("hipMemcpy", *arguments)

    def zero(self, address: int, nbytes: int) -> None:
        self.call("hipMemset", ctypes.c_void_p(address), ctypes.c_int(0), ctypes.c_size_t(nbytes))

    def export(self, address: int) -> tuple[bytes, int]:
        """IPC handle of the allocation that holds `address`, and the offset of the address in it."""
        base, size, handle = ctypes.c_void_p(), ctypes.c_size_t(), IpcHandle()
        self.call("hipMemGetAddressRange", ctypes.byref(base), ctypes.byref(size), ctypes.c_void_p(address))
        start = base.value or 0
        try:
            self.call("hipIpcGetMemHandle", ctypes.byref(handle), ctypes.c_void_p(start))
        except HipError as error:
            raise HipError("peer memory cannot be shared over IPC", [*error.faults, *_allocator_faults()]) from error
        return bytes(handle), address - start

    def open(self, handle: bytes, offset: int) -> tuple[int, int]:
        """Map a peer's allocation; its base (for `close`), and the address at `offset` in it."""
        address = ctypes.c_void_p()
        value = IpcHandle.from_buffer_copy(handle)
        self.call("hipIpcOpenMemHandle", ctypes.byref(address), value, ctypes.c_uint(IPC_LAZY_PEER_ACCESS))
        base = address.value or 0
        return base, base + offset

    def close(self, base: int) -> None:
        """Unmap a peer's allocation."""
        self.call("hipIpcCloseMemHandle", ctypes.c_void_p(base))

    def load_module(self, code_object: bytes) -> int:
        """Load a code object; HipError that says so where it is for another GPU."""
        module = ctypes.c_void_p()
        try:
            self.call("hipModuleLoadData", ctypes.byref(module), ctypes.c_char_p(code_object))
        except HipError as error:
            if f"found {NO_BINARY} " in str(error):
                fault = Fault("the GPU", "an architecture that the code object is not for", "gfx950 (MI350, MI355X)")
                raise UnsupportedBackend("the kernel is for gfx950", [fault]) from error
            raise
        return module.value or 0

    def unload_module(self, module: int) -> None:
        self.call("hipModuleUnload", ctypes.c_void_p(module))

    def function(self, module: int, name: str) -> int:
        function = ctypes.c_void_p()
        self.call("hipModuleGetFunction", ctypes.byref(function), ctypes.c_void_p(module), name.encode())
        return function.value or 0

    def resident(self, function: int, threads: int) -> int:
        """CTAs of a function that one compute unit holds at once."""
        count = ctypes.c_int()
        self.call(
            "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor",
            ctypes.byref(count),
            ctypes.c_void_p(function),
            ctypes.c_int(threads),
            ctypes.c_size_t(0),
        )
        return count.value

    def make_stream(self) -> int:
        stream = ctypes.c_void_p()
        self.call("hipStreamCreateWithFlags", ctypes.byref(stream), ctypes.c_uint(NON_BLOCKING))
        return stream.value or 0

    def destroy_stream(self, stream: int) -> None:
        self.call("hipStreamDestroy", ctypes.c_void_p(stream))

    def synchronize(self, stream: int) -> None:
        self.call("hipStreamSynchronize", ctypes.c_void_p(stream))

    def launch(self, function: int, ctas: int, threads: int, stream: int, arguments: list[Any]) -> None:
        """Launch `ctas` CTAs of `threads`; `arguments` are ctypes values in the kernel's order."""
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(value) for value in arguments))
        sizes = [ctypes.c_uint(size) for size in (ctas, 1, 1, threads, 1, 1, 0)]
        self.call("hipModuleLaunchKernel", ctypes.c_void_p(function), *sizes, ctypes.c_void_p(stream), pointers, None)

    def begin_capture(self, stream: int) -> None:
        """From here on, launches on the stream are recorded and not run."""
        self.call("hipStreamBeginCapture", ctypes.c_void_p(stream), ctypes.c_int(CAPTURE_THREAD))

    def end_capture(self, stream: int) -> int:
        """The graph of what was recorded."""
        graph = ctypes.c_void_p()
        self.call("hipStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
        return graph.value or 0

    def instantiate(self, graph: int) -> int:
        """An executable of a graph."""
        executable = ctypes.c_void_p()
        nothing = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t(0)
        self.call("hipGraphInstantiate", ctypes.byref(executable), ctypes.c_void_p(graph), *nothing)
        return executable.value or 0

    def launch_graph(self, executable: int, stream: int) -> None:
        self.call("hipGraphLaunch", ctypes.c_void_p(executable), ctypes.c_void_p(stream))

    def destroy_executable(self, executable: int) -> None:
        self.call("hipGraphExecDestroy", ctypes.c_void_p(executable))

    def destroy_graph(self, graph: int) -> None:
        self.call("hipGraphDestroy", ctypes.c_void_p(graph))


def _allocator_faults() -> list[Fault]:
    """Settings of PyTorch's allocator that are known to break IPC handles."""
    return [
        Fault(name, os.environ[name], "no expandable_segments: memory of such segments has no IPC handle")
        for name in ALLOCATOR_SETTINGS
        if "expandable_segments:true" in os.environ.get(name, "").lower()
    ]
