"""Wave-uniform values: keeping them where they belong."""

from __future__ import annotations

from typing import Any

from monodraft.device import flydsl_names as fly
from monodraft.device.checks import require_uniform


def pinned(base: Any, turn: Any) -> Any:
    """Uniform Int64 `base`, passed through an empty assembly statement that also reads Int32 `turn`.

    What is computed from the result cannot be hoisted out of the loop over `turn`, nor be kept from one stage to the
    next: a kernel of many stages would otherwise hold hundreds of addresses and spill them. Costs no instruction.
    """
    require_uniform("pinned", "base", base)
    return fly.asm_value(base, "", "=s,0,s", base, turn)
