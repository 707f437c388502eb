"""What a helper refuses while it is being traced, with the helper, the argument, what was found and what was wanted."""

from __future__ import annotations

from typing import Any

import flydsl.expr as fx

from monodraft.device.flydsl_names import lane_dependence
from monodraft.errors import Fault, KernelError


def refuse(helper: str, argument: str, found: object, wanted: str) -> KernelError:
    """The error to raise for one bad argument of a helper."""
    return KernelError(f"device helper {helper} cannot be traced", [Fault(argument, str(found), wanted)])


def require_type(helper: str, argument: str, value: Any, wanted: Any) -> None:
    """Refuse a value that is not of FlyDSL type `wanted`."""
    if not isinstance(value, wanted):
        kinds = wanted if isinstance(wanted, tuple) else (wanted,)
        raise refuse(helper, argument, type(value).__name__, " or ".join(kind.__name__ for kind in kinds))


def require_uniform(helper: str, argument: str, value: Any, kind: Any = fx.Int64) -> None:
    """Refuse a value that is not of type `kind` or that is computed from lane numbers, so differs between lanes.

    A buffer resource made of such an address would compile to a loop over the lanes.
    """
    require_type(helper, argument, value, kind)
    source = lane_dependence(value)
    if source is not None:
        raise refuse(
            helper,
            argument,
            f"a value that differs between lanes (from {source})",
            "a wave-uniform value (`first_lane` makes one)",
        )


def require_among(helper: str, argument: str, value: object, allowed: tuple[int, ...]) -> None:
    """Refuse a compile-time number that is not in `allowed`."""
    if isinstance(value, bool) or value not in allowed:
        raise refuse(helper, argument, repr(value), "one of " + ", ".join(map(str, allowed)))


def require_range(helper: str, argument: str, value: object, least: int, most: int) -> None:
    """Refuse a compile-time number outside `least .. most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise refuse(helper, argument, repr(value), f"a Python int in {least} .. {most}")
