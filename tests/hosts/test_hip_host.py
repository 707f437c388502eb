"""The ROCm host on a stand-in for the HIP library: sequences, refusals, what is freed. It has not run on a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fake_hip import INVALID, OUT_OF_MEMORY, FakeGroup, FakeHip, ThreadRanks, words

from monodraft.cli.backends import register_all
from monodraft.drafter import Anchor, ContextRows, Drafter
from monodraft.errors import InputError, KernelError, MonodraftError, StepFailed
from monodraft.hosts import hip_drafter, hip_library, step_drafter
from monodraft.hosts.consensus import Ranks, Refused
from monodraft.hosts.hip_drafter import HipDrafter, gpu_number
from monodraft.hosts.hip_library import Hip, HipError, UnsupportedBackend
from monodraft.loop.backends import check_backend
from monodraft.plan.layout import exchange_block, local_block
from monodraft.plan.step import Plan
from monodraft.testing import random_config, random_weights

pytestmark = pytest.mark.numbers

CONFIG = random_config(block_size=2, vocab_size=128, ffn_size=128, hidden_size=128, markov_rank=32)
WEIGHTS = random_weights(CONFIG)
NOTHING_LEFT = (0, 0, 0, 0)


def compiled(code_object: bytes | None = b"ELF", missing: str = "") -> Callable[[Plan], Any]:
    return lambda plan: SimpleNamespace(code_object=code_object, missing=missing, kernel="draft_0")


def make(fake: FakeHip, **options: Any) -> HipDrafter:
    options = {"ctas": 4, "positions": 64, "page_size": 32, "max_requests": 1, "compile_plan": compiled()} | options
    return HipDrafter(CONFIG, WEIGHTS, hip=Hip(fake), **options)


def together(fakes: list[FakeHip], **options: Any) -> tuple[list[HipDrafter | None], list[BaseException | None]]:
    """A drafter a rank, made by threads, and what each raised."""
    group = FakeGroup(len(fakes))
    made: list[HipDrafter | None] = [None] * len(fakes)
    raised: list[BaseException | None] = [None] * len(fakes)

    def work(rank: int) -> None:
        try:
            made[rank] = make(fakes[rank], ranks=len(fakes), group=rank, **options)
        except MonodraftError as error:
            raised[rank] = error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hip_drafter, "Ranks", lambda rank: ThreadRanks(group, rank))
        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(fakes))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    return made, raised


def healthy(drafter: HipDrafter, tokens: list[int]) -> Callable[[list[int]], None]:
    """A kernel that moves the epoch and drafts `tokens`."""
    block = local_block(drafter.shape)

    def kernel(arguments: list[int]) -> None:
        words(arguments[1] + block.offset("epoch"), 1)[0] += 1
        words(arguments[1] + block.offset("tokens"), len(tokens))[:] = tokens

    return kernel


def propose(drafter: HipDrafter) -> torch.Tensor:
    length = drafter._tables[0].length
    return drafter.propose([Anchor(0, 3, length)])[0].tokens


def started(fake: FakeHip, **options: Any) -> HipDrafter:
    drafter = make(fake, **options)
    fake.on_launch = healthy(drafter, [7, 9])
    drafter.open(0)
    drafter.commit([ContextRows(0, 0, torch.ones(3, CONFIG.feature_size))])
    return drafter


# -- a step ------------------------------------------------------------------------------------------------------------


def test_a_step_uploads_launches_waits_and_reads_back() -> None:
    fake = FakeHip()
    drafter = started(fake)
    seen: list[list[int]] = []
    kernel, block = fake.on_launch, local_block(drafter.shape)

    def watched(arguments: list[int]) -> None:
        seen.append(arguments)
        assert words(arguments[1] + block.offset("anchors"), 1)[0] == 3
        assert words(arguments[1] + block.offset("context_count"), 1)[0] == 3
        kernel(arguments)

    fake.on_launch = watched
    fake.calls.clear()
    assert propose(drafter).tolist() == [7, 9]
    assert fake.grid == [4, 1, 1, 512, 1, 1, 0]
    launch = fake.calls.index("hipModuleLaunchKernel")
    assert set(fake.calls[:launch]) == {"hipMemcpy"}
    assert fake.calls[launch + 1] == "hipStreamSynchronize"
    workspace = drafter.workspace
    ticks, rank, layers = seen[0][-3:]
    assert (ticks, rank, layers) == (hip_drafter.DEFAULT_TICKS, 0, CONFIG.num_layers)
    assert seen[0][:7] == [
        workspace.weights,
        workspace.local[0].address,
        workspace.exchange[0].address,
        workspace.peers,
        workspace.keys,
        workspace.values,
        workspace.health,
    ]
    assert isinstance(drafter, Drafter)


def test_the_epoch_is_the_device_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replayed graph launches without the host: what the host writes before a launch must not hold the epoch."""
    fake = FakeHip()
    drafter = started(fake)
    propose(drafter)
    block = local_block(drafter.shape)
    words(drafter.workspace.local[0].address + block.offset("epoch"), 1)[0] += 5  # five replays
    tags: list[int] = []
    monkeypatch.setattr(step_drafter, "failure", lambda plan, workspace, epoch, rows, ranks: tags.append(epoch))
    propose(drafter)
    assert tags == [7]
    assert words(drafter.workspace.local[0].address + block.offset("epoch"), 1)[0] == 7


def test_exchange_memory_is_uncached_and_all_is_freed() -> None:
    fake = FakeHip()
    drafter = started(fake)
    assert fake.uncached == {drafter.workspace.exchange[0].address}
    propose(drafter)
    drafter.close_device()
    assert fake.left == NOTHING_LEFT
    drafter.close_device()


def test_one_live_launch_a_workspace() -> None:
    fake = FakeHip()
    drafter = started(fake)
    kernel = fake.on_launch

    def again(arguments: list[int]) -> None:
        with pytest.raises(KernelError, match="one launch a workspace"):
            drafter.workspace.launch(*drafter.program(1, 16), ticks=1)
        kernel(arguments)

    fake.on_launch = again
    propose(drafter)
    propose(drafter)


def test_a_failed_launch_leaves_the_workspace_usable() -> None:
    fake = FakeHip()
    drafter = started(fake)
    fake.fail["hipModuleLaunchKernel"] = INVALID
    with pytest.raises(HipError, match=r"hipModuleLaunchKernel: found 1 \(hipErrorInvalidValue\)"):
        propose(drafter)
    del fake.fail["hipModuleLaunchKernel"]
    assert propose(drafter).tolist() == [7, 9]


def test_health_is_read_after_each_step_and_reset_mends() -> None:
    fake = FakeHip()
    drafter = started(fake)
    kernel = fake.on_launch
    plan, _ = drafter.program(1, 16)
    site = plan.sites["context_kv<context_norm"][0]

    def failing(arguments: list[int]) -> None:
        kernel(arguments)
        words(arguments[6], 1, np.uint64)[0] = site << 32 | 1

    fake.on_launch = failing
    with pytest.raises(StepFailed, match=r"rank 0, stage context_norm, region flags.fc: found tag 0 .*from CTA 0 "):
        propose(drafter)
    launches = fake.calls.count("hipModuleLaunchKernel")
    with pytest.raises(StepFailed):
        propose(drafter)
    assert fake.calls.count("hipModuleLaunchKernel") == launches
    fake.on_launch = kernel
    drafter.reset()
    assert drafter.workspace.health_word == 0
    assert propose(drafter).tolist() == [7, 9]
    assert int(drafter.workspace.local[0]("epoch")[0]) == 3  # failed 1, reset to 2, this launch


def test_logits_are_read_where_asked_for() -> None:
    fake = FakeHip()
    drafter = started(fake)
    block, kernel = local_block(drafter.shape), fake.on_launch

    def with_logits(arguments: list[int]) -> None:
        kernel(arguments)
        words(arguments[1] + block.offset("logits"), 1, np.float32)[0] = 2.5

    fake.on_launch = with_logits
    (draft,) = drafter.propose([Anchor(0, 3, 3)], logits=True)
    assert draft.logits is not None
    assert draft.logits.shape == (2, 128)
    assert draft.logits[0, 0] == 2.5


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_without_rocm_the_backend_is_refused_naming_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(hip_library.ctypes, "CDLL", nothing)
    with pytest.raises(UnsupportedBackend, match=r"libamdhip64.so: found not found, wanted ROCm's HIP runtime"):
        HipDrafter(CONFIG, WEIGHTS, compile_plan=compiled())
    pytest.importorskip("flydsl")
    register_all()
    with pytest.raises(InputError, match=r"--backend rocm: found libamdhip64.so: not found, wanted a machine"):
        check_backend("rocm")


def test_a_runtime_that_lacks_a_function_is_refused() -> None:
    with pytest.raises(UnsupportedBackend, match="hipNew: found not in the library"):
        Hip(FakeHip()).call("hipNew")


@pytest.mark.parametrize(
    ("fake", "error", "text"),
    [
        (FakeHip(units=3), InputError, "ctas: found 4, wanted at most 3, the compute units of the device"),
        (FakeHip(lds=4096), InputError, "LDS of a CTA: found .* bytes, wanted at most 4096"),
        (FakeHip(resident=0), KernelError, "ctas: found 4, wanted at most 0: what 256 compute units hold at once"),
        (FakeHip(hipMalloc=OUT_OF_MEMORY), HipError, "hipMalloc: found 2 .hipErrorOutOfMemory"),
        (FakeHip(hipExtMallocWithFlags=INVALID), HipError, "hipExtMallocWithFlags: found 1"),
        (FakeHip(hipStreamCreateWithFlags=INVALID), HipError, "hipStreamCreateWithFlags: found 1"),
        (FakeHip(hipSetDevice=101), HipError, "hipSetDevice: found 101"),
        (FakeHip(hipModuleLoadData=209), UnsupportedBackend, "wanted gfx950"),
        (FakeHip(hipModuleGetFunction=INVALID), HipError, "hipModuleGetFunction: found 1"),
        (FakeHip(hipMemcpy=INVALID), HipError, "hipMemcpy: found 1"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_what_cannot_run_is_refused_and_nothing_stays_allocated(fake: FakeHip, error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        make(fake)
    assert fake.left == NOTHING_LEFT
    assert "hipModuleLaunchKernel" not in fake.calls


def test_a_kernel_without_a_linker_is_refused() -> None:
    fake = FakeHip()
    with pytest.raises(UnsupportedBackend, match=r"ld.lld: found no ld.lld on the path"):
        make(fake, compile_plan=compiled(None, "no ld.lld on the path"))
    assert fake.left == NOTHING_LEFT


@pytest.mark.parametrize(
    "options", [{"numerics": "bf16"}, {"device": "cpu"}, {"ranks": 2}], ids=["numerics", "device", "group"]
)
def test_arguments_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    fake = FakeHip()
    with pytest.raises(InputError):
        make(fake, **options)
    assert fake.left == NOTHING_LEFT


def test_gpu_numbers() -> None:
    assert [gpu_number(each) for each in (2, "cuda", "cuda:1", torch.device("cuda:3"))] == [2, 0, 1, 3]


# -- ranks -------------------------------------------------------------------------------------------------------------


def test_ranks_map_each_other_and_leave_the_probe_clean() -> None:
    fakes = [FakeHip(), FakeHip()]
    made, raised = together(fakes)
    assert raised == [None, None]
    first, second = (drafter.workspace for drafter in made if drafter is not None)
    own = [first.exchange[0].address, second.exchange[0].address]
    assert first.addresses == second.addresses == own
    assert first.health == second.health == own[0] + exchange_block(first.shape).nbytes
    assert not words(own[0], 4).any()
    assert not words(own[1], 4).any()
    assert (fakes[0].opened, fakes[1].opened) == ([own[1]], [own[0]])
    for drafter in made:
        assert drafter is not None
        drafter.close_device()
    assert [fake.left for fake in fakes] == [NOTHING_LEFT, NOTHING_LEFT]


@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        (FakeHip(units=2), InputError, "at most 2, the compute units"),
        (FakeHip(hipExtMallocWithFlags=OUT_OF_MEMORY), HipError, "hipExtMallocWithFlags: found 2"),
        (FakeHip(hipIpcGetMemHandle=INVALID), HipError, "hipIpcGetMemHandle: found 1"),
        (FakeHip(hipIpcOpenMemHandle=INVALID), HipError, "hipIpcOpenMemHandle: found 1"),
        (FakeHip(hipModuleLoadData=209), UnsupportedBackend, "gfx950"),
    ],
    ids=["units", "memory", "export", "open", "architecture"],
)
def test_one_refusing_rank_makes_all_refuse_with_its_reason(bad: FakeHip, error: type, text: str) -> None:
    fakes = [FakeHip(), bad]
    _, raised = together(fakes)
    assert isinstance(raised[1], error)
    assert isinstance(raised[0], Refused)
    assert "rank 1" in str(raised[0])
    for each in raised:
        with pytest.raises(MonodraftError, match=text):
            raise each  # type: ignore[misc]
    assert [fake.left for fake in fakes] == [NOTHING_LEFT, NOTHING_LEFT]
    assert not any("hipModuleLaunchKernel" in fake.calls for fake in fakes)


def test_memory_that_is_not_the_peer_s_is_found_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1's view of rank 0 is other memory: rank 0 never sees the mark and says whose is missing."""
    fakes = [FakeHip(), FakeHip()]
    elsewhere = np.zeros(1 << 20, np.uint8)

    def wrong(self: FakeHip, address: Any, handle: Any, flags: Any) -> None:
        address._obj.value = elsewhere.ctypes.data
        self.opened.append(elsewhere.ctypes.data)

    right = FakeHip._hipIpcOpenMemHandle
    monkeypatch.setattr(
        FakeHip,
        "_hipIpcOpenMemHandle",
        lambda self, *given: wrong(self, *given) if self is fakes[1] else right(self, *given),
    )
    monkeypatch.setattr(hip_drafter.HipWorkspace.__init__, "__defaults__", (0.2,))
    _, raised = together(fakes)
    assert "mark of rank 1: found 0, wanted 2" in str(raised[0])
    assert isinstance(raised[1], Refused)
    assert [fake.left for fake in fakes] == [NOTHING_LEFT, NOTHING_LEFT]


def test_expandable_segments_are_named_where_ipc_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_HIP_ALLOC_CONF", "expandable_segments:True")
    _, raised = together([FakeHip(), FakeHip(hipIpcGetMemHandle=INVALID)])
    assert "PYTORCH_HIP_ALLOC_CONF: found expandable_segments:True" in str(raised[1])


def test_ranks_with_other_plans_are_refused() -> None:
    """Every rank says which one has another plan."""
    group = FakeGroup(2)
    raised: list[BaseException | None] = [None, None]

    def work(rank: int) -> None:
        try:
            ThreadRanks(group, rank).same("the plan", {"rows": 7 + rank})
        except Refused as error:
            raised[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    for error in raised:
        assert "rows of rank 1: found 8, wanted 7, as on rank 0" in str(error)


def test_one_rank_needs_no_group() -> None:
    ranks = Ranks(None)
    assert (ranks.rank, ranks.size, ranks.all("nothing", "x")) == (0, 1, ["x"])
    ranks.agree("nothing", None)
    with pytest.raises(InputError):
        ranks.agree("something", InputError("no"))
