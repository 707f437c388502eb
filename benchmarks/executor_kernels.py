"""FlyDSL kernels that the executor's benchmark runs: one class of operations each, and a persistent mixed one."""

from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl._mlir import ir
from flydsl._mlir.dialects import llvm
from flydsl._mlir.dialects import rocdl as raw_rocdl
from flydsl.compiler.ast_rewriter import ASTRewriter
from flydsl.expr import const_expr, gpu, range_constexpr, rocdl

import monodraft.executor as ex

THREADS = 512
DEVICE, SYSTEM = 16, 17
CLASSES = ("valu", "dpp", "lds", "memory", "matrix")
PAIR_BYTES = 8

traced = ASTRewriter.transform


@fx.struct
class Lds:
    partials: fx.Array[fx.Float32, 8, 16]
    buffer: fx.Array[fx.Int32, 1024, 16]


def value(x: Any) -> Any:
    if isinstance(x, ir.Value):
        return x
    return fx.Int32(x).ir_value() if isinstance(x, int) else x.ir_value()


def resource(address: Any) -> Any:
    pointer = fx.inttoptr(fx.PointerType.get(fx.Int32.ir_type, fx.AddressSpace.Global), address)
    return rocdl.get_buffer_rsrc(rocdl.make_buffer_ptr(pointer))


def policy(bits: int) -> Any:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), bits)


def load(buffer: Any, offset: Any, kind: Any, bits: int) -> Any:
    return kind(raw_rocdl.raw_ptr_buffer_load(kind.ir_type, buffer, value(offset), value(0), aux=policy(bits)))


def store(item: Any, buffer: Any, offset: Any, bits: int) -> None:
    raw_rocdl.raw_ptr_buffer_store(value(item), buffer, value(offset), value(0), aux=policy(bits))


def intrinsic(kind: Any, name: str, *x: Any) -> Any:
    return kind(llvm.call_intrinsic(kind.ir_type, name, [value(each) for each in x], [], []))


def clock() -> Any:
    return intrinsic(fx.Int64, "llvm.amdgcn.s.memrealtime")


def dpp(x: Any, control: int) -> Any:
    operands = (fx.Int32(0), x.bitcast(fx.Int32), fx.Int32(control), fx.Int32(15), fx.Int32(15), fx.Boolean(True))
    return intrinsic(fx.Int32, "llvm.amdgcn.update.dpp.i32", *operands).bitcast(x.dtype)


def swap(x: Any, width: int) -> list[Any]:
    pair = ir.Type.parse("!llvm.struct<(i32, i32)>")
    bits = value(x.bitcast(fx.Int32))
    both = (raw_rocdl.permlane16_swap if width == 16 else raw_rocdl.permlane32_swap)(pair, bits, bits, False, False)
    return [fx.Int32(llvm.extractvalue(fx.Int32.ir_type, both, [i])).bitcast(x.dtype) for i in (0, 1)]


def wave_sum(x: Any) -> Any:
    for control in (0xB1, 0x4E, 0x141, 0x140):
        x = x + dpp(x, control)
    for width in (16, 32):
        a, b = swap(x, width)
        x = a + b
    return x


def matrix(a: Any, b: Any, c: Any, scale: Any) -> Any:
    operands = [value(a), value(b), value(c), 0, 0, 0, value(scale), 0, value(scale)]
    return fx.Vector(rocdl.mfma_scale_f32_16x16x128_f8f6f4(fx.Float32x4.ir_type, operands), dtype=fx.Float32)


def fp8x4(a: Any, b: Any) -> Any:
    low = rocdl.cvt_pk_fp8_f32(fx.Int32.ir_type, a, b, fx.Int32(0), False)
    return fx.Int32(rocdl.cvt_pk_fp8_f32(fx.Int32.ir_type, a, b, low, True))


@traced
def wait_pair(buffer: Any, offset: Any, tag: Any, bound: Any) -> Any:
    pair = load(buffer, offset, fx.Int32x2, SYSTEM)
    start = clock()
    now = start
    while (pair[1] != tag) & (now - start < bound):
        pair = load(buffer, offset, fx.Int32x2, SYSTEM)
        now = clock()
    return pair[0], pair[1] == tag


def class_kernel(kind: str) -> ex.Program:
    """A loop over eight operations (or pairs of them) of one class; two CTAs."""

    @flyc.kernel
    def kernel(a: fx.Int64, o: fx.Int64, n: fx.Int32):
        tid, bid = fx.Int32(fx.thread_idx.x), fx.Int32(fx.block_idx.x)
        source, out = resource(a), resource(o)
        lds = fx.SharedAllocator().allocate(Lds).peek()
        x, y = fx.Float32(tid) * fx.Float32(0.001) + fx.Float32(1.0), tid
        if const_expr(kind == "valu"):
            for i in range(n):
                for _ in range_constexpr(8):
                    x = x * fx.Float32(0.999) + fx.Float32(0.5)
                    y = (y ^ 12345) + i
        if const_expr(kind == "dpp"):
            for _ in range(n):
                for _ in range_constexpr(8):
                    x = x + dpp(x, 0xB1)
        if const_expr(kind == "lds"):
            fx.ptr_store(y, lds.buffer.ptr + tid)
            gpu.barrier()
            for _ in range(n):
                for j in range_constexpr(8):
                    fx.ptr_store(y, lds.buffer.ptr + tid)
                    y = fx.ptr_load(lds.buffer.ptr + (tid ^ (j & 1)))
        if const_expr(kind == "memory"):
            for _ in range(n):
                for j in range_constexpr(8):
                    v = load(source, (tid ^ j) * 16, fx.Int32x4, SYSTEM)
                    store(v, out, (bid * THREADS + tid) * 16, SYSTEM)
        if const_expr(kind == "matrix"):
            v = load(source, tid * 16, fx.Int32x4, SYSTEM)
            wide = fx.Vector.from_elements([*v, *v], fx.Int32)
            total = fx.Vector.filled(4, 0.0, fx.Float32)
            for _ in range(n):
                for _ in range_constexpr(8):
                    total = matrix(wide, wide, total, fx.Int32(0x7F7F7F7F))
            x = total[0]
        item = fx.Vector.from_elements([x.bitcast(fx.Int32), y], fx.Int32)
        store(item, out, 65536 + (bid * THREADS + tid) * 8, SYSTEM)

    @flyc.jit
    def launch(a: fx.Int64, o: fx.Int64, n: fx.Int32, stream: fx.Stream = fx.Stream(None)):  # noqa: B008
        kernel(a, o, n).launch(grid=(2, 1, 1), block=(THREADS, 1, 1), stream=stream)

    return ex.lower(launch)


def ring_kernel(ctas: int) -> ex.Program:
    """A persistent kernel: device-coherent loads, scaled MFMA, a reduction over the wave and the CTA, fp8 conversion,
    then an exchange of tagged pairs with the next CTA and with the CTA of the same number on the next rank."""

    @flyc.kernel
    def kernel(a: fx.Int64, mine: fx.Int64, peer: fx.Int64, o: fx.Int64, n: fx.Int32, bound: fx.Int64):
        tid, bid = fx.Int32(fx.thread_idx.x), fx.Int32(fx.block_idx.x)
        lane = tid % 64
        wave = fx.Int32(rocdl.readfirstlane(fx.Int32.ir_type, tid // 64))
        lds = fx.SharedAllocator().allocate(Lds).peek()
        source, own, other, out = resource(a), resource(mine), resource(peer), resource(o)
        accumulator = fx.Vector.filled(4, 0.0, fx.Float32)
        total, good = fx.Float32(0.0), fx.Int32(1)
        for step in range(n):
            v0 = load(source, ((tid * 2) ^ step) * 16, fx.Int32x4, DEVICE)
            v1 = load(source, ((tid * 2 + 1) ^ step) * 16, fx.Int32x4, DEVICE)
            operand = fx.Vector.from_elements([*v0, *v1], fx.Int32)
            for _ in range_constexpr(2):
                accumulator = matrix(operand, operand, accumulator, fx.Int32(0x7F7F7F7F))
            y = intrinsic(fx.Float32, "llvm.amdgcn.sqrt.f32", accumulator[0] * accumulator[0]) * fx.Float32(1e-6)
            y = y + intrinsic(fx.Float32, "llvm.amdgcn.exp2.f32", accumulator[1] * fx.Float32(1e-9))
            for _ in range_constexpr(4):
                y = fx.max(y * fx.Float32(0.25) + accumulator[2] * fx.Float32(1e-9), fx.Float32(0.125))
            y = wave_sum(y)
            if lane == 0:
                lds.partials[wave] = y
            fx.ptr_store(y.bitcast(fx.Int32), lds.buffer.ptr + tid)
            gpu.barrier()
            for w in range_constexpr(8):
                total = total + lds.partials[w]
            z = fx.ptr_load(lds.buffer.ptr + (tid ^ 64))
            code = fp8x4(y, total)
            tag = step + 1
            slot = (tag & 1) * (ctas * THREADS * PAIR_BYTES)
            pair = fx.Vector.from_elements([code ^ z, tag], fx.Int32)
            store(pair, own, slot + (bid * THREADS + tid) * PAIR_BYTES, SYSTEM)
            # Waiting for both neighbours and the peer is what makes the double buffer safe.
            for place, where in ((other, bid), (own, (bid + 1) % ctas), (own, (bid + (ctas - 1)) % ctas)):
                item, ok = wait_pair(place, slot + (where * THREADS + tid) * PAIR_BYTES, tag, bound)
                good = good & ok.to(fx.Int32)
                total = total + fx.Float32(item & 1)
            gpu.barrier()
        item = fx.Vector.from_elements([total.bitcast(fx.Int32), good], fx.Int32)
        store(item, out, (bid * THREADS + tid) * 8, SYSTEM)

    @flyc.jit
    def launch(
        a: fx.Int64,
        mine: fx.Int64,
        peer: fx.Int64,
        o: fx.Int64,
        n: fx.Int32,
        bound: fx.Int64,
        stream: fx.Stream = fx.Stream(None),  # noqa: B008
    ):
        kernel(a, mine, peer, o, n, bound).launch(grid=(ctas, 1, 1), block=(THREADS, 1, 1), stream=stream)

    return ex.lower(launch)
