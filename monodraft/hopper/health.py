"""The health record of a launch: which wait ran out first (device/waits.cuh), as an error."""

from __future__ import annotations

from collections.abc import Sequence

from monodraft.errors import Fault, StepFailed

WORDS = 16
PEERS = 5
REGIONS = {1: "weights", 2: "ring", 3: "activations", 4: "grid", PEERS: "peers"}
"""`enum Region` of device/waits.cuh."""
NOBODY = 0xFFFFFFFF


def failure(words: Sequence[int], stages: Sequence[str], rank: int = 0) -> StepFailed | None:
    """The error of a health record, or None where every wait was satisfied. `stages`: names by number."""
    failed, stage, region, cta, wanted, seen, missing, count = (int(word) & 0xFFFFFFFF for word in words[:8])
    if not failed:
        return None
    name = stages[stage] if stage < len(stages) else f"number {stage}"
    where = REGIONS.get(region, f"region {region}")
    faults = [Fault(f"stage {name}, wait on {where}, CTA {cta}", f"tag {seen:#x}", f"tag {wanted:#x}")]
    if missing != NOBODY:
        who = "rank" if region == PEERS else "CTA"
        faults.append(Fault(f"{who} {missing}", f"not arrived ({count} arrivals counted)", "arrived"))
    text = f"a draft step ended in a bounded wait (rank {rank}); reset the workspace before the next step"
    return StepFailed(text, faults)
