"""The readable engine (its machine follows)."""

from __future__ import annotations

from monodraft.executor.engine import Job
from monodraft.executor.errors import UnknownOperation
from monodraft.executor.report import Report


class ReferenceEngine:
    """One wave at a time in NumPy."""

    def run(self, job: Job) -> Report:
        """Refuses for now: the operations are being written."""
        raise UnknownOperation(f"{job.dispatches[0].program.name}: the reference engine knows no operation yet")
