"""GPUs by name: memory bandwidth from the data sheet, what was measured and by whom, and what the cache keeps."""

from __future__ import annotations

from dataclasses import dataclass

from monodraft.errors import Fault, InputError


@dataclass(frozen=True)
class Gpu:
    """`spec_tb_s` and `measured_tb_s` in 10^12 bytes a second; `cache_bytes`: re-read data up to this size stays in the
    last-level cache; `source` of the measured number, or of the spec where none was measured."""

    name: str
    spec_tb_s: float
    measured_tb_s: float | None
    cache_bytes: int
    source: str


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("mi355x", 8.0, 7.2, 256 << 20, "data sheet; peak quoted in vllm-project/vllm#56488 (not by us)"),
        Gpu("mi350x", 8.0, None, 256 << 20, "data sheet"),
        # Measured by this project on one H200: 16-byte read-only loads of 4.3 GB; re-reads above 30 MB miss its L2.
        Gpu("h200", 4.8, 4.37, 30_000_000, "data sheet; read-only loads of 4.3 GB, measured by this project"),
        Gpu("h100", 3.35, None, 30_000_000, "data sheet (SXM, HBM3)"),
        Gpu("b200", 8.0, None, 60_000_000, "data sheet"),
    )
}


def find_gpu(name: str) -> Gpu:
    """The GPU of that name; raises InputError listing the known ones."""
    gpu = GPUS.get(name.lower())
    if gpu is None:
        raise InputError("unknown GPU", [Fault("gpu", name, f"one of {', '.join(GPUS)}")])
    return gpu
