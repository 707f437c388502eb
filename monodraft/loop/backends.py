"""Which drafters can stand behind the loop, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.weights import DraftWeights
from monodraft.drafter import Drafter
from monodraft.errors import Fault, InputError

DrafterFactory = Callable[..., Drafter]
"""`(config, weights, *, numerics, ranks, **options) -> Drafter`; raises `InputError` for an option it cannot honour."""


@dataclass(frozen=True)
class Backend:
    """A way to run a drafter. `unavailable` says why this machine cannot run it, or None if it can."""

    make: DrafterFactory
    unavailable: Callable[[], str | None] = lambda: None


_BACKENDS: dict[str, Backend] = {}


def register_backend(name: str, backend: Backend) -> None:
    """Make a backend known. Rooms below the loop register theirs from the command line's start."""
    assert name not in _BACKENDS, f"backend {name} is registered twice"
    _BACKENDS[name] = backend


def backend_names() -> list[str]:
    """Registered backends, in order of registration."""
    return list(_BACKENDS)


def check_backend(name: str) -> Backend:
    """The backend of that name. Raises `InputError` with the reason if it is unknown or cannot run here."""
    backend = _BACKENDS.get(name)
    if backend is None:
        raise InputError("unknown backend", [Fault("--backend", name, " or ".join(_BACKENDS))])
    reason = backend.unavailable()
    if reason is not None:
        fault = Fault(f"--backend {name}", reason, "a machine that has what it needs")
        raise InputError("the backend cannot run on this machine", [fault])
    return backend


def make_drafter(name: str, config: DraftConfig, weights: DraftWeights, **options: Any) -> Drafter:
    """A drafter of the named backend. Never falls back to another: `InputError` says why it cannot be had."""
    return check_backend(name).make(config, weights, **_given(options))


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _make_reference(config: DraftConfig, weights: DraftWeights, **options: Any) -> Drafter:
    from monodraft.reference import ReferenceDrafter

    return ReferenceDrafter(config, weights, **options)


register_backend("reference", Backend(_make_reference))
