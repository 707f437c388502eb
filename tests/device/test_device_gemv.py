"""The MXFP8 GEMV, executed: operand layouts, exact tiles, sums in order, quantised rows."""

from __future__ import annotations

import functools
from typing import Any

import device_models as models
import numpy as np
import pytest

pytest.importorskip("flydsl")

from device_harness import M3, SMALL, body_program, run, run_word

from monodraft.device import probes
from monodraft.device import words as dw
from monodraft.device.geometry import TILE_ROWS, Geometry

pytestmark = pytest.mark.executed

WIDE = Geometry(hidden=512, ranks=2, columns=8)
# Depths: one chunk, fewer chunks than waves, as many, one more, a second round half full, M3.1's two depths.
DEPTHS = [128, 512, 1024, 1152, 1536, 6144, 12288]


def random_weights(rng: np.random.Generator, rows: int, k: int) -> tuple[models.U8, models.U8]:
    """e4m3 bytes and scales round 127 without NaN."""
    elements = rng.integers(0, 256, (rows, k)).astype(np.uint8)
    elements[(elements & 0x7F) == 0x7F] = 0x08
    return elements, rng.integers(110, 140, (rows, k // 32)).astype(np.uint8)


def run_operand(body: Any, geo: Geometry, **arrays: Any) -> tuple[np.ndarray, np.ndarray]:
    found = run(
        body_program(body, geo), b=np.zeros((geo.threads, 8), np.int32), d=np.zeros(geo.threads, np.int32), **arrays
    )
    return found["b"], found["d"]


@pytest.mark.parametrize("k", [128, 1152, 6144])
@pytest.mark.parametrize("rows", [16, 5])
def test_w_chunk_gives_every_lane_its_bytes_and_scale(k: int, rows: int) -> None:
    """All 256 bytes as elements and as scales; rows past the matrix and chunks past K are zeros."""
    rng = np.random.default_rng(k)
    elements = rng.permutation(np.resize(np.arange(256, dtype=np.uint8), rows * k)).reshape(rows, k)
    codes = rng.permutation(np.resize(np.arange(256, dtype=np.uint8), rows * k // 32)).reshape(rows, k // 32)
    last = M3.chunks(k) - 1

    def body(p: probes.Arguments) -> None:
        probes._store_operand(p, dw.w_chunk(p.geo, p.a, p.c, p.row, last, k, rows))

    words, scales = run_operand(body, M3, a=elements, c=codes)
    wanted_words, wanted_scales = models.operands(elements, codes, M3.waves, last)
    np.testing.assert_array_equal(words, wanted_words)
    np.testing.assert_array_equal(scales, wanted_scales)


@pytest.mark.parametrize("k", [128, 512, 1152, 6144])
@pytest.mark.parametrize("rows", [16, 3])
def test_xq_chunk_quantizes_like_the_model(k: int, rows: int) -> None:
    """Zero blocks, signed zeros, subnormals, ties, the largest bf16, one NaN, one infinity."""
    x = models.bf16_rows(np.random.default_rng(k + rows), rows, k)
    last = M3.chunks(k) - 1

    def body(p: probes.Arguments) -> None:
        probes._store_operand(p, dw.xq_chunk(p.geo, p.a, p.row, last, k, rows))

    words, scales = run_operand(body, M3, a=x)
    elements, codes = models.quantize(models.from_bf16(x))
    wanted_words, wanted_scales = models.operands(elements, codes, M3.waves, last)
    wanted_scales[wanted_scales == 0] = 1  # rows and chunks that are not there are zero blocks
    np.testing.assert_array_equal(words, wanted_words)
    np.testing.assert_array_equal(scales, wanted_scales)


def test_model_and_host_quantize_alike() -> None:
    """The model of these tests and monodraft.formats are two programs: they must agree before either is an oracle."""
    from monodraft.formats import mxfp8

    x = models.from_bf16(models.bf16_rows(np.random.default_rng(5), 24, 6144))
    for found, wanted in zip(mxfp8.encode(x), models.quantize(x), strict=True):
        np.testing.assert_array_equal(found, wanted)


def run_mma8(a: tuple, b: tuple, acc: models.F32) -> models.F32:
    """One tile a wave: a, b = (elements [waves, 16, 128], codes [waves, 16, 4]), acc [waves, 16, 16]."""
    waves = len(acc)
    lanes = [[models.operands(elements[w], codes[w], 1, 0) for w in range(waves)] for elements, codes in (a, b)]
    words = [np.concatenate([x[0] for x in side]) for side in lanes]
    scales = np.stack([np.concatenate([x[1] for x in side]) for side in lanes], 1).astype(np.int32)
    found = run_word("mma8", a=words[0], c=words[1], d=scales, b=models.lanes_of(acc))
    return found["b"]


def random_tiles(rng: np.random.Generator, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    elements = rng.integers(0, 256, (8, 16, 128)).astype(np.uint8)
    elements[(elements & 0x7F) == 0x7F] = 0
    return elements, rng.integers(low, high, (8, 16, 4)).astype(np.uint8)


@pytest.mark.parametrize("span", [(127, 128), (120, 135), (60, 190)])
def test_mma8_is_the_exact_sum_rounded_once(span: tuple[int, int]) -> None:
    rng = np.random.default_rng(span[0])
    a, b = random_tiles(rng, *span), random_tiles(rng, *span)
    acc = models.random_f32(rng, 8 * 256, -20, 20).reshape(8, 16, 16)
    wanted = np.stack([models.tile(acc[w], a[0][w], a[1][w], b[0][w], b[1][w]) for w in range(8)])
    np.testing.assert_array_equal(models.bits(run_mma8(a, b, acc)), models.bits(models.lanes_of(wanted)))


def test_mma8_decodes_every_element_byte_and_every_scale_byte() -> None:
    """Row r of wave w holds byte 16 w' + r once, times 1; scales run over all 256 codes. NaN bytes and code 255 give
    NaN in their row and nowhere else."""
    elements = np.zeros((8, 16, 128), np.uint8)
    codes = np.full((8, 16, 4), 127, np.uint8)
    ones, unit = np.zeros((8, 16, 128), np.uint8), np.full((8, 16, 4), 127, np.uint8)
    ones[:, 0, 0], ones[:, 1, 32] = 0x38, 0x38  # column 0 picks k = 0, column 1 picks k = 32
    byte = np.arange(128).reshape(8, 16).astype(np.uint8)
    elements[:, :, 0], elements[:, :, 32] = byte, 0x38
    codes[:, :, 1] = byte + np.uint8(128)
    acc = np.zeros((8, 16, 16), np.float32)
    wanted = np.stack([models.tile(acc[w], elements[w], codes[w], ones[w], unit[w]) for w in range(8)])
    found = run_mma8((elements, codes), (ones, unit), acc)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(models.lanes_of(wanted)))
    finite = ~np.isnan(found)
    np.testing.assert_array_equal(models.bits(found)[finite], models.bits(models.lanes_of(wanted))[finite])


@pytest.mark.parametrize("k", DEPTHS)
def test_mma_chain_adds_a_waves_chunks_in_order(k: int) -> None:
    """Partials of every wave, idle ones included, bit for bit; 8 token columns of 16."""
    rng = np.random.default_rng(k)
    weights = random_weights(rng, TILE_ROWS, k)
    x = models.to_bf16(rng.standard_normal((WIDE.columns, k)).astype(np.float32))

    def body(p: probes.Arguments) -> None:
        dw.st(p.d, p.i * 4, probes.gemv_partials(p, k))

    # The fast engine takes seconds a chunk to translate the matrix instructions; it runs the short depths.
    engine = "reference" if WIDE.chunks(k) > 2 else None
    outputs = {"d": np.full((WIDE.threads, 4), 7, np.float32)}
    found = run(body_program(body, WIDE), engine=engine, a=weights[0], b=weights[1], c=x, **outputs)
    wanted = models.partials(weights, models.quantize(models.from_bf16(x)), WIDE.waves)
    np.testing.assert_array_equal(models.bits(found["d"]), models.bits(models.lanes_of(wanted)))


def test_nan_of_an_idle_wave_or_another_column_stays_away() -> None:
    """K of one chunk: seven waves are idle and must hold +0, whatever NaN the one chunk holds in column 1."""
    rng = np.random.default_rng(0)
    weights = random_weights(rng, TILE_ROWS, 128)
    x = models.to_bf16(rng.standard_normal((WIDE.columns, 128)).astype(np.float32))
    x[1, 5] = 0x7FC0

    def body(p: probes.Arguments) -> None:
        dw.st(p.d, p.i * 4, probes.gemv_partials(p, 128))

    found = run(body_program(body, WIDE), a=weights[0], b=weights[1], c=x, d=np.ones((WIDE.threads, 4), np.float32))
    partial = found["d"].reshape(8, 4, 16, 4)
    assert not models.bits(partial[1:]).any()
    assert np.isnan(partial[0, :, 1]).all()
    assert not np.isnan(np.delete(partial[0], 1, axis=1)).any()


def test_red_store_puts_a_partial_by_wave_row_and_token() -> None:
    a = np.arange(512 * 4, dtype=np.float32).reshape(512, 4)
    found = run_word("red_store", a=a, b=np.zeros(2048, np.float32))["b"].reshape(8, 16, 16)
    for wave, row, token in np.ndindex(8, 16, 16):
        assert found[wave, row, token] == a[64 * wave + 16 * (row // 4) + token, row % 4]


@pytest.mark.parametrize("geo", [M3, Geometry(hidden=256, ranks=2, waves=2)], ids=["8 waves", "2 waves"])
def test_red_sum_adds_the_waves_in_order(geo: Geometry) -> None:
    """Values over 60 binades: any other order of the sum gives other bits."""
    rng = np.random.default_rng(2)
    tiles = [models.random_f32(rng, geo.waves * 256, -30, 30).reshape(geo.waves, 16, 16) for _ in (0, 1)]
    lanes = [models.lanes_of(tile) for tile in tiles]
    found = run_word("red_sum", geo, a=lanes[0], c=lanes[1], b=np.zeros((2, 16, 16), np.float32))["b"]
    for tile, sums in zip(tiles, found, strict=True):
        wanted = tile[0]
        for wave in tile[1:]:
            wanted = wanted + wave
        np.testing.assert_array_equal(models.bits(sums), models.bits(wanted))
        if geo.waves > 2:
            backwards = functools.reduce(np.add, tile[::-1])
            assert (models.bits(wanted) != models.bits(backwards)).any(), "the case tells orders apart"


@pytest.mark.parametrize("geo", [SMALL, Geometry(hidden=512, ranks=2), M3], ids=lambda geo: str(geo.hidden))
def test_quant_store_writes_the_bytes_of_the_model(geo: Geometry) -> None:
    rows = 24
    x = models.bf16_rows(np.random.default_rng(geo.hidden), rows, geo.hidden)
    guard = np.uint8(0xA5)
    outputs = {"b": np.full((rows, geo.hidden), guard), "c": np.full((rows, geo.hidden // 32), guard)}
    found = run_word("quant_store", geo, ctas=rows, a=x, **outputs)
    elements, codes = models.quantize(models.from_bf16(x))
    np.testing.assert_array_equal(found["b"], elements)
    np.testing.assert_array_equal(found["c"], codes)


def test_quant_store_of_f32_values_round_the_edges_of_a_block() -> None:
    """f32, not bf16: amax within 4 ulp of 448 * 2^k and of 1.75 * 2^k, where the code changes, and subnormals."""
    geo = Geometry(hidden=6144)
    amax = np.concatenate(
        [models.near_powers(448.0), models.near_powers(1.75), models.random_f32(np.random.default_rng(8), 512)]
    )
    blocks = np.random.default_rng(9).uniform(-1, 1, (amax.size, 32)).astype(np.float32) * np.abs(amax)[:, None]
    blocks[:, 7] = amax
    rows = -(-amax.size // (geo.hidden // 32))
    x = np.resize(blocks, (rows, geo.hidden)).astype(np.float32)

    def body(p: probes.Arguments) -> None:
        t = probes.fx.block_idx.x
        values = list(dw.ldn(p.a, 4 * rows * geo.hidden, t * geo.hidden + p.tid * 16, 16, probes.fx.Float32))
        dw.quant_store(p.geo, values, p.b, p.c, t)

    outputs = {"b": np.zeros((rows, geo.hidden), np.uint8), "c": np.zeros((rows, geo.hidden // 32), np.uint8)}
    found = run(body_program(body, geo), ctas=rows, a=x, **outputs)
    elements, codes = models.quantize(x)
    np.testing.assert_array_equal(found["c"], codes)
    np.testing.assert_array_equal(found["b"], elements)
