"""Bad input of the one-launch step, item by item: refused before anything runs, with the reason in the message.

Each is asked of both hosts where both take it: the executor's, and the ROCm one on its stand-in for the HIP library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fake_hip import FakeHip

import monodraft.executor as ex
from monodraft.checkpoint.config import Family
from monodraft.drafter import Anchor, ContextRows
from monodraft.errors import InputError, KernelError, MonodraftError
from monodraft.hosts.arguments import MOST_TICKS, check_sizes
from monodraft.hosts.executor_drafter import ExecutorDrafter
from monodraft.hosts.hip_drafter import HipDrafter
from monodraft.hosts.hip_library import Hip
from monodraft.hosts.packing import place
from monodraft.plan.layout import weight_block
from monodraft.plan.shape import StepShape
from monodraft.plan.step import Plan
from monodraft.testing import random_config, random_weights

pytestmark = pytest.mark.numbers

CONFIG = random_config(block_size=4, vocab_size=64)
LAYOUT: dict[str, Any] = {"ctas": 2, "positions": 64, "page_size": 32, "max_requests": 2}


def on_executor(config: Any = CONFIG, **options: Any) -> ExecutorDrafter:
    return ExecutorDrafter(config, weights_of(config), **(LAYOUT | options))


def on_hip(config: Any = CONFIG, fake: FakeHip | None = None, **options: Any) -> HipDrafter:
    def compiled(plan: Plan) -> Any:
        return SimpleNamespace(code_object=b"ELF", missing="", kernel="draft_0")

    if options.get("ranks", 1) > 1:
        options["group"] = None
    hip = Hip(FakeHip() if fake is None else fake)
    return HipDrafter(config, weights_of(config), hip=hip, compile_plan=compiled, **(LAYOUT | options))


@cache
def weights_of(config: Any) -> Any:
    return random_weights(config)


HOSTS = [on_executor, on_hip]
by_host = pytest.mark.parametrize("make", HOSTS, ids=["executor", "hip"])


def started(make: Callable[..., Any]) -> Any:
    """A drafter with request 0 of 20 positions, 20 rows of it queued."""
    drafter = make()
    drafter.open(0)
    drafter.commit([ContextRows(0, 0, torch.zeros(20, CONFIG.feature_size))])
    return drafter


def refused(work: Callable[[], Any], error: type[MonodraftError], *texts: str) -> None:
    with pytest.raises(error) as caught:
        work()
    for text in texts:
        assert text in str(caught.value)


# -- rows, positions, pages --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "options", "text"),
    [
        (random_config(block_size=17), {}, "block_size: found 17, wanted 1 .. 16"),
        (CONFIG, {"requests": 5}, "requests: found 5, wanted 0 .. 4: at most 16 query rows of 4 a request"),
        (CONFIG, {"context_rows": 17}, "context_rows: found 17, wanted 0 .. 16"),
        (CONFIG, {"positions": 5000}, "positions: found 5000, wanted 1 .. max_positions = 4096"),
    ],
    ids=["block", "requests", "context rows", "positions"],
)
def test_more_rows_or_positions_than_a_launch_takes(config: Any, options: dict[str, int], text: str) -> None:
    refused(lambda: StepShape(config, **{"ctas": 2, "positions": 64, **options}), InputError, text)


@by_host
def test_drafters_of_more_rows_are_refused_by_every_host(make: Callable[..., Any]) -> None:
    refused(lambda: make(random_config(block_size=17)), InputError, "block_size: found 17, wanted 1 .. 16")


@by_host
def test_positions_past_the_pool(make: Callable[..., Any]) -> None:
    drafter = started(make)
    rows = ContextRows(0, 20, torch.zeros(45, CONFIG.feature_size))
    refused(lambda: drafter.commit([rows]), InputError, "positions up to 64", "at most 64 positions")
    drafter.commit([ContextRows(0, 20, torch.zeros(41, CONFIG.feature_size))])
    refused(lambda: drafter.propose([Anchor(0, 1, 61)]), InputError, "a block of 4 must end within the pool")
    assert drafter.launches == 0


@by_host
def test_a_full_pool(make: Callable[..., Any]) -> None:
    drafter = make(pages=1)
    drafter.open(0)
    rows = ContextRows(0, 0, torch.zeros(33, CONFIG.feature_size))
    refused(lambda: drafter.commit([rows]), InputError, "the draft K/V pool is full", "2 more pages", "1 free")


INPUTS = [
    ("page_table", (0, 0), 4, "page_table[0][0]: found 4, wanted 0 .. 3: pages of the pool"),
    ("page_table", (0, 0), -1, "page_table[0][0]: found -1, wanted 0 .. 3: pages of the pool"),
    ("context_slots", 3, 128, "context_slots[3]: found 128, wanted 0 .. 127: positions in the pool's pages"),
    ("context_positions", 2, 64, "context_positions[2]: found 64, wanted 0 .. 63: positions of a request"),
    ("context_count", 0, 17, "context_count[0]: found 17, wanted 0 .. 16: context rows of a launch"),
    ("starts", 0, 61, "starts[0]: found 61, wanted 0 .. 60: positions from which a block of 4 ends in the pool"),
    ("anchors", 0, 64, "anchors[0]: found 64, wanted 0 .. 63: ids of the vocabulary"),
]


@by_host
@pytest.mark.parametrize(("name", "place", "value", "text"), INPUTS, ids=[f"{n}={v}" for n, _, v, _ in INPUTS])
def test_inputs_that_name_what_does_not_exist(
    make: Callable[..., Any], name: str, place: Any, value: int, text: str
) -> None:
    """What a caller of the workspace itself, past the drafter's own tables, may write."""
    drafter = started(make)
    workspace, plan = drafter.workspace, Plan(replace(drafter.shape, requests=1))
    view = workspace.local[0]
    view("starts")[0], view("context_count")[0] = 20, 4
    view(name)[place] = value
    refused(lambda: workspace.launch(plan, None, 1), KernelError, "inputs of a launch that cannot be", text)
    assert not workspace.busy


def test_inputs_are_checked_on_every_rank() -> None:
    drafter = on_executor(ranks=2)
    drafter.workspace.local[1]("anchors")[0] = -5
    plan = Plan(replace(drafter.shape, requests=1))
    refused(lambda: drafter.workspace.launch(plan, None, 1), KernelError, "anchors[0]: found -5")


@by_host
def test_a_page_that_does_not_exist_is_not_copied(make: Callable[..., Any]) -> None:
    workspace = make().workspace
    refused(lambda: workspace.copy_page(0, 4), KernelError, "target[0]: found 4, wanted 0 .. 3: pages of the pool")
    refused(lambda: workspace.copy_page(-1, 0), KernelError, "source[0]: found -1, wanted 0 .. 3: pages of the pool")


# -- ranks, families, plans, devices -----------------------------------------------------------------------------------


@by_host
@pytest.mark.parametrize(
    ("overrides", "ranks", "text"),
    [
        ({"num_heads": 6, "num_kv_heads": 2}, 4, "num_heads: found 6, wanted a multiple of 4, for 4 ranks"),
        ({"vocab_size": 66}, 4, "vocab_size: found 66, wanted a multiple of 4, for 4 ranks"),
        ({"num_heads": 12, "num_kv_heads": 6}, 4, "num_kv_heads: found 6, wanted a multiple or a divisor of 4 ranks"),
        ({}, 3, "ranks: found 3, wanted one of (1, 2, 4, 8)"),
    ],
    ids=["heads", "vocabulary", "kv heads", "three"],
)
def test_ranks_that_do_not_divide(
    make: Callable[..., Any], overrides: dict[str, int], ranks: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if make is on_hip:
        monkeypatch.setattr("monodraft.hosts.hip_drafter.Ranks", lambda group: SimpleNamespace(rank=0, size=ranks))
        refused(lambda: HipDrafter(random_config(**overrides), None, ranks=ranks, group=object()), InputError, text)  # type: ignore[arg-type]
    else:
        refused(lambda: make(random_config(**overrides), ranks=ranks), InputError, text)


@by_host
def test_a_checkpoint_of_another_family(make: Callable[..., Any]) -> None:
    reasons = ("rotary: found proportional", "activation: found gelu", "value_norm: found set", "Gemma4 layers")
    refused(lambda: make(random_config(Family.GEMMA4)), InputError, *reasons)


@by_host
def test_a_workspace_of_another_plan(make: Callable[..., Any]) -> None:
    drafter = started(make)
    for change, text in (
        ({"positions": 32}, "positions: found 32, wanted 64"),
        ({"pages": 9}, "pages: found 9, wanted 4"),
        ({"config": random_config(block_size=4, vocab_size=64, rms_norm_eps=1e-5)}, "config: found "),
    ):
        plan = Plan(replace(drafter.shape, **change))
        refused(lambda plan=plan: drafter.workspace.launch(plan, None, 1), KernelError, "built for another plan", text)


def test_a_device_with_too_few_compute_units_or_too_little_lds() -> None:
    few, small = "ctas: found 4, wanted at most 2, the compute units of the device", "bytes, wanted at most 4096"
    refused(lambda: on_executor(ctas=4, gpu=ex.Gpu.mi355x(cus=2)), InputError, few)
    refused(lambda: on_executor(gpu=ex.Gpu(cus=2, xcds=2, lds_per_cu=4096)), InputError, "LDS of a CTA", small)
    for fake, texts in ((FakeHip(units=2), (few,)), (FakeHip(lds=4096), ("LDS of a CTA", small))):
        refused(lambda fake=fake: on_hip(fake=fake, ctas=4), InputError, *texts)
        assert fake.left == (0, 0, 0, 0)


# -- memory and arguments ----------------------------------------------------------------------------------------------


@by_host
def test_a_pool_that_32_bit_offsets_do_not_cover(make: Callable[..., Any]) -> None:
    """The kernel writes a layer's keys from one base: 2 GiB at most. Nothing of it is allocated."""
    refused(lambda: make(pages=1 << 19), KernelError, "keys of a layer", "4294967296 bytes", "at most 2147483648")
    shape = StepShape(CONFIG, ctas=2, positions=64, page_size=32, pages=1 << 18)
    check_sizes(shape)
    refused(lambda: check_sizes(replace(shape, pages=(1 << 18) + 1)), KernelError, "keys of a layer")


def test_embeddings_and_heads_may_be_larger_than_a_base_reaches() -> None:
    """Their rows and tiles have addresses of their own: M3.1's embedding is 2.5 GB."""
    config = random_config(vocab_size=2**22, hidden_size=512, markov_rank=32)
    check_sizes(StepShape(config, ctas=2, positions=64))
    tables = replace(config, markov_rank=512)
    refused(lambda: check_sizes(StepShape(tables, ctas=2, positions=64)), KernelError, "markov_w1", "4294967296 bytes")


ARGUMENTS = [
    ("weights", np.zeros(64, np.uint8), {}, "weights of rank 0", "64 bytes"),
    ("keys", np.zeros(64, np.uint8), {}, "keys of rank 0", "64 bytes"),
    ("peers", np.zeros(1, np.int32), {}, "peers of rank 0", "found int32, wanted int64"),
    ("health", np.zeros(1, np.uint32), {}, "health of rank 0", "found uint32, wanted uint64"),
    ("values", np.zeros(1 << 20, np.uint8), {"address": 2**33 + 8}, "values of rank 0", "aligned to 16 bytes"),
]


@pytest.mark.parametrize(("name", "values", "options", "where", "text"), ARGUMENTS, ids=[case[0] for case in ARGUMENTS])
def test_memory_that_is_not_what_the_kernel_reads(
    name: str, values: np.ndarray, options: dict[str, int], where: str, text: str
) -> None:
    workspace = on_executor().workspace
    region = workspace.memory.array(0, "other", values, **options)
    if name == "health":
        workspace.health = region
    else:
        getattr(workspace, name)[0] = region
    refused(lambda: workspace.launch(Plan(replace(workspace.shape, requests=1)), None, 1), KernelError, where, text)
    assert not workspace.busy


@by_host
@pytest.mark.parametrize("ticks", [0, -1, MOST_TICKS])
def test_a_bound_that_is_none(make: Callable[..., Any], ticks: int) -> None:
    workspace = make().workspace
    plan = Plan(replace(workspace.shape, requests=1))
    program = SimpleNamespace(function=1, name="draft_0")
    refused(lambda: workspace.launch(plan, program, ticks), KernelError, f"ticks: found {ticks}, wanted 1 .. ")
    assert not workspace.busy


def test_weights_of_another_type_are_not_taken_for_bytes() -> None:
    block = weight_block(StepShape(CONFIG, ctas=2, positions=64))
    data = np.zeros(block.nbytes, np.uint8)
    refused(
        lambda: place(data, block, "rope", np.zeros((64, 2, 8))), KernelError, "rope: found float64, wanted float32"
    )


class OddHip(FakeHip):
    """Gives out an address that the kernel cannot use: 8 bytes into an allocation, or null; the `at`-th one."""

    def __init__(self, function: str, at: int, null: bool) -> None:
        super().__init__()
        self.function, self.at, self.null = "_" + function, at, null

    def __getattr__(self, name: str) -> Any:
        work = super().__getattr__(name)
        if "_" + name != self.function:
            return work

        def odd(address: Any, *rest: Any) -> int:
            code = work(address, *rest)
            self.at -= 1
            if self.at == 0 and self.null:
                del self.blocks[address._obj.value]
                address._obj.value = None
            elif self.at == 0:
                self.blocks[address._obj.value + 8] = self.blocks.pop(address._obj.value)
                address._obj.value += 8
            return code

        return odd


@pytest.mark.parametrize("null", [False, True], ids=["misaligned", "null"])
@pytest.mark.parametrize(
    ("function", "at", "name"),
    [
        ("hipMalloc", 1, "weights"),
        ("hipMalloc", 2, "local"),
        ("hipExtMallocWithFlags", 1, "own"),
        ("hipMalloc", 5, "peers"),
    ],
)
def test_addresses_that_the_runtime_should_not_give(function: str, at: int, name: str, null: bool) -> None:
    fake = OddHip(function, at, null)
    refused(lambda: on_hip(fake=fake), KernelError, f"launch argument {name}", "not null, aligned to 16 bytes")
    assert fake.left == (0, 0, 0, 0)
