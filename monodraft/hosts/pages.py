"""Which pages of the draft pool belong to which request: tables and counts only, no memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from monodraft.errors import Fault, InputError


@dataclass
class Request:
    """`length` positions committed or queued; `pages[n]` is the physical page of positions n * page_size and on."""

    length: int = 0
    pages: list[int] = field(default_factory=list)


class PageTables:
    """Requests and their pages. A page that several requests share (`fork`) is counted and never written again."""

    def __init__(self, pages: int, page_size: int, max_requests: int) -> None:
        self.page_size, self.max_requests = page_size, max_requests
        self._free = list(range(pages - 1, -1, -1))
        self._users = [0] * pages
        self._requests: dict[int, Request] = {}

    def __contains__(self, request: int) -> bool:
        return request in self._requests

    def __getitem__(self, request: int) -> Request:
        return self._requests[request]

    @property
    def free_pages(self) -> int:
        """Pages that no request holds."""
        return len(self._free)

    def open(self, request: int) -> None:
        """Start a request; InputError where it is open already or too many are."""
        self._check_new(request)
        self._requests[request] = Request()

    def close(self, request: int) -> None:
        """Forget an open request; pages that nobody else uses become free."""
        for page in self._requests.pop(request).pages:
            self._users[page] -= 1
            if not self._users[page]:
                self._free.append(page)

    def check_room(self, added: Mapping[int, int]) -> None:
        """InputError where the pool cannot take `added` rows per open request, all together."""
        needed = sum(
            max(0, self._count(self[request].length + rows) - len(self[request].pages))
            for request, rows in added.items()
        )
        if needed > len(self._free):
            found = f"{needed} more pages of {self.page_size} positions needed, {len(self._free)} free"
            raise InputError("the draft K/V pool is full", [Fault("pages", found, "a larger pool or closed requests")])

    def extend(self, request: int, rows: int) -> None:
        """Add `rows` positions and the pages for them. Call `check_room` before."""
        state = self[request]
        state.length += rows
        while len(state.pages) < self._count(state.length):
            state.pages.append(self._take())

    def slot(self, request: int, position: int) -> int:
        """Physical slot (page * page_size + offset) of a position that `extend` made room for."""
        page, offset = divmod(position, self.page_size)
        return self[request].pages[page] * self.page_size + offset

    def fork(self, source: int, request: int, length: int) -> tuple[int, int] | None:
        """Open `request` with the first `length` positions of `source`; whole pages are shared.

        Returns (from, to) of the page that the caller must copy, where `length` cuts one. InputError where that many
        positions are not held or there is no page left.
        """
        self._check_new(request)
        origin = self[source]
        if not 0 <= length <= origin.length:
            raise InputError("fork", [Fault("length", str(length), f"0..{origin.length}, what request {source} has")])
        whole, rest = divmod(length, self.page_size)
        if rest and not self._free:
            raise InputError("the draft K/V pool is full", [Fault("pages", "0 free", "one page to copy into")])
        state = Request(length, origin.pages[:whole])
        for page in state.pages:
            self._users[page] += 1
        self._requests[request] = state
        if not rest:
            return None
        state.pages.append(self._take())
        return origin.pages[whole], state.pages[whole]

    def _count(self, length: int) -> int:
        return -(-length // self.page_size)

    def _take(self) -> int:
        page = self._free.pop()
        self._users[page] = 1
        return page

    def _check_new(self, request: int) -> None:
        if request in self._requests:
            raise InputError("request", [Fault("request", str(request), "a request that is not open yet")])
        if len(self._requests) >= self.max_requests:
            found = f"{len(self._requests)} open requests"
            raise InputError("too many requests", [Fault("max_requests", found, f"fewer than {self.max_requests}")])
