"""What a call to a drafter must satisfy, all faults of a call said at once, before any state changes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from monodraft.checkpoint.config import DraftConfig
from monodraft.drafter import Anchor, ContextRows
from monodraft.errors import Fault, InputError
from monodraft.formats.mxfp8 import BLOCK
from monodraft.reference.numerics import W8A16, Mxfp8, Numerics
from monodraft.reference.pool import KvPool


def check_ranks(config: DraftConfig, numerics: Numerics, ranks: int) -> None:
    """InputError where the model cannot be cut over `ranks`, or its linears have no MXFP8 form."""
    faults = []
    if ranks < 1 or config.num_heads % ranks or config.ffn_size % ranks:
        wanted = f"a divisor of num_heads {config.num_heads} and of ffn_size {config.ffn_size}"
        faults.append(Fault("ranks", str(ranks), wanted))
    elif isinstance(numerics, W8A16 | Mxfp8) or config.mxfp8_linears:
        inputs = {
            "hidden_size": config.hidden_size,
            "num_heads * head_dim / ranks": config.q_size // ranks,
            "ffn_size / ranks": config.ffn_size // ranks,
        }
        faults += [Fault(name, str(size), f"a multiple of {BLOCK}") for name, size in inputs.items() if size % BLOCK]
    if faults:
        raise InputError(f"numerics {numerics.name} on {ranks} ranks", faults)


def check_open(pool: KvPool, request: int, where: str = "request") -> None:
    """InputError for a request that is not open."""
    if request not in pool:
        raise InputError("unknown request", [Fault(where, str(request), "an open request")])


def check_commit(pool: KvPool, config: DraftConfig, rows: Sequence[ContextRows]) -> dict[int, int]:
    """Rows added per request; InputError for an unknown request, a gap, a wrong shape, or too little room."""
    faults: list[Fault] = []
    added: dict[int, int] = {}
    for index, row in enumerate(rows):
        where = f"rows[{index}]"
        if row.request not in pool:
            faults.append(Fault(f"{where}.request", str(row.request), "an open request"))
            continue
        features = row.features
        if features.dim() != 2 or features.shape[1] != config.feature_size or not features.is_floating_point():
            found = f"{features.dtype} {list(features.shape)}"
            faults.append(Fault(f"{where}.features", found, f"floating point [S, {config.feature_size}]"))
            continue
        end = pool.length(row.request) + added.get(row.request, 0)
        if row.start != end:
            faults.append(Fault(f"{where}.start", str(row.start), f"{end}, where the context of its request ends"))
            continue
        if end + len(features) > config.max_positions:
            wanted = f"at most {config.max_positions} positions (max_positions)"
            faults.append(Fault(f"{where}.features", f"positions up to {end + len(features) - 1}", wanted))
            continue
        added[row.request] = end + len(features) - pool.length(row.request)
    if faults:
        raise InputError("commit refused; nothing was stored", faults)
    pool.check_room(added)
    return added


def check_anchors(pool: KvPool, config: DraftConfig, anchors: Sequence[Anchor]) -> None:
    """InputError for an anchor whose request, position, token, temperature or seed cannot be drafted from."""
    faults: list[Fault] = []
    for index, anchor in enumerate(anchors):
        where = f"anchors[{index}]"
        if anchor.request not in pool:
            faults.append(Fault(f"{where}.request", str(anchor.request), "an open request"))
            continue
        length = pool.length(anchor.request)
        if anchor.position != length:
            wanted = f"{length}: positions 0..{length - 1} are committed" if length else "0: nothing is committed"
            faults.append(Fault(f"{where}.position", str(anchor.position), wanted))
        if anchor.position >= config.max_positions:
            faults.append(Fault(f"{where}.position", str(anchor.position), f"below {config.max_positions}"))
        if not 0 <= anchor.token < config.vocab_size:
            faults.append(Fault(f"{where}.token", str(anchor.token), f"0..{config.vocab_size - 1}"))
        if not (math.isfinite(anchor.temperature) and anchor.temperature >= 0):
            faults.append(Fault(f"{where}.temperature", str(anchor.temperature), "finite, at least 0"))
        if not 0 <= anchor.seed < 2**64:
            faults.append(Fault(f"{where}.seed", str(anchor.seed), "0..2^64 - 1"))
    if faults:
        raise InputError("propose refused; nothing was drafted", faults)
