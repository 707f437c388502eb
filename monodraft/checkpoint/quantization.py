"""`quantization_config`: absent or null, or MXFP8 with blocks of [1, 32]; anything else is refused."""

from __future__ import annotations

from typing import Any

from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.fields import ABSENT, Reader

MXFP8 = {"quant_method": "mxfp8", "weight_block_size": [1, 32]}


def read_mxfp8(reader: Reader) -> bool:
    """Whether the seven linears of each layer are MXFP8; faults for every other quantisation."""
    places = ("quantization_config", "text_config.quantization_config")
    found = [path for path in places if reader.at(path) not in (ABSENT, None)]
    for path in found:
        for name, wanted in MXFP8.items():
            value = reader.at(f"{path}.{name}")
            if value != wanted:
                reader.fault(f"{path}.{name}", value, f"{wanted} (the only quantisation supported), or bf16 weights")
    return bool(found)


def write_mxfp8(config: DraftConfig) -> dict[str, Any]:
    """The entry for a config whose linears are MXFP8, else nothing."""
    return {"quantization_config": dict(MXFP8)} if config.mxfp8_linears else {}
