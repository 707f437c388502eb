"""A copy of `monodraft.stages` with one text changed, and the sabotages that come in many."""

from __future__ import annotations

import importlib
import itertools
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from faulty import Setting

import monodraft.stages

SOURCE = Path(monodraft.stages.__path__[0])
_NUMBERS = itertools.count()
TWO_STAGE = Setting()
_FOLDER = tempfile.TemporaryDirectory(prefix="stage-mutants-")


@dataclass(frozen=True)
class Sabotage:
    """`old` text of a `file` of monodraft/stages becomes `new`; tried in launches of `setting`.

    `survives`: why nothing shows, where that is so: it is equivalent, or what the executor is known not to reach.
    """

    name: str
    file: str
    old: str
    new: str
    setting: Setting = TWO_STAGE
    survives: str = ""

    @property
    def found(self) -> int:
        """How often the text occurs; 1 is wanted."""
        return (SOURCE / self.file).read_text().count(self.old)


WAIT = "    dw.wait_flags(step.geo, base, owners,"
PUBLISH = "    if step.cta < owners:\n        dw.publish(base, step.cta, step.tag)\n"


def no_wait(stage: str, producer: str, setting: Setting = TWO_STAGE, survives: str = "") -> Sabotage:
    """`stage` does not wait for `producer`."""
    skipped = f"    if (stage, producer) != ({stage!r}, {producer!r}):\n    {WAIT}"
    return Sabotage(f"no-wait-{stage}-{producer}", "exchange.py", WAIT, skipped, setting, survives)


def no_publish(stage: str, setting: Setting = TWO_STAGE) -> Sabotage:
    """`stage` publishes no flag of its first CTA."""
    first = f"(step.cta > 0) & (step.cta < owners) if stage == {stage!r} else step.cta < owners"
    unpublished = PUBLISH.replace("if step.cta < owners:", f"if {first}:")
    return Sabotage(f"no-publish-{stage}", "exchange.py", PUBLISH, unpublished, setting)


def mutant(sabotage: Sabotage) -> ModuleType:
    """`step` of a package like `monodraft.stages` but for the sabotage; its `old` text must occur exactly once."""
    package = f"stages_{next(_NUMBERS)}_{sabotage.name.replace('-', '_')}"
    target = Path(_FOLDER.name) / package
    target.mkdir()
    for path in sorted(SOURCE.glob("*.py")):
        text = path.read_text()
        if path.name == sabotage.file:
            assert sabotage.found == 1, f"{sabotage.name}: {sabotage.found} times"
            text = text.replace(sabotage.old, sabotage.new)
        (target / path.name).write_text(text.replace("monodraft.stages", package))
    if _FOLDER.name not in sys.path:
        sys.path.insert(0, _FOLDER.name)
    importlib.invalidate_caches()
    return importlib.import_module(f"{package}.step")
