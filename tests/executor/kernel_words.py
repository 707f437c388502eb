"""FlyDSL words for the executor's own test kernels: raw buffers at a cache policy, waits, a launcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
import numpy as np
from flydsl._mlir import ir
from flydsl._mlir.dialects import llvm
from flydsl._mlir.dialects import rocdl as raw_rocdl
from flydsl.compiler.ast_rewriter import ASTRewriter
from flydsl.expr import rocdl

import monodraft.executor as ex

traced = ASTRewriter.transform
PLAIN, DEVICE, SYSTEM = 0, 16, 17


def value(x: Any) -> Any:
    if isinstance(x, ir.Value):
        return x
    return fx.Int32(x).ir_value() if isinstance(x, int) else x.ir_value()


def policy(bits: int) -> Any:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), bits) if bits else None


def pointer(kind: Any, address: Any) -> Any:
    return fx.inttoptr(fx.PointerType.get(kind.ir_type, fx.AddressSpace.Global), address)


def resource(address: Any, nbytes: int | None = None) -> Any:
    return rocdl.get_buffer_rsrc(rocdl.make_buffer_ptr(pointer(fx.Int32, address), num_records_bytes=nbytes))


def load(region: Any, offset: Any, kind: Any = fx.Int32, bits: int = PLAIN) -> Any:
    return kind(raw_rocdl.raw_ptr_buffer_load(kind.ir_type, region, value(offset), value(0), aux=policy(bits)))


def store(region: Any, offset: Any, item: Any, bits: int = PLAIN) -> None:
    raw_rocdl.raw_ptr_buffer_store(value(item), region, value(offset), value(0), aux=policy(bits))


def intrinsic(kind: Any, name: str, *operands: Any) -> Any:
    result = llvm.call_intrinsic(None if kind is None else kind.ir_type, name, [value(x) for x in operands], [], [])
    return None if kind is None else kind(result)


def clock() -> Any:
    return intrinsic(fx.Int64, "llvm.amdgcn.s.memrealtime")


def drain() -> None:
    rocdl.s_waitcnt(vmcnt=0)


@traced
def wait_for(flag: Any, word: int = 0) -> None:
    """Poll word `word` of the flags, at system scope, until it is set."""
    seen = load(flag, 4 * word, fx.Int32, SYSTEM)
    now = clock()
    while (seen == 0) & (now >= 0):  # without the clock MLIR deletes the loop
        seen = load(flag, 4 * word, fx.Int32, SYSTEM)
        now = clock()


def words(*items: Any) -> Any:
    return fx.Vector.from_elements([*items], fx.Int32)


def program(body: Callable[..., None], ctas: int = 1, threads: int = 64, bases: int = 2) -> ex.Program:
    """Lower `body(bases, n)`: `bases` are Int64 addresses, n an Int32."""

    @flyc.kernel
    def kernel(a: fx.Int64, b: fx.Int64, c: fx.Int64, d: fx.Int64, n: fx.Int32):
        body([a, b, c, d][:bases], n)

    @flyc.jit
    def launch(a: fx.Int64, b: fx.Int64, c: fx.Int64, d: fx.Int64, n: fx.Int32, stream: fx.Stream = fx.Stream(None)):  # noqa: B008
        kernel(a, b, c, d, n).launch(grid=(ctas, 1, 1), block=(threads, 1, 1), stream=stream)

    return ex.lower(launch)


def launch(lowered: ex.Program, bases: list[Any], n: int = 0, rank: int = 0) -> ex.Launch:
    return ex.Launch(lowered, [*bases, *[0] * (4 - len(bases)), n], rank)


def run(body: Any, *arrays: np.ndarray, n: int = 0, ctas: int = 1, threads: int = 64, **options: Any) -> ex.Report:
    """Run `body(bases, n)` on arrays of rank 0."""
    names = ("a", "b", "c", "d")
    memory = options.pop("memory", None) or ex.Memory()
    regions = [memory.array(0, name, array) for name, array in zip(names, arrays, strict=False)]
    lowered = program(
        body if body.__name__ == "<lambda>" else traced(body), ctas=ctas, threads=threads, bases=max(len(regions), 1)
    )
    return ex.run(launch(lowered, regions or [0], n), memory=memory, gpu=ex.Gpu.mi355x(cus=8), **options)
