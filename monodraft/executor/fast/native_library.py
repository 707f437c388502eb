"""The native functions that translated kernels call, compiled when first needed and kept in the cache of objects."""

from __future__ import annotations

from functools import cache

from monodraft.executor.fast import (
    native,
    runtime_access,
    runtime_atomics,
    runtime_caches,
    runtime_exact,
    runtime_lanes,
    runtime_schedule,
    runtime_steps,
    runtime_waits,
)
from monodraft.executor.fast.compiler import compiled, engine_version
from monodraft.executor.fast.matrix_code import matrix_library
from monodraft.executor.fast.objects import LoadedObject, external_symbol
from monodraft.executor.fast.special import special_library

RUNTIME = (
    runtime_access.load_lanes,
    runtime_access.store_lanes,
    runtime_access.load_edge,
    runtime_access.load_to_lds,
    runtime_access.store_edge,
    runtime_access.load_lds,
    runtime_access.store_lds,
    runtime_waits.fence,
    runtime_waits.cache_operation,
    runtime_waits.wait_count,
    runtime_waits.wait_load,
    runtime_atomics.atomic_lanes,
    runtime_caches.reset_caches,
    runtime_exact.round_terms,
    runtime_exact.exact_matrix,
    runtime_lanes.pull_lanes,
    runtime_lanes.push_lanes,
    runtime_lanes.permute_bytes,
    runtime_steps.pick_step,
    runtime_steps.pend_step,
    runtime_steps.next_step,
    runtime_schedule.reach_barrier,
    runtime_schedule.sleep,
    runtime_schedule.read_clock,
    runtime_schedule.run_machine,
)
"""Functions of the runtime that generated code or the host calls by name."""

NAMES = frozenset(function.__name__ for function in RUNTIME)


def runtime_text() -> str:
    return "module {\n" + native.compile_functions(RUNTIME) + "\n}\n"


@cache
def runtime() -> LoadedObject:
    """The memory model and the scheduler."""
    return compiled(runtime_text, f"runtime {engine_version()}", resolve=resolve)


@cache
def special() -> LoadedObject:
    """Transcendental functions and 64-bit division, lane by lane."""
    return compiled(special_library())


@cache
def matrix(name: str) -> LoadedObject:
    """One matrix operation."""
    return compiled(matrix_library(name), resolve=resolve)


def resolve(name: str) -> int:
    """The address of a function that generated code calls."""
    if name in NAMES:
        return runtime().address(name)
    if name.startswith(("special_", "divide_")) or name == "address_range":
        return special().address(name)
    if name.startswith("matrix_"):
        return matrix(name).address(name)
    return external_symbol(name)
