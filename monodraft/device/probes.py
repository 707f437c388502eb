"""One small kernel for every device word: what the tests compile and execute, and what `monodraft kernels` lists.

All probes have one signature. `a` .. `d` are bases, `n` a number, `tag`, `deadline` and `health` those of the waits; a
global thread number `i` indexes elements. Each docstring says what a probe reads and writes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from monodraft.device import words as dw
from monodraft.device.flydsl_names import isa_text, lds_allocator
from monodraft.device.geometry import TILE_ROWS, Geometry
from monodraft.device.isa import Kernel, parse
from monodraft.device.memory import load_words, resource

SITE = 7
"""The site of every wait in a probe."""
DEPTH = 1024
"""GEMV depth K of the probes of single chunks."""


@dataclass(frozen=True)
class Arguments:
    """What a probe's body gets: the geometry, and the kernel's arguments as FlyDSL values."""

    geo: Geometry
    a: Any
    b: Any
    c: Any
    d: Any
    n: Any
    tag: Any
    bound: dw.Bound

    @property
    def tid(self) -> Any:
        return fx.thread_idx.x

    @property
    def i(self) -> Any:
        """Global thread number."""
        return fx.block_idx.x * self.geo.threads + fx.thread_idx.x

    @property
    def row(self) -> Any:
        """Row of a matrix operand that this lane holds."""
        return dw.lane() % TILE_ROWS


Body = Callable[[Arguments], None]
PROBES: dict[str, Body] = {}


def probe(body: Body) -> Body:
    """Enter a body under the word's name."""
    PROBES[body.__name__.removeprefix("probe_")] = body
    return body


def launcher(body: Body, geo: Geometry) -> Any:
    """A fresh `@flyc.jit` launcher of `body`; block `geo.threads`, grid `ctas`."""

    @flyc.kernel
    def kernel(
        a: fx.Int64,
        b: fx.Int64,
        c: fx.Int64,
        d: fx.Int64,
        n: fx.Int32,
        tag: fx.Int32,
        health: fx.Int64,
        rank: fx.Int32,
        deadline: fx.Int64,
    ):
        body(Arguments(geo, a, b, c, d, n, tag, dw.Bound(health, rank, deadline)))

    @flyc.jit
    def launch(
        a: fx.Int64,
        b: fx.Int64,
        c: fx.Int64,
        d: fx.Int64,
        n: fx.Int32,
        tag: fx.Int32,
        health: fx.Int64,
        rank: fx.Int32,
        deadline: fx.Int64,
        ctas: fx.Int32,
        stream: fx.Stream = fx.Stream(None),  # noqa: B008
    ):
        kernel(a, b, c, d, n, tag, health, rank, deadline).launch(
            grid=(ctas, 1, 1), block=(geo.threads, 1, 1), stream=stream
        )

    return launch


def placeholders() -> list[Any]:
    """Arguments to trace a probe with."""
    i64, i32 = fx.Int64(0), fx.Int32(0)
    return [i64, i64, i64, i64, i32, i32, i64, i32, i64, fx.Int32(1)]


def probe_isa(name: str, geo: Geometry | None = None) -> str:
    """gfx950 assembly of a word's probe."""
    return isa_text(launcher(PROBES[name], geo or Geometry()), placeholders())


def probe_kernel(name: str, geo: Geometry | None = None) -> Kernel:
    """The parsed assembly of a word's probe."""
    return parse(probe_isa(name, geo))[0]


def shared(dtype: Any, count: int) -> Any:
    """Pointer to `count` elements of a new static LDS array, aligned to 16 bytes. Once per array and kernel."""
    return lds_allocator().allocate(fx.Array[dtype, count, 16]).peek().ptr


def _float(p: Arguments) -> Any:
    return dw.ld(p.a, p.i, dtype=fx.Float32)


# -- numbers: float32 a[i] to 32-bit b[i] -----------------------------------------------------------------------------


@probe
def probe_bf16_bits(p: Arguments) -> None:
    dw.st(p.b, p.i, dw.bf16_bits(_float(p)))


@probe
def probe_bf16r(p: Arguments) -> None:
    dw.st(p.b, p.i, dw.bf16r(_float(p)))


@probe
def probe_bfpair(p: Arguments) -> None:
    """float32 a[i] and c[i] to b[i]."""
    dw.st(p.b, p.i, dw.bfpair(_float(p), dw.ld(p.c, p.i, dtype=fx.Float32)))


@probe
def probe_exp(p: Arguments) -> None:
    dw.st(p.b, p.i, dw.exp(_float(p)))


@probe
def probe_hw_sqrt(p: Arguments) -> None:
    dw.st(p.b, p.i, dw.hw_sqrt(_float(p)))


@probe
def probe_mx_scale(p: Arguments) -> None:
    """amax a[i] to the code (float32) b[i] and the inverse c[i]."""
    code, inverse = dw.mx_scale(_float(p))
    dw.st(p.b, p.i, code)
    dw.st(p.c, p.i, inverse)


@probe
def probe_opaque(p: Arguments) -> None:
    """b[i] = the sum over n rounds of a[i], loaded anew in every round."""
    dw.st(p.b, p.i, _reload_sum(p))


@dw.traced
def _reload_sum(p: Arguments) -> Any:
    total = fx.Int32(0)
    rounds = fx.Int32(0)
    while rounds < p.n:
        total = total + dw.ld(p.a, dw.opaque(p.i, rounds))
        rounds = rounds + 1
    return total


# -- memory -----------------------------------------------------------------------------------------------------------


@probe
def probe_ld(p: Arguments) -> None:
    """bf16 a[16 i ..], device-coherent, two 16-byte loads, to c[16 i ..]."""
    dw.st(p.c, p.i * 16, dw.ld(p.a, p.i * 16, 16, fx.BFloat16, cm=dw.CM_DEV))


@probe
def probe_ld8(p: Arguments) -> None:
    """byte a[i] to int32 b[i]."""
    dw.st(p.b, p.i, dw.ld8(p.a, p.i))


@probe
def probe_ldn(p: Arguments) -> None:
    """float32 pair a[2 i ..] of a resource of n bytes, to b[2 i ..]."""
    dw.st(p.b, p.i * 2, dw.ldn(p.a, p.n, p.i * 2, 2, fx.Float32))


@probe
def probe_st(p: Arguments) -> None:
    """Two words (a[i], tag) to the pair b[i] at system scope."""
    pair = fx.Vector.from_elements([dw.ld(p.a, p.i), p.tag], fx.Int32)
    dw.st(p.b, p.i * 2, pair, cm=dw.CM_SYS)


@probe
def probe_gst32(p: Arguments) -> None:
    """a[i] to the 64-bit address c[i]."""
    address = dw.ld(p.c, p.i * 2, 2).bitcast(fx.Int64)[0]
    dw.gst32(address, dw.ld(p.a, p.i))


# -- waits ------------------------------------------------------------------------------------------------------------


@probe
def probe__spin(p: Arguments) -> None:
    """Waits for a[i] == tag; its result to b[i]."""
    where = resource(p.a)

    def load_all(rounds: Any) -> list[Any]:
        return load_words(where, dw.opaque(p.i * 4, rounds), 4, dw.CM_DEV)

    _, failed = dw._spin(load_all, lambda words: words[0] != p.tag, p.bound.deadline, p.bound.health)
    dw.st(p.b, p.i, failed)


@probe
def probe_poll_pairs(p: Arguments) -> None:
    """Waits for pairs a[8 i .. 8 i + 7]; their values to b[8 i ..]."""
    values = dw.poll_pairs(p.a, p.i * 8, 8, p.tag, p.bound, SITE)
    dw.st(p.b, p.i * 8, fx.Vector.from_elements(values, fx.Int32))


@probe
def probe_poll_rows(p: Arguments) -> None:
    """Waits for pairs 2 i, 2 i + 1 of a, c and d; their 6 values to b[8 i ..]."""
    rows = dw.poll_rows([p.a, p.c, p.d], p.i * 2, 2, p.tag, p.bound, SITE)
    values = [value for row in rows for value in row] + [fx.Int32(0)] * 2
    dw.st(p.b, p.i * 8, fx.Vector.from_elements(values, fx.Int32))


@probe
def probe_publish(p: Arguments) -> None:
    """a[i] to b[i] device-coherent, then flag c[CTA] = tag."""
    dw.st(p.b, p.i, dw.ld(p.a, p.i), cm=dw.CM_DEV)
    dw.publish(p.c, fx.block_idx.x, p.tag)


@probe
def probe_wait_flags(p: Arguments) -> None:
    """Waits for as many flags of a as the geometry allows, then b[i] = c[i]."""
    dw.wait_flags(p.geo, p.a, p.geo.flag_limit, p.tag, p.bound, SITE)
    dw.st(p.b, p.i, dw.ld(p.c, p.i, cm=dw.CM_DEV))


@probe
def probe_fail(p: Arguments) -> None:
    dw.fail(p.bound.health, p.bound.rank, p.n)


# -- GEMV -------------------------------------------------------------------------------------------------------------


def _store_operand(p: Arguments, operand: Any) -> None:
    """An operand to b[8 i ..] and its scale to d[i]."""
    words, scale = operand
    dw.st(p.b, p.i * 8, words)
    dw.st(p.d, p.i, scale)


@probe
def probe_w_chunk(p: Arguments) -> None:
    """e4m3 a[16][DEPTH] and scales c[16][DEPTH / 32]: the operands of chunk 0 of every wave."""
    _store_operand(p, dw.w_chunk(p.geo, p.a, p.c, p.row, 0, DEPTH, TILE_ROWS))


@probe
def probe_xq_chunk(p: Arguments) -> None:
    """bf16 a[columns][DEPTH]: the operands of chunk 0 of every wave."""
    _store_operand(p, dw.xq_chunk(p.geo, p.a, p.row, 0, DEPTH, p.geo.columns))


@probe
def probe_mma8(p: Arguments) -> None:
    """Operands a[8 i ..], c[8 i ..] with scales d[2 i], d[2 i + 1], accumulators b[4 i ..] updated."""
    a, b = (dw.ld(base, p.i * 8, 8) for base in (p.a, p.c))
    scales = dw.ld(p.d, p.i * 2, 2)
    acc = dw.ld(p.b, p.i * 4, 4, fx.Float32)
    dw.st(p.b, p.i * 4, dw.mma8(acc, a, b, scales[0], scales[1]))


@probe
def probe_mma_chain(p: Arguments) -> None:
    """e4m3 a[16][hidden], scales b, times bf16 c[columns][hidden] transposed: a wave's partials to d[4 i ..]."""
    dw.st(p.d, p.i * 4, gemv_partials(p, p.geo.hidden))


def gemv_partials(p: Arguments, k: int) -> Any:
    """This wave's partials of a tile of depth `k`: weights a, scales b, tokens c."""
    chunks = range(p.geo.chunks(k))
    weights = [dw.w_chunk(p.geo, p.a, p.b, p.row, c, k, TILE_ROWS) for c in chunks]
    tokens = [dw.xq_chunk(p.geo, p.c, p.row, c, k, p.geo.columns) for c in chunks]
    return dw.mma_chain(weights, tokens)


@probe
def probe_red_store(p: Arguments) -> None:
    """float32 partials a[4 i ..] of tile 0 through LDS, in the order of LDS, to b[...]: 4 words a thread."""
    red = shared(fx.Float32, p.geo.partial_words(1))
    dw.red_store(p.geo, red, 0, dw.ld(p.a, p.tid * 4, 4, fx.Float32))
    fx.gpu.barrier()
    kind = fx.Vector.make_type(4, fx.Float32)
    dw.st(p.b, p.tid * 4, fx.ptr_load(red + p.tid * 4, result_type=kind))


@probe
def probe_red_sum(p: Arguments) -> None:
    """float32 partials a[4 i ..] of tiles 0 and c[4 i ..] of tile 1; their sums to b[2][16][16]."""
    red = shared(fx.Float32, p.geo.partial_words(2))
    for tile, base in enumerate((p.a, p.c)):
        dw.red_store(p.geo, red, tile, dw.ld(base, p.tid * 4, 4, fx.Float32))
    fx.gpu.barrier()
    for first in range(0, 2 * TILE_ROWS * TILE_ROWS, p.geo.threads):
        place = p.tid + first
        total = dw.red_sum(p.geo, red, place // 256, place // TILE_ROWS % TILE_ROWS, place % TILE_ROWS)
        dw.st(p.b, place, total, nbytes=4 * 2 * TILE_ROWS * TILE_ROWS)


@probe
def probe_quant_store(p: Arguments) -> None:
    """bf16 row CTA of a[ctas][hidden] to e4m3 b[ctas][hidden] and e8m0 c[ctas][hidden / 32]."""
    t = fx.block_idx.x
    dw.quant_store(p.geo, dw.row_x(p.geo, p.a, t), p.b, p.c, t)


# -- rows -------------------------------------------------------------------------------------------------------------


def _store_row(p: Arguments, values: Any) -> None:
    """16 float32 values to b[CTA][16 tid ..], for all threads."""
    dw.st(p.b, p.i * 16, fx.Vector.from_elements(values, fx.Float32))


@probe
def probe_row_x(p: Arguments) -> None:
    """bf16 row CTA of a[ctas][hidden]."""
    _store_row(p, dw.row_x(p.geo, p.a, fx.block_idx.x))


@probe
def probe_row_sum4(p: Arguments) -> None:
    """Row CTA of the regions at a, n bytes apart, one a rank."""
    partials = [p.a + fx.Int64(p.n) * rank for rank in range(p.geo.ranks)]
    _store_row(p, dw.row_sum4(p.geo, partials, fx.block_idx.x, p.tag, p.bound, SITE))


@probe
def probe_norm_w(p: Arguments) -> None:
    """bf16 a[hidden] to words b[8 i ..]."""
    dw.st(p.b, p.i * 8, fx.Vector.from_elements(dw.norm_w(p.geo, p.a), fx.Int32))


@probe
def probe_norm_row(p: Arguments) -> None:
    """Two norms with weights c: row CTA of a starts the residual, row CTA of d is added to it; the second to b."""
    res = shared(fx.Int32, p.geo.residual_words())
    red = shared(fx.Float32, p.geo.waves)
    t = fx.block_idx.x
    weights = dw.norm_w(p.geo, p.c)
    first = dw.norm_row(p.geo, dw.row_x(p.geo, p.a, t), weights, res, red, 1e-6, add=False)
    second = dw.row_x(p.geo, p.d, t)
    mixed = [x + y for x, y in zip(first, second, strict=True)]
    _store_row(p, dw.norm_row(p.geo, mixed, weights, res, red, 1e-6))
