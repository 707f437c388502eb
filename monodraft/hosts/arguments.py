"""What enters the kernel, checked on the host before a launch: sizes, addresses, element types, and the inputs' values.

The kernel trusts all of it: an index that is too large reads or writes other memory, or nothing, without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from monodraft.device.geometry import check_address, check_array, check_dtype
from monodraft.errors import Fault, KernelError
from monodraft.plan.layout import exchange_block, local_block, pool_bytes, weight_block
from monodraft.plan.shape import MAX_ROWS, StepShape

DTYPES = {"uint8": np.uint8, "bfloat16": np.uint16, "int32": np.int32, "float32": np.float32}
"""How the host holds the element types of the plan's arrays."""
WIDEST = 16
"""Bytes of the kernel's widest access: what every base is aligned to."""
MOST_TICKS = 2**62
BY_ROW = ("embed", "lm_head", "fc", "markov_w2", "markov_inner_hidden", "markov_inner_serial")
"""Weights of which the kernel reaches a row or tile by an address of its own, besides those of the MXFP8 linears."""
LINEARS = ("qkv", "o", "gate_up", "down")


def check_sizes(shape: StepShape) -> None:
    """Refuse an array that the kernel reaches from one base, and that ends beyond 32-bit offsets from it. Raises
    KernelError naming it."""
    weights = [
        array
        for array in weight_block(shape).arrays
        if array.name not in BY_ROW and array.name.split(".")[0] not in LINEARS
    ]
    arrays = [*local_block(shape).arrays, *exchange_block(shape).arrays, *weights]
    whole = {array.name: array.nbytes for array in arrays}
    whole["keys of a layer"] = whole["values of a layer"] = pool_bytes(shape)
    for name, nbytes in whole.items():
        check_array(name, nbytes, nbytes)


def check_base(name: str, address: int) -> int:
    """The address, unless it is null, no address of a GPU, or not aligned to the kernel's accesses (KernelError)."""
    check_address(name, address, WIDEST)
    return address


def check_ticks(ticks: int) -> None:
    """Refuse a bound that is none, or that the clock cannot count to. Raises KernelError."""
    if not 0 < ticks < MOST_TICKS:
        raise KernelError(
            "a launch without a bound", [Fault("ticks", str(ticks), f"1 .. {MOST_TICKS - 1}, of 10 ns each")]
        )


def check_argument(name: str, address: int, values: np.ndarray, dtype: type, nbytes: int) -> None:
    """Refuse an array in memory that is not what the kernel reads there: `nbytes` of `dtype`. Raises KernelError."""
    check_base(name, address)
    check_dtype(name, values.dtype, np.dtype(dtype))
    check_array(name, values.nbytes, nbytes, one_base=False)


def check_inputs(shape: StepShape, inputs: Callable[[str], np.ndarray]) -> None:
    """Refuse inputs of a launch of `shape` that name a row, position, page or token that does not exist.

    `inputs` gives the local arrays by name. Raises KernelError naming array, value and limit, all faults at once.
    """
    faults = [*_context_faults(shape, inputs), *_request_faults(shape, inputs)]
    if faults:
        raise KernelError("inputs of a launch that cannot be", faults)


def _context_faults(shape: StepShape, inputs: Callable[[str], np.ndarray]) -> list[Fault]:
    """Of the rows to commit."""
    count, most = int(inputs("context_count")[0]), MAX_ROWS if shape.context_rows else 0
    rows = slice(0, max(0, min(count, most)))
    slots = shape.pages * shape.page_size
    return [
        *outside("context_count", [count], most + 1, "context rows of a launch"),
        *outside("context_positions", inputs("context_positions")[rows], shape.positions, "positions of a request"),
        *outside("context_slots", inputs("context_slots")[rows], slots, "positions in the pool's pages"),
    ]


def _request_faults(shape: StepShape, inputs: Callable[[str], np.ndarray]) -> list[Fault]:
    """Of the blocks to draft."""
    starts, anchors = (inputs(name)[: shape.requests] for name in ("starts", "anchors"))
    wanted = f"positions from which a block of {shape.block} ends in the pool"
    faults = outside("starts", starts, shape.positions - shape.block + 1, wanted)
    faults += outside("anchors", anchors, shape.config.vocab_size, "ids of the vocabulary")
    for request, start in enumerate(starts):
        used = min(shape.table_pages, -(-max(0, int(start)) // shape.page_size))
        pages = inputs("page_table")[request, :used]
        faults += outside(f"page_table[{request}]", pages, shape.pages, "pages of the pool")
    return faults


def outside(name: str, values: Iterable[int], limit: int, what: str) -> list[Fault]:
    """A fault for each value that is not in 0 .. limit - 1."""
    return [
        Fault(f"{name}[{index}]", str(int(value)), f"0 .. {limit - 1}: {what}")
        for index, value in enumerate(values)
        if not 0 <= int(value) < limit
    ]


def check_pages(shape: StepShape, pages: Mapping[str, int]) -> None:
    """Refuse numbers of pages (by the argument's name) that are not in the pool. Raises KernelError."""
    checked = [outside(name, [page], shape.pages, "pages of the pool") for name, page in pages.items()]
    faults = [fault for each in checked for fault in each]
    if faults:
        raise KernelError("no such page in the draft pool", faults)
