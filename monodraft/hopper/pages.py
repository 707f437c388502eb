"""Which pages of the K/V pool belong to which request. Host only."""

from __future__ import annotations

from dataclasses import dataclass, field

from monodraft.errors import Fault, InputError
from monodraft.hopper.geometry import PAGE


@dataclass
class _Request:
    length: int = 0
    pages: list[int] = field(default_factory=list)


class PageTable:
    """Pages of open requests; a fork shares whole pages (counted) and takes a new one where its length cuts a page."""

    def __init__(self, pages: int, max_requests: int, max_pages: int) -> None:
        self._free = list(range(pages - 1, -1, -1))
        self._users = [0] * pages
        self._max_requests, self._max_pages = max_requests, max_pages
        self._requests: dict[int, _Request] = {}

    def __contains__(self, request: int) -> bool:
        return request in self._requests

    @property
    def free(self) -> int:
        """Pages that no request holds."""
        return len(self._free)

    def length(self, request: int) -> int:
        """Committed positions of an open request."""
        return self._requests[request].length

    def pages(self, request: int) -> list[int]:
        """Pages of an open request in the order of positions; every index is below the pool's size."""
        return self._requests[request].pages

    def open(self, request: int) -> None:
        """InputError where it is open already or too many are."""
        if request in self._requests:
            raise InputError("request", [Fault("request", str(request), "a request that is not open yet")])
        if len(self._requests) >= self._max_requests:
            found = f"{len(self._requests)} open requests"
            raise InputError("too many requests", [Fault("max_requests", found, f"fewer than {self._max_requests}")])
        self._requests[request] = _Request()

    def close(self, request: int) -> None:
        for page in self._requests.pop(request).pages:
            self._users[page] -= 1
            if not self._users[page]:
                self._free.append(page)

    def check_room(self, added: dict[int, int]) -> None:
        """InputError where the pool cannot take `added` positions per open request."""
        needed, faults = 0, []
        for request, rows in added.items():
            state = self._requests[request]
            pages = -(-(state.length + rows) // PAGE)
            needed += max(0, pages - len(state.pages))
            if pages > self._max_pages:
                found = f"position {state.length + rows - 1}"
                faults.append(
                    Fault(f"request {request}", found, f"below {self._max_pages * PAGE}, the plan's longest context")
                )
        if needed > len(self._free):
            found = f"{needed} more pages of {PAGE} positions needed, {len(self._free)} free"
            faults.append(Fault("pages", found, "a larger pool or closed requests"))
        if faults:
            raise InputError("the draft K/V pool cannot take the rows", faults)

    def extend(self, request: int, rows: int) -> None:
        """Room for `rows` more positions, which count as committed. Call `check_room` before."""
        state = self._requests[request]
        state.length += rows
        while len(state.pages) * PAGE < state.length:
            state.pages.append(self._take())

    def fork(self, source: int, request: int, length: int) -> tuple[int, int] | None:
        """Opens `request` with the first `length` positions of `source`; the (from, to) pages to copy, if any."""
        origin = self._requests[source]
        if not 0 <= length <= origin.length:
            raise InputError("fork", [Fault("length", str(length), f"0..{origin.length}, what request {source} has")])
        if length % PAGE and not self._free:
            raise InputError("the draft K/V pool is full", [Fault("pages", "0 free, 1 needed", "a larger pool")])
        self.open(request)
        whole = origin.pages[: length // PAGE]
        for page in whole:
            self._users[page] += 1
        state = self._requests[request]
        state.length, state.pages = length, list(whole)
        if not length % PAGE:
            return None
        state.pages.append(self._take())
        return origin.pages[length // PAGE], state.pages[-1]

    def _take(self) -> int:
        page = self._free.pop()
        self._users[page] = 1
        return page
