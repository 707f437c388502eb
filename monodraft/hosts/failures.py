"""From a health word to an error that says which rank waited where, for which tag, and what it saw."""

from __future__ import annotations

import numpy as np

from monodraft.device.health import decode
from monodraft.errors import Fault, StepFailed
from monodraft.hosts.workspace import Workspace
from monodraft.plan.step import Plan, Repeat, Stage, Wait


def failure(plan: Plan, workspace: Workspace, tag: int) -> StepFailed | None:
    """The error of the step with tag `tag` that just ended, or None where it is healthy."""
    record = decode(workspace.health_word)
    if record is None:
        return None
    stage, wait, repeat = plan.place(record.site)
    unit = {Repeat.ONCE: "", Repeat.LAYER: f" of layer {repeat}", Repeat.SLOT: f" of slot {repeat}"}[stage.repeat]
    where = f"rank {record.rank}, stage {stage.name}{unit}, region {wait.region}"
    found = seen(plan, workspace, record.rank, wait, stage, repeat, tag)
    return StepFailed("the draft step did not complete in its time", [Fault(where, found, f"tag {tag}")])


def seen(plan: Plan, workspace: Workspace, rank: int, wait: Wait, stage: Stage, repeat: int, tag: int) -> str:
    """What stands in a waited-for region now: the first word whose tag is not `tag`."""
    if wait.poll:
        tags, what = _pair_tags(plan, workspace, rank, wait, repeat), "pair"
    else:
        producer = plan.stage(wait.producer)
        layer = flag_layer(plan, wait, repeat)
        tags, what = workspace.local[rank](wait.region, layer)[: producer.owners], "flag"
    words = tags.view(np.uint32)
    wrong = np.flatnonzero(words != np.uint32(tag))
    if not len(wrong):
        return f"tag {tag} in all {len(words)} {what}s, but after the deadline"
    first = int(wrong[0])
    return f"tag {int(words[first])} in {what} {first} ({len(wrong)} of {len(words)} {what}s without the tag)"


def flag_layer(plan: Plan, wait: Wait, repeat: int) -> int:
    """Which set of a layered flag array a wait of layer `repeat` watches; `input` has one set more than layers."""
    if wait.region == "flags.input":
        return plan.shape.layers if wait.last else repeat
    return repeat if plan.stage(wait.producer).repeat is Repeat.LAYER else 0


def _pair_tags(plan: Plan, workspace: Workspace, rank: int, wait: Wait, repeat: int) -> np.ndarray:
    shape = plan.shape
    view = workspace.exchange[rank]
    if wait.region == "candidates":
        words = view("candidates").reshape(-1, shape.ranks * shape.ctas, 2, 2)
        first = repeat * shape.requests
        return np.ascontiguousarray(words[first : first + shape.requests, ..., 1].reshape(-1))
    parts = 1 if shape.two_stage else shape.ranks
    pairs = view(wait.region, repeat).reshape(-1, 2)[: parts * shape.rows * shape.hidden // 2]
    return np.ascontiguousarray(pairs[:, 1])
