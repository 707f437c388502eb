"""What a call to the drafter must satisfy, all faults of a call said at once, before any state changes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from monodraft.drafter import Anchor, ContextRows
from monodraft.errors import Fault, InputError
from monodraft.hosts.pages import PageTables
from monodraft.plan.shape import StepShape

GREEDY_BELOW = 1e-5
"""Temperatures below this draft greedily."""


def check_open(tables: PageTables, request: int, where: str = "request") -> None:
    """InputError for a request that is not open."""
    if request not in tables:
        raise InputError("unknown request", [Fault(where, str(request), "an open request")])


def check_commit(tables: PageTables, shape: StepShape, rows: Sequence[ContextRows]) -> dict[int, int]:
    """Rows added per request; InputError for an unknown request, a gap, a wrong shape, or too little room."""
    faults: list[Fault] = []
    added: dict[int, int] = {}
    for index, row in enumerate(rows):
        where = f"rows[{index}]"
        if row.request not in tables:
            faults.append(Fault(f"{where}.request", str(row.request), "an open request"))
            continue
        features, width = row.features, shape.config.feature_size
        if features.dim() != 2 or features.shape[1] != width or not features.is_floating_point():
            found = f"{features.dtype} {list(features.shape)}"
            faults.append(Fault(f"{where}.features", found, f"floating point [S, {width}]"))
            continue
        end = tables[row.request].length + added.get(row.request, 0)
        if row.start != end:
            faults.append(Fault(f"{where}.start", str(row.start), f"{end}, where the context of its request ends"))
        elif end + len(features) > shape.positions:
            wanted = f"at most {shape.positions} positions, what the pool was made for"
            faults.append(Fault(f"{where}.features", f"positions up to {end + len(features) - 1}", wanted))
        else:
            added[row.request] = end + len(features) - tables[row.request].length
    if faults:
        raise InputError("commit refused; nothing was stored", faults)
    tables.check_room(added)
    return added


def check_anchors(tables: PageTables, shape: StepShape, anchors: Sequence[Anchor]) -> None:
    """InputError for an anchor whose request, position, token, temperature or seed cannot be drafted from."""
    faults: list[Fault] = []
    for index, anchor in enumerate(anchors):
        where = f"anchors[{index}]"
        if anchor.request not in tables:
            faults.append(Fault(f"{where}.request", str(anchor.request), "an open request"))
            continue
        length = tables[anchor.request].length
        if anchor.position != length:
            wanted = f"{length}: positions 0..{length - 1} are committed" if length else "0: nothing is committed"
            faults.append(Fault(f"{where}.position", str(anchor.position), wanted))
        if anchor.position + shape.block > shape.positions:
            wanted = f"at most {shape.positions - shape.block}: a block of {shape.block} must end within the pool"
            faults.append(Fault(f"{where}.position", str(anchor.position), wanted))
        if not 0 <= anchor.token < shape.config.vocab_size:
            faults.append(Fault(f"{where}.token", str(anchor.token), f"0..{shape.config.vocab_size - 1}"))
        if not (math.isfinite(anchor.temperature) and anchor.temperature >= 0):
            faults.append(Fault(f"{where}.temperature", str(anchor.temperature), "finite, at least 0"))
        elif anchor.temperature >= GREEDY_BELOW and shape.vocab % 4:
            wanted = f"0: sampling needs a vocabulary that is a multiple of {4 * shape.ranks}"
            faults.append(Fault(f"{where}.temperature", str(anchor.temperature), wanted))
        if not 0 <= anchor.seed < 2**64:
            faults.append(Fault(f"{where}.seed", str(anchor.seed), "0..2^64 - 1"))
    if faults:
        raise InputError("propose refused; nothing was drafted", faults)
