"""The memory model as a list of switches; `docs/executor.md` says what each stands for and where it is harsh."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from monodraft.errors import Fault
from monodraft.executor.errors import BadLaunch


@dataclass(frozen=True)
class MemoryModel:
    """What memory may do. `harsh()` is everything, `sequential()` nothing; `without` turns single switches off.

    delayed_stores: a store is pending until it drains (s_waitcnt vmcnt, a release fence) and becomes visible at any
        time before, in any order except to the same dword.
    torn: pending stores become visible in pieces of at most 8 bytes and in subsets of lanes; loads wider than 8 bytes
        sample their pieces at different times.
    late_loads: a load samples memory at any time between its issue and the wait that covers it (an s_waitcnt, or the
        first use of its value).
    delayed_lds: LDS stores become visible to other waves late, drained by lgkmcnt waits and workgroup fences.
    l1: one cache per CTA, l2: one per XCD, device: one per rank; each keeps old lines until invalidated, and
        loads without the coherent bits hit them. Stores without the bits stay in their cache until written back.
    uninitialised: a read of bytes that nobody wrote is an error (otherwise they read as they are).
    races: unordered accesses to plain memory are an error.
    """

    delayed_stores: bool = True
    torn: bool = True
    late_loads: bool = True
    delayed_lds: bool = True
    l1: bool = True
    l2: bool = True
    device: bool = True
    uninitialised: bool = True
    races: bool = True

    @classmethod
    def harsh(cls) -> MemoryModel:
        """Everything on: the default."""
        return cls()

    @classmethod
    def sequential(cls) -> MemoryModel:
        """One memory, every store visible at once: to separate logic from memory effects. Detectors stay on."""
        return cls(False, False, False, False, False, False, False)

    def without(self, *names: str) -> MemoryModel:
        """This model with single switches off. Raises BadLaunch for a name that is no switch."""
        check_switches(names)
        return replace(self, **dict.fromkeys(names, False))

    def only(self, *names: str) -> MemoryModel:
        """The sequential model with single switches on (and this model's detectors)."""
        check_switches(names)
        base = replace(MemoryModel.sequential(), uninitialised=self.uninitialised, races=self.races)
        return replace(base, **dict.fromkeys(names, True))


def check_switches(names: tuple[str, ...]) -> None:
    """Refuse names that are no switches of the model."""
    known = [each.name for each in fields(MemoryModel)]
    faults = [Fault("switch", repr(name), f"one of {', '.join(known)}") for name in names if name not in known]
    if faults:
        raise BadLaunch("memory model", faults=faults)
