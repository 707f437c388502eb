"""The readable engine: one wave at a time in NumPy, everything checked."""

from __future__ import annotations

from monodraft.executor.engine import Job
from monodraft.executor.machine import Machine
from monodraft.executor.report import Report


class ReferenceEngine:
    """Executes every operation as written; no option trades exactness for speed."""

    def run(self, job: Job) -> Report:
        """Run to the end, or raise what went wrong."""
        return Machine(job).run()
