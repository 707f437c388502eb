"""Whether a plan fits a device: every CTA resident at once, each with its LDS. Asked before anything is allocated."""

from __future__ import annotations

from monodraft.errors import Fault, InputError
from monodraft.plan.lds import LDS_BYTES, lds_map
from monodraft.plan.shape import StepShape


def check_device(shape: StepShape, cus: int, lds_bytes: int = LDS_BYTES) -> None:
    """Refuse a launch whose CTAs could not all be resident on a GPU of `cus` compute units (waits between CTAs need
    that; one CTA a compute unit is counted on), or whose CTA needs more than `lds_bytes` of LDS. Raises InputError."""
    faults = []
    if shape.ctas > cus:
        faults.append(Fault("ctas", str(shape.ctas), f"at most {cus}, the compute units of the device"))
    needed = lds_map(shape).nbytes
    if needed > lds_bytes:
        wanted = f"at most {lds_bytes}: more CTAs hold fewer rows each"
        faults.append(Fault("LDS of a CTA", f"{needed} bytes", wanted))
    if faults:
        raise InputError("the draft step does not fit the device", faults)
