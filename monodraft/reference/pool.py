"""Draft K/V of every open request, in pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from monodraft.checkpoint.config import DraftConfig
from monodraft.errors import Fault, InputError
from monodraft.reference.attention import Keys


@dataclass
class _Request:
    """`length` positions committed; `table` maps a logical page (positions n * page_size ...) to a physical one."""

    length: int = 0
    table: dict[int, int] = field(default_factory=dict)


class KvPool:
    """Context K/V [layer, page, slot, kv heads, D] of several requests; position p of a request is in its page
    p // page_size, slot p % page_size.

    Invariant: of a request with `length` L exactly the positions 0..L-1 are held, or with `windowed` at least those
    that a block at L or later can see, L - (W - 1)..L-1 with W the widest window (`windowed` keeps all where a layer
    has full attention). Only committed rows are ever written: block K/V never enter the pool, so no stale row exists.

    Pages below a fork's length are shared with its source and counted; nobody writes them again, as commits only
    append. A page that the fork's length cuts is copied.
    """

    def __init__(
        self,
        config: DraftConfig,
        *,
        pages: int,
        page_size: int,
        max_requests: int,
        dtype: torch.dtype,
        device: torch.device,
        windowed: bool,
    ) -> None:
        sizes = {"pages": pages, "page_size": page_size, "max_requests": max_requests}
        faults = [Fault(name, str(value), "at least 1") for name, value in sizes.items() if value < 1]
        if faults:
            raise InputError("K/V pool", faults)
        self.page_size, self.max_requests = page_size, max_requests
        widest = [window for window in config.windows if window is not None]
        self._window = max(widest) if windowed and len(widest) == len(config.windows) else None
        shape = (config.num_layers, pages, page_size, config.num_kv_heads, config.head_dim)
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)
        self._free = list(range(pages - 1, -1, -1))
        self._users = [0] * pages
        self._requests: dict[int, _Request] = {}

    def __contains__(self, request: int) -> bool:
        return request in self._requests

    @property
    def free_pages(self) -> int:
        """Pages that no request holds."""
        return len(self._free)

    def length(self, request: int) -> int:
        """Committed positions of an open request."""
        return self._requests[request].length

    def first_kept(self, length: int) -> int:
        """First position that a request of `length` must hold."""
        return 0 if self._window is None else max(0, length - (self._window - 1))

    def open(self, request: int) -> None:
        """Start a request; InputError where it is open already or `max_requests` are."""
        self._check_new(request)
        self._requests[request] = _Request()

    def close(self, request: int) -> None:
        """Forget an open request; pages that nobody else uses become free."""
        for page in self._requests.pop(request).table.values():
            self._release(page)

    def fork(self, source: int, request: int, length: int) -> None:
        """Open `request` with the first `length` positions of `source`; InputError where these are not held."""
        self._check_new(request)
        origin = self._requests[source]
        if not 0 <= length <= origin.length:
            raise InputError("fork", [Fault("length", str(length), f"0..{origin.length}, what request {source} has")])
        logical = self._pages(length)
        if any(page not in origin.table for page in logical):
            wanted = f"a length whose window request {source} still holds; windowed pools drop older positions"
            raise InputError("fork", [Fault("length", str(length), wanted)])
        cut = length // self.page_size if length % self.page_size else None
        if cut is not None:
            self._check_free(1, 0)
        table = {page: origin.table[page] for page in logical if page != cut}
        for page in table.values():
            self._users[page] += 1
        if cut is not None:
            table[cut] = self._take()
            self.keys[:, table[cut]] = self.keys[:, origin.table[cut]]
            self.values[:, table[cut]] = self.values[:, origin.table[cut]]
        self._requests[request] = _Request(length, table)

    def check_room(self, added: Mapping[int, int]) -> None:
        """InputError where the pool cannot take `added` rows per open request, all together."""
        needed = released = 0
        for request, rows in added.items():
            state = self._requests[request]
            kept = set(self._pages(state.length + rows))
            needed += len(kept - state.table.keys())
            released += sum(1 for page in state.table.keys() - kept if self._users[state.table[page]] == 1)
        self._check_free(needed, released)

    def extend(self, request: int, rows: int) -> None:
        """Make room for `rows` more positions and drop what no later block can see. Call `check_room` before."""
        state = self._requests[request]
        state.length += rows
        kept = self._pages(state.length)
        for page in [page for page in state.table if page not in kept]:
            self._release(state.table.pop(page))
        for page in kept:
            if page not in state.table:
                state.table[page] = self._take()

    def write(self, request: int, layer: int, rows: Keys) -> None:
        """Store consecutive rows of one layer; their positions must be within what `extend` made room for."""
        table = self._requests[request].table
        done = 0
        while done < len(rows.keys):
            page, slot = divmod(rows.start + done, self.page_size)
            count = min(self.page_size - slot, len(rows.keys) - done)
            place = (layer, table[page], slice(slot, slot + count))
            self.keys[place] = rows.keys[done : done + count]
            self.values[place] = rows.values[done : done + count]
            done += count

    def read(self, request: int, layer: int, first: int) -> Keys:
        """Rows of positions first..length-1 of one layer, copied."""
        state = self._requests[request]
        logical = range(first // self.page_size, -(-state.length // self.page_size)) if first < state.length else []
        places = [state.table[page] for page in logical]
        begin = first % self.page_size
        keys, values = (
            pool[layer, places].flatten(0, 1)[begin : begin + state.length - first] for pool in (self.keys, self.values)
        )
        return Keys(first, keys, values)

    def _pages(self, length: int) -> range:
        """Logical pages that a request of `length` holds."""
        return range(self.first_kept(length) // self.page_size, -(-length // self.page_size))

    def _check_new(self, request: int) -> None:
        if request in self._requests:
            raise InputError("request", [Fault("request", str(request), "a request that is not open yet")])
        if len(self._requests) >= self.max_requests:
            found = f"{len(self._requests)} open requests"
            raise InputError("too many requests", [Fault("max_requests", found, f"fewer than {self.max_requests}")])

    def _check_free(self, needed: int, released: int) -> None:
        if needed > len(self._free) + released:
            found = f"{needed} more pages of {self.page_size} positions needed, {len(self._free)} free"
            raise InputError("the draft K/V pool is full", [Fault("pages", found, "a larger pool or closed requests")])

    def _take(self) -> int:
        page = self._free.pop()
        self._users[page] = 1
        return page

    def _release(self, page: int) -> None:
        self._users[page] -= 1
        if not self._users[page]:
            self._free.append(page)
