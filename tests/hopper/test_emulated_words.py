"""The emulator's words against NumPy and torch, and what it says of kernels that go wrong."""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from emulated import MARKS

from monodraft.hopper.emulator.build import RACES, shared_library, sources
from monodraft.hopper.emulator.kernel import EmulatorError, Grid, Library

pytestmark = MARKS
SEEDS = range(6)  # 0 is round robin


class Args(ctypes.Structure):
    _fields_ = (*((name, ctypes.c_uint64) for name in ("in_", "out", "counter", "mode")),)


@pytest.fixture(scope="module")
def words() -> Library:
    source = (Path(__file__).parent / "emulated_words.cu").read_text()
    return Library(shared_library(sources(source), [], "the words"))


@pytest.fixture(scope="module")
def watched_words() -> Library:
    source = (Path(__file__).parent / "emulated_words.cu").read_text()
    return Library(shared_library(sources(source), [RACES], "the words, with a look for races,"))


def run(
    words: Library,
    mode: int,
    given: np.ndarray,
    out: int,
    *,
    seed: int = 0,
    threads: int = 32,
    ctas: int = 1,
    watched: bool = False,
) -> np.ndarray:
    """Runs a mode of emulated_words.cu; `out` words, zero at the start."""
    aligned = torch.from_numpy(np.ascontiguousarray(given).view(np.uint8).copy())
    result, counter = torch.zeros(out, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    if watched:
        words.watch({"the output": result})
    args = Args(aligned.data_ptr(), result.data_ptr(), counter.data_ptr(), mode)
    words.run([Grid(ctypes.addressof(args), ctas, threads, 4096, -1)], seed=seed, jump=1000)
    return result.numpy().view(np.uint32)


def fragments(matrix: np.ndarray, corners: Sequence[tuple[int, int]]) -> np.ndarray:
    """[32, len(corners)] registers of 16-bit pairs as the PTX manual lays out the operands of m16n8k16.

    Lane 4 g + t holds row r + g, columns k + 2 t and k + 2 t + 1 for the corners (r, k).
    """
    lanes = [
        [matrix[lane // 4 + row, lane % 4 * 2 + k : lane % 4 * 2 + k + 2] for row, k in corners] for lane in range(32)
    ]
    return np.array(lanes).view(np.uint32)[..., 0]


@pytest.mark.parametrize("half", [False, True], ids=["bf16", "f16"])
def test_the_matrix_instruction(words: Library, half: bool) -> None:
    """Exact products, added with k rising: bit for bit; and in the manual's layout."""
    generator = torch.Generator().manual_seed(3)
    kind = torch.float16 if half else torch.bfloat16
    a, b = (torch.randn(shape, generator=generator).to(kind) for shape in ((16, 16), (16, 8)))
    c = torch.randn(16, 8, generator=generator)
    bits = [x.view(torch.int16).numpy().view(np.uint16) for x in (a, b.t().contiguous())]
    given_a = fragments(bits[0], [(0, 0), (8, 0), (0, 8), (8, 8)])
    given_b = fragments(bits[1], [(0, 0), (0, 8)])
    place = [(lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2) for lane in range(32) for i in range(4)]
    start = np.array([c[at] for at in place], np.float32).view(np.uint32)
    given = np.concatenate([np.concatenate([given_a, given_b], 1).ravel(), start])
    wanted = c.numpy().copy()
    for k in range(16):
        wanted += a.float().numpy()[:, k : k + 1] * b.float().numpy()[k]
    found = run(words, int(half), given, 128).view(np.float32)
    assert found.tobytes() == np.array([wanted[at] for at in place], np.float32).tobytes()


def test_matrices_from_shared_memory(words: Library) -> None:
    given = np.arange(256, dtype=np.uint16)
    plain, transposed = run(words, 2, given, 256).view(np.uint16).reshape(2, 32, 4, 2)
    matrices = given.reshape(4, 8, 8)
    for lane in range(32):
        for m in range(4):
            r, k = lane // 4, lane % 4 * 2
            assert plain[lane, m].tolist() == matrices[m, r, k : k + 2].tolist()
            assert transposed[lane, m].tolist() == matrices[m, k : k + 2, r].tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_ring_of_one_slot_lets_everything_through(words: Library, seed: int) -> None:
    given = np.random.default_rng(1).integers(0, 1 << 20, (8, 32), dtype=np.uint32)
    assert run(words, 3, given, 32, seed=seed, threads=64).tolist() == given.sum(0).tolist()


def test_shuffles_and_ballots(words: Library) -> None:
    given = np.random.default_rng(2).integers(0, 1 << 32, 32, dtype=np.uint32)
    out = run(words, 4, given, 128, seed=5).reshape(32, 4)
    assert (out[:, 0] == given[7]).all()
    assert out[:, 1].tolist() == [given[lane ^ 5] for lane in range(32)]
    assert out[:, 2].tolist() == np.roll(given, -1).tolist()
    assert (out[:, 3] == sum((int(v) & 1) << lane for lane, v in enumerate(given))).all()


def test_conversions(words: Library) -> None:
    special = [0.0, -0.0, np.inf, -np.inf, 65504, 65519.9, 65520, 2.0**-14, 2.0**-25, 3 * 2.0**-26, 1e-40, 3.4e38]
    values = np.random.default_rng(4).standard_normal(256).astype(np.float32) * 2.0 ** np.arange(-40, 24, 0.25)
    values = values.astype(np.float32)
    values[: len(special)] = special
    out = run(words, 5, values, 1024, threads=256).reshape(256, 4)
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn).half()
    wanted = codes.view(torch.int16).numpy().view(np.uint16)
    finite = ~torch.isnan(codes).numpy()
    assert (out[finite, 0] & 0xFFFF).tolist() == wanted[finite].tolist()
    assert (out[finite, 1] >> 16).tolist() == wanted[finite].tolist()
    assert (out[~finite, 0] & 0xFFFF).tolist() == [0x7FFF] * 2
    for column, kind in ((2, torch.bfloat16), (3, torch.float16)):
        bits = torch.from_numpy(values).to(kind).view(torch.int16).numpy().view(np.uint16)
        assert (out[:, column] & 0xFFFF).tolist() == bits.tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_ctas_wait_for_each_other(words: Library, seed: int) -> None:
    out = run(words, 6, np.zeros(1, np.uint32), 5, seed=seed, threads=64, ctas=5)
    assert out.tolist() == [10] * 5


def test_a_copy_may_land_before_its_wait_and_has_landed_after_it(words: Library) -> None:
    seen = [run(words, 7, np.array([9, 9, 9, 9], np.uint32), 32, seed=seed) for seed in SEEDS]
    assert (np.array(seen) & 2).all()
    assert not (seen[0] & 1).any()
    assert len({int(bit) for out in seen[1:] for bit in out & 1}) == 2


def test_time_passes_where_nothing_else_can(words: Library) -> None:
    assert run(words, 8, np.zeros(1, np.uint32), 2, ctas=2).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("mode", "threads", "says"),
    [
        (20, 64, r"deadlock: no warp can go on\n  CTA 0 warp 0 lanes 0xffffffff waiting in named_sync 0x1"),
        (21, 32, r"a warp's lanes diverge: lane 16 is at __ballot_sync, lanes 0xffff at __syncwarp"),
        (22, 32, r"load_shared16: shared address 0x1400 \+ 16 is outside of the CTA's 4096 bytes"),
        (23, 32, r"phase_arrive: more arrivals at mbarrier 0x400 than its phase has"),
        (24, 32, r"an access to 0x[0-9a-f]+, where no array lies; CTA 0, warp 0, lane 0"),
        (
            25,
            32,
            r"livelock: all warps poll for what never comes\n  CTA 0 warp 0 lanes 0xffffffff polling in load_acquire",
        ),
        (26, 32, r"no mbarrier was initialised at 0x440"),
        (27, 32, r"a CTA ended with 1 bulk copies under way"),
        (28, 32, r"bulk_copy: 0x410 from 0x[0-9a-f]+4, not multiples of 16"),
        (29, 32, r"a lane ended with 1 cp.async under way"),
        (30, 64, r"named_sync: barrier 1 for 64 threads, others said 96"),
        (31, 32, r"a lane needs more than 65536 bytes of stack|where no array lies"),
    ],
)
def test_what_goes_wrong_is_said(words: Library, mode: int, threads: int, says: str) -> None:
    with pytest.raises(EmulatorError, match=says):
        run(words, mode, np.arange(64, dtype=np.uint32), 64, threads=threads)


def test_a_report_names_the_line(words: Library) -> None:
    with pytest.raises(EmulatorError, match=r"draft_step step\.cu:\d+"):
        run(words, 20, np.zeros(1, np.uint32), 1, threads=64)


def test_grids_run_side_by_side_or_in_a_chain(words: Library) -> None:
    """Mode 6 waits for the CTAs of a grid. A chain's second grid waits for the first one's end."""
    counter, out = torch.zeros(2, dtype=torch.int32), torch.zeros(2, 3, dtype=torch.int32)
    both = [Args(0, out[i].data_ptr(), counter.data_ptr(), 10) for i in range(2)]
    words.run([Grid(ctypes.addressof(block), 3, 32, 4096, -1) for block in both], seed=3)
    assert out.tolist() == [[6] * 3] * 2  # each of the six CTAs waited for all others: neither grid could end alone
    for seed in SEEDS:
        counter.zero_()
        chain = [Args(0, out[i].data_ptr(), counter.data_ptr(), mode) for i, mode in enumerate((11, 12))]
        words.run([Grid(ctypes.addressof(block), 3, 32, 4096, i - 1) for i, block in enumerate(chain)], seed=seed)
        assert out[1].tolist() == [3] * 3


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("which", "race"),
    [
        (0, ""),
        (1, "a (read after a write|write after a read), shared memory"),
        (2, ""),
        (3, "a (read after a write|write after a read), shared memory"),
        (4, ""),
        (5, "a read after a write, the output at byte 256"),
        (6, "a read after a write, the output at byte 256"),
        (7, ""),
        (8, "__ldg of what the same launch writes, the output at byte 256"),
        (9, ""),
        (10, "a bulk copy's read after a write, without a fence .*, the output at byte 256"),
        (11, "a bulk copy over a write, without a fence .*, shared memory"),
        (12, "a (read after a write|bulk copy over a read), |"),
    ],
)
def test_what_nothing_orders_is_a_race(watched_words: Library, which: int, race: str, seed: int) -> None:
    def go() -> None:
        run(
            watched_words,
            13,
            np.full(4, which, np.uint32),
            72,
            seed=seed,
            threads=64,
            ctas=1 + (4 <= which <= 8),
            watched=True,
        )

    if not race:
        go()
        return
    with pytest.raises(EmulatorError, match=f"race: {race}"):
        go()
