"""Launchers with each kind of argument, for the tests of lowering and launching."""

import flydsl.compiler as flyc
import flydsl.expr as fx


@flyc.kernel
def scale_kernel(a: fx.Tensor, b: fx.Tensor, n: fx.Int32, factor: fx.Float32, offset: fx.Constexpr[int]):
    """b = factor * a + offset, flat."""
    i = fx.block_idx.x * 256 + fx.thread_idx.x
    if i < n:
        b[i] = a[i] * factor + float(offset)


@flyc.jit
def scale(
    a: fx.Tensor,
    b: fx.Tensor,
    n: fx.Int32,
    factor: fx.Float32,
    offset: fx.Constexpr[int],
    stream: fx.Stream = fx.Stream(None),  # noqa: B008
):
    """One thread an element; the grid is computed from n on the host."""
    scale_kernel(a, b, n, factor, offset).launch(grid=((n + 255) // 256, 1, 1), block=(256, 1, 1), stream=stream)


@flyc.kernel
def identity_kernel(out: fx.Int64, nx: fx.Int32, ny: fx.Int32):
    """Each thread writes its own flat number, of a 3-D grid of 2-D blocks."""
    x = fx.block_idx.x * 8 + fx.thread_idx.x
    y = fx.block_idx.y * 16 + fx.thread_idx.y
    flat = (fx.block_idx.z * (ny * 16) + y) * (nx * 8) + x
    pointer = fx.inttoptr(fx.PointerType.get(fx.Int32.ir_type, fx.AddressSpace.Global), out)
    pointer[flat] = flat


@flyc.jit
def identity(out: fx.Int64, nx: fx.Int32, ny: fx.Int32, nz: fx.Int32, stream: fx.Stream = fx.Stream(None)):  # noqa: B008
    """Grid from arguments."""
    identity_kernel(out, nx, ny).launch(grid=(nx, ny, nz), block=(8, 16, 1), stream=stream)


@flyc.jit
def twice(out: fx.Int64, stream: fx.Stream = fx.Stream(None)):  # noqa: B008
    """Launches two kernels, which a Program cannot hold."""
    one = fx.Int32(1)
    identity_kernel(out, one, one).launch(grid=(1, 1, 1), block=(8, 16, 1), stream=stream)
    identity_kernel(out, one, one).launch(grid=(1, 1, 1), block=(8, 16, 1), stream=stream)


@flyc.kernel
def tail_kernel(out: fx.Int64):
    """Blocks of 100 threads: the second wave is not full."""
    i = fx.block_idx.x * 100 + fx.thread_idx.x
    pointer = fx.inttoptr(fx.PointerType.get(fx.Int32.ir_type, fx.AddressSpace.Global), out)
    pointer[i] = i + 1


@flyc.jit
def tail(out: fx.Int64, stream: fx.Stream = fx.Stream(None)):  # noqa: B008
    """Three blocks."""
    tail_kernel(out).launch(grid=(3, 1, 1), block=(100, 1, 1), stream=stream)


@flyc.kernel
def shared_reads_kernel(x: fx.Tensor, y: fx.Tensor, n: fx.Int32):
    """y[i] = x[0] + x[8 + i // 4] + 3 reads of x[40 + i] in a loop; x[0] is read by all lanes at one address."""
    i = fx.thread_idx.x
    total = x[0] + x[8 + i // 4]
    for _ in range(fx.Int32(0), n, fx.Int32(1)):
        total = total + x[40 + i]
    y[i] = total


@flyc.jit
def shared_reads(x: fx.Tensor, y: fx.Tensor, n: fx.Int32, stream: fx.Stream = fx.Stream(None)):  # noqa: B008
    """One wave."""
    shared_reads_kernel(x, y, n).launch(grid=(1, 1, 1), block=(64, 1, 1), stream=stream)


@flyc.kernel
def sine_kernel(out: fx.Int64):
    """Uses an operation that the executor does not know."""
    pointer = fx.inttoptr(fx.PointerType.get(fx.Int32.ir_type, fx.AddressSpace.Global), out)
    from flydsl._mlir.dialects import llvm

    t = fx.Int32(fx.thread_idx.x)
    v = llvm.inline_asm(fx.Int32.ir_type, [t.ir_value()], "v_bfrev_b32 $0, $1", "=v,v", has_side_effects=False)
    pointer[t] = fx.Int32(v)
    w = llvm.call_intrinsic(fx.Float32.ir_type, "llvm.amdgcn.cubesc", [fx.Float32(1.0).ir_value()] * 3, [], [])
    pointer[t + 64] = fx.Float32(w).bitcast(fx.Int32)


@flyc.jit
def unknown(out: fx.Int64, stream: fx.Stream = fx.Stream(None)):  # noqa: B008
    """Refused."""
    sine_kernel(out).launch(grid=(1, 1, 1), block=(64, 1, 1), stream=stream)
