"""The device words: every helper that a kernel may use, from one place. They know nothing of the model.

Call them inside a `@flyc.kernel` body or in a helper marked `@traced`. One style throughout: a `Geometry` first where
the sizes matter, then bases and what they hold, then per-lane indices and values, then `tag, bound, site` of a wait,
and the cache policy `cm` last, as a keyword. Importing this module needs FlyDSL (`pip install "monodraft[gfx950]"`).
"""

from monodraft.device.flydsl_names import first_lane, traced
from monodraft.device.gemv import (
    lane,
    mma8,
    mma_chain,
    quant_store,
    red_store,
    red_sum,
    w_chunk,
    wave,
    xq_chunk,
)
from monodraft.device.memory import CM_DEV, CM_SYS, gst32, ld, ld8, ldn, st
from monodraft.device.numbers import bf16_bits, bf16r, bfpair, exp, hw_sqrt, mx_scale, opaque
from monodraft.device.rows import norm_row, norm_w, row_sum4, row_x
from monodraft.device.waits import (
    CHECK_EVERY,
    Bound,
    _spin,
    clock,
    fail,
    poll_pairs,
    poll_rows,
    publish,
    wait_flags,
)

__all__ = [
    "CHECK_EVERY",
    "CM_DEV",
    "CM_SYS",
    "Bound",
    "_spin",
    "bf16_bits",
    "bf16r",
    "bfpair",
    "clock",
    "exp",
    "fail",
    "first_lane",
    "gst32",
    "hw_sqrt",
    "lane",
    "ld",
    "ld8",
    "ldn",
    "mma8",
    "mma_chain",
    "mx_scale",
    "norm_row",
    "norm_w",
    "opaque",
    "poll_pairs",
    "poll_rows",
    "publish",
    "quant_store",
    "red_store",
    "red_sum",
    "row_sum4",
    "row_x",
    "st",
    "traced",
    "w_chunk",
    "wait_flags",
    "wave",
    "xq_chunk",
]
