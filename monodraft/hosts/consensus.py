"""Agreement of the ranks, before any of them waits for another on the GPU: one that refuses makes all refuse."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from monodraft.errors import Fault, MonodraftError


class Refused(MonodraftError):
    """A rank cannot take part, or the ranks were given different things; every rank raises it, with all reasons."""


class Ranks:
    """The ranks of a `torch.distributed` `group` with a CPU backend (gloo), or one rank alone (None)."""

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)

    def all(self, value: Any) -> list[Any]:
        """`value` of every rank, in order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def agree(self, what: str, error: MonodraftError | None) -> None:
        """Raise on every rank if `error` is set on one: its own on the rank that has it, `Refused` elsewhere."""
        reasons = self.all(None if error is None else str(error))
        if error is not None:
            raise error
        faults = [Fault(f"rank {rank}", reason, "no refusal") for rank, reason in enumerate(reasons) if reason]
        if faults:
            raise Refused(f"{what}: refused by another rank", faults)

    def same(self, what: str, value: Any) -> None:
        """Raise `Refused` on every rank unless all have the same `value`."""
        values = self.all(value)
        if any(each != values[0] for each in values):
            faults = [Fault(f"rank {rank}", str(each), str(values[0])) for rank, each in enumerate(values) if rank]
            raise Refused(f"the ranks do not agree about {what}", [f for f in faults if f.found != f.wanted])
