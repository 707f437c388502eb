"""Agreement of the ranks, before any of them waits for another on the GPU: one that refuses makes all refuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from monodraft.errors import Fault, MonodraftError

WAIT_SECONDS = 300.0
"""How long a rank waits for the others: they may be compiling, or reading a checkpoint."""


class Refused(MonodraftError):
    """A rank cannot take part or did not come, or the ranks were given different things; with all reasons."""


class Ranks:
    """The ranks of a `torch.distributed` `group` with the gloo backend, or one rank alone (None).

    A rank waits at most `seconds` for the others, whatever the group's own timeout, and raises `Refused` then.
    """

    def __init__(self, group: Any = None, seconds: float = WAIT_SECONDS) -> None:
        self._group, self._seconds = group, seconds
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)

    def all(self, what: str, value: Any) -> list[Any]:
        """`value` of every rank, in order; `what` it is. Raises `Refused` where a rank does not come in time (rank 0
        names it), or comes with something else."""
        if self.size == 1:
            return [value]
        met = self.gather((what, value))
        faults = _odd("what is agreed about, of", [each for each, _ in met])
        if faults:
            raise Refused("the ranks are not at the same place", faults)
        return [each for _, each in met]

    def gather(self, value: Any) -> list[Any]:
        """What every rank gave, in order. Raises `Refused` where one does not come in time."""
        values: list[Any] = [None] * self.size
        try:
            dist.monitored_barrier(self._group, timeout=timedelta(seconds=self._seconds), wait_all_ranks=True)
            dist.all_gather_object(values, value, group=self._group)
        except RuntimeError as error:  # what gloo raises for a peer that is late or gone
            wanted = f"all {self.size} ranks within {self._seconds:g} s"
            fault = Fault(f"what rank {self.rank} saw", str(error).splitlines()[0], wanted)
            raise Refused("the ranks did not meet", [fault]) from error
        return values

    def agree(self, what: str, error: MonodraftError | None) -> None:
        """Raise on every rank if `error` is set on one: its own on the rank that has it, `Refused` elsewhere."""
        reasons = self.all(what, None if error is None else str(error))
        if error is not None:
            raise error
        faults = [Fault(f"rank {rank}", reason, "no refusal") for rank, reason in enumerate(reasons) if reason]
        if faults:
            raise Refused(f"{what}: refused by another rank", faults)

    def same(self, what: str, values: Mapping[str, Any]) -> None:
        """Raise `Refused` on every rank, naming each field and the ranks that have another value than most, unless all
        have the same `values`. Of two values that are as frequent, the lowest rank's is taken for the right one."""
        texts = self.all(what, {name: str(value) for name, value in values.items()})
        names = dict.fromkeys(name for each in texts for name in each)
        faults = [fault for name in names for fault in _odd(f"{name} of", [each.get(name, "-") for each in texts])]
        if faults:
            raise Refused(f"the ranks do not agree about {what}", faults)


def _odd(name: str, values: list[str]) -> list[Fault]:
    """A fault for each rank whose value is not that of most ranks."""
    usual = Counter(values).most_common(1)[0][0]
    having = ", ".join(str(rank) for rank, value in enumerate(values) if value == usual)
    wanted = f"{usual}, as on rank {having}"
    return [Fault(f"{name} rank {rank}", value, wanted) for rank, value in enumerate(values) if value != usual]


def fields_of(value: Any, prefix: str = "") -> dict[str, Any]:
    """The fields of a dataclass by name, those of a dataclass in it after a dot."""
    found: dict[str, Any] = {}
    for field in fields(value):
        inner = getattr(value, field.name)
        nested = is_dataclass(inner) and not isinstance(inner, type)
        found |= fields_of(inner, f"{prefix}{field.name}.") if nested else {f"{prefix}{field.name}": inner}
    return found
