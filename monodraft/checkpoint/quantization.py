"""`quantization_config`: absent or null, or MXFP8 with blocks of [1, 32]; anything else is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.fields import ABSENT, Reader

MXFP8: dict[str, Any] = {"quant_method": "mxfp8", "weight_block_size": [1, 32]}


COLUMNS = (("hidden_size",), ("dspark_ffn_hidden_size", "dense_intermediate_size", "intermediate_size"))
"""Fields that are columns of a linear, by the spellings of all dialects; the third number is heads times their size."""


def _check_blocks(reader: Reader, values: Mapping[str, Any]) -> None:
    """Faults for linears whose columns are no whole blocks."""
    block = MXFP8["weight_block_size"][1]
    wanted = f"a multiple of {block}, the block of MXFP8 linears"
    for names in COLUMNS:
        path, value = next(iter(reader.spellings(names).items()), ("", None))
        if isinstance(value, int) and value % block:
            reader.fault(path, value, wanted)
    if {"num_heads", "head_dim"} <= values.keys() and (size := values["num_heads"] * values["head_dim"]) % block:
        reader.fault("num_attention_heads times head_dim", size, wanted)


def read_mxfp8(reader: Reader, values: Mapping[str, Any]) -> bool:
    """Whether the seven linears of each layer are MXFP8; faults for every other quantisation, and for sizes among
    `values` that it cannot hold."""
    places = ("quantization_config", "text_config.quantization_config")
    found = [path for path in places if reader.at(path) not in (ABSENT, None)]
    for path in found:
        for name, wanted in MXFP8.items():
            value = reader.at(f"{path}.{name}")
            if value != wanted:
                reader.fault(f"{path}.{name}", value, f"{wanted} (the only quantisation supported), or bf16 weights")
    if found:
        _check_blocks(reader, values)
    return bool(found)


def write_mxfp8(config: DraftConfig) -> dict[str, Any]:
    """The entry for a config whose linears are MXFP8, else nothing."""
    return {"quantization_config": dict(MXFP8)} if config.mxfp8_linears else {}
