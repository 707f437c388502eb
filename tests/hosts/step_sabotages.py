"""The hand-offs of the stages, sabotaged one at a time: copies of `monodraft.stages` with one text changed."""

from __future__ import annotations

import importlib
import itertools
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import monodraft.stages

_NUMBERS = itertools.count()
_FOLDER = tempfile.TemporaryDirectory(prefix="stage-mutants-")


@dataclass(frozen=True)
class Sabotage:
    """`old` text of a `file` of monodraft/stages becomes `new`."""

    name: str
    file: str
    old: str
    new: str


WAIT = "    dw.wait_flags(step.geo, base, owners,"
PUBLISH = "    if step.cta < owners:\n        dw.publish(base, step.cta, step.tag)\n"
OWNER_PUT = "    dw.st(base + fx.Int64(step.rank) * nbytes, index * 2, pair, cm=dw.CM_SYS, nbytes=nbytes)\n"
SUM_PUT = "fx.Vector.from_elements(pairs, fx.Int32), cm=dw.CM_SYS, nbytes=row_bytes)"
OFFER = "stores, words, cm=dw.CM_SYS, nbytes=nbytes)"


def no_wait(stage: str, producer: str) -> Sabotage:
    """`stage` does not wait for `producer`."""
    skipped = f"    if (stage, producer) != ({stage!r}, {producer!r}):\n    {WAIT}"
    return Sabotage(f"no-wait-{stage}-{producer}", "exchange.py", WAIT, skipped)


def no_publish(stage: str) -> Sabotage:
    """`stage` publishes no flag of its first CTA."""
    first = f"(step.cta > 0) & (step.cta < owners) if stage == {stage!r} else step.cta < owners"
    return Sabotage(
        f"no-publish-{stage}", "exchange.py", PUBLISH, PUBLISH.replace("if step.cta < owners:", f"if {first}:")
    )


SABOTAGES = [
    no_wait("context_norm", "fc"),
    no_wait("context_kv", "context_norm"),
    no_wait("pool", "context_kv"),
    # Not here: context_ready<pool. Every owner of pool owns qkv tiles too, whose flags attention waits for, and their
    # publish drains what that CTA stored before: without the wait nothing changes in this geometry.
    no_wait("qkv", "input"),
    no_wait("attention", "qkv"),
    no_wait("o", "attention"),
    no_wait("gate_up", "post"),
    no_wait("down", "gate_up"),
    no_wait("lm_head", "input"),
    *(
        no_publish(stage)
        for stage in (
            "fc",
            "context_norm",
            "context_kv",
            "pool",
            "embed",
            "qkv",
            "attention",
            "post",
            "gate_up",
            "input",
        )
    ),
    Sabotage(
        "lm-head-waits-for-layer-0",
        "markov.py",
        'wait_stage(step, "lm_head", "input", 0, of=step.shape.layers)',
        'wait_stage(step, "lm_head", "input", 0, of=0)',
    ),
    Sabotage("partials-at-device-scope", "exchange.py", OWNER_PUT, OWNER_PUT.replace("CM_SYS", "CM_DEV")),
    Sabotage("partials-to-rank-0-only", "exchange.py", "(owner == rank).select(", "(owner == rank + 1).select("),
    Sabotage("sums-at-device-scope", "exchange.py", SUM_PUT, SUM_PUT.replace("CM_SYS", "CM_DEV")),
    Sabotage(
        "sums-of-another-tag", "exchange.py", "for word in (value, step.tag)]", "for word in (value, step.tag - 1)]"
    ),
    Sabotage(
        "sums-to-the-wrong-slice", "exchange.py", "fx.Int64(step.rank) * row_bytes\n", "fx.Int64(0) * row_bytes\n"
    ),
    Sabotage("offers-at-device-scope", "markov.py", OFFER, OFFER.replace("CM_SYS", "CM_DEV")),
    Sabotage(
        "offers-in-one-entry",
        "markov.py",
        "entry = step.rank * step.shape.ctas + step.cta",
        "entry = step.rank * step.shape.ctas",
    ),
    Sabotage(
        "epoch-stands-still",
        "step.py",
        "dw.st(epoch, place, step.epoch, nbytes=4)",
        "dw.st(epoch, place, step.epoch - 1, nbytes=4)",
    ),
]


def mutant(sabotage: Sabotage) -> ModuleType:
    """`step` of a package like `monodraft.stages` but for the sabotage; its `old` text must occur exactly once."""
    package = f"stages_{next(_NUMBERS)}_{sabotage.name.replace('-', '_')}"
    target = Path(_FOLDER.name) / package
    target.mkdir()
    (source,) = monodraft.stages.__path__
    for path in sorted(Path(source).glob("*.py")):
        text = path.read_text()
        if path.name == sabotage.file:
            assert text.count(sabotage.old) == 1, f"{sabotage.name}: {text.count(sabotage.old)} times"
            text = text.replace(sabotage.old, sabotage.new)
        (target / path.name).write_text(text.replace("monodraft.stages", package))
    if _FOLDER.name not in sys.path:
        sys.path.insert(0, _FOLDER.name)
    importlib.invalidate_caches()
    return importlib.import_module(f"{package}.step")
