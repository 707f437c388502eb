"""The FlyDSL names that its stability document calls unstable, wrapped once; nothing else in monodraft imports them.

Tried with flydsl 0.5.0 (docs/device.md says what else was tried). What breaks with another FlyDSL breaks here.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import flydsl.expr as fx
import flydsl.expr.rocdl
from flydsl._mlir import ir
from flydsl._mlir.dialects import llvm, rocdl
from flydsl._mlir.passmanager import PassManager
from flydsl.compiler.ast_rewriter import ASTRewriter

traced = ASTRewriter.transform
"""Decorator: lets `if`, `while` and `for` of a helper depend on traced values (FlyDSL rewrites only kernel bodies)."""


def raw(value: Any) -> Any:
    """The IR value behind a FlyDSL value or a Python number (int -> i32, float -> f32)."""
    if isinstance(value, ir.Value):
        return value
    if isinstance(value, bool):
        return fx.Boolean(value).ir_value()
    if isinstance(value, int):
        return fx.Int32(value).ir_value()
    if isinstance(value, float):
        return fx.Float32(value).ir_value()
    return value.ir_value()


def intrinsic(result: Any, name: str, *operands: Any) -> Any:
    """Call LLVM intrinsic `name`; `result` is the FlyDSL type that it returns."""
    return result(llvm.call_intrinsic(result.ir_type, name, [raw(x) for x in operands], [], []))


def exp2(x: Any) -> Any:
    """2^x of Float32 `x` by `llvm.exp2`, which keeps subnormal results."""
    # FlyDSL's pipeline turns the operation of that name into a library call, the intrinsic call it leaves alone.
    return intrinsic(fx.Float32, "llvm.exp2.f32", x)


def asm_void(text: str, constraints: str, *operands: Any) -> None:
    """Inline assembly with side effects and no result."""
    void = ir.Type.parse("!llvm.void")
    llvm.inline_asm(void, [raw(x) for x in operands], text, constraints, has_side_effects=True)


def asm_value(value: Any, text: str, constraints: str, *operands: Any) -> Any:
    """Inline assembly with side effects whose result has the type of `value` (not passed unless it is an operand)."""
    result = llvm.inline_asm(raw(value).type, [raw(x) for x in operands], text, constraints, has_side_effects=True)
    return type(value)(result)


def _cache_policy(cm: int) -> Any:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), cm) if cm else None


def buffer_load(resource: Any, offset: Any, ir_type: Any, cm: int) -> Any:
    """One raw buffer load at byte `offset` (per lane, unsigned 32-bit); returns the IR value."""
    return rocdl.raw_ptr_buffer_load(ir_type, resource, raw(offset), raw(0), aux=_cache_policy(cm))


def buffer_store(value: Any, resource: Any, offset: Any, cm: int) -> None:
    """One raw buffer store of `value` at byte `offset`."""
    rocdl.raw_ptr_buffer_store(raw(value), resource, raw(offset), raw(0), aux=_cache_policy(cm))


def ballot(condition: Any) -> Any:
    """Int64 with bit l set where lane l is active and `condition` holds there; uniform."""
    return fx.Int64(rocdl.ballot(fx.Int64.ir_type, raw(condition)))


def first_lane(value: Any) -> Any:
    """Int32 `value` of the first active lane, as a scalar."""
    return fx.Int32(rocdl.readfirstlane(fx.Int32.ir_type, raw(value)))


def dpp(value: Any, control: int) -> Any:
    """32-bit `value` moved between lanes by a DPP control, all rows and banks; lanes without a source read 0."""
    moved = intrinsic(fx.Int32, "llvm.amdgcn.update.dpp.i32", 0, value.bitcast(fx.Int32), control, 15, 15, True)
    return moved.bitcast(value.dtype)


def permlane_swap(first: Any, second: Any, rows: int) -> tuple[Any, Any]:
    """Swap the odd groups of `rows` lanes (16 or 32) of `first` with the even groups of `second`, both Int32."""
    pair = ir.Type.parse("!llvm.struct<(i32, i32)>")
    swap = rocdl.permlane16_swap if rows == 16 else rocdl.permlane32_swap
    both = swap(pair, raw(first), raw(second), False, False)
    return tuple(fx.Int32(llvm.extractvalue(fx.Int32.ir_type, both, [i])) for i in (0, 1))


def scaled_fp8_word(values: Sequence[Any], scale: Any) -> Any:
    """Four f32 divided by the power of two in the exponent field of f32 `scale`, as e4m3 bytes of an Int32."""
    shorts = ir.VectorType.get([2], fx.Int16.ir_type)
    word = raw(fx.Vector.filled(2, 0, fx.Int16))
    a, b, c, d = (raw(v) for v in values)
    word = rocdl.cvt_scalef32_pk_fp8_f32(shorts, word, a, b, raw(scale), False)
    word = rocdl.cvt_scalef32_pk_fp8_f32(shorts, word, c, d, raw(scale), True)
    return fx.Vector(word, dtype=fx.Int16).bitcast(fx.Int32)[0]


def mfma_scale_16x16x128(acc: Any, a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    """acc + A B of a 16x16x128 tile, e4m3 by e4m3, each lane's e8m0 scale in the low byte of its word."""
    e4m3, low_byte = 0, 0
    operands = [raw(a), raw(b), raw(acc), e4m3, e4m3, low_byte, raw(scale_a), low_byte, raw(scale_b)]
    tile = flydsl.expr.rocdl.mfma_scale_f32_16x16x128_f8f6f4(fx.Float32x4.ir_type, operands)
    return fx.Vector(tile, dtype=fx.Float32)


def wait_vmcnt_zero() -> None:
    """Wait until every global load and store of this wave has completed."""
    flydsl.expr.rocdl.s_waitcnt(vmcnt=0)


def lds_allocator() -> Any:
    """The LDS allocator of the kernel that is being traced: FlyDSL allows one a kernel."""
    from flydsl.compiler.kernel_function import KernelFunction

    kernel = KernelFunction.get_current()
    if getattr(kernel, "monodraft_lds", None) is None:
        kernel.monodraft_lds = fx.SharedAllocator()
    return kernel.monodraft_lds


def mfma_bf16_16x16x32(acc: Any, a: Any, b: Any) -> Any:
    """acc + A B of a 16x16x32 tile of bf16; `a`, `b` BFloat16 Vectors of 8."""
    operands = [raw(a), raw(b), raw(acc), 0, 0, 0]
    tile = flydsl.expr.rocdl.mfma_f32_16x16x32_bf16(fx.Float32x4.ir_type, operands)
    return fx.Vector(tile, dtype=fx.Float32)


# -- where a value comes from -----------------------------------------------------------------------------------------

_UNIFORM_RESULTS = ("rocdl.readfirstlane", "rocdl.readlane", "rocdl.ballot", "gpu.block_id", "gpu.grid_dim")
_LANE_RESULTS = (
    "gpu.thread_id",
    "gpu.lane_id",
    "rocdl.mbcnt",
    "rocdl.ds_",
    "rocdl.permlane",
    "rocdl.workitem",
    # Uniform or not, their results sit in vector registers.
    "rocdl.raw.ptr.buffer.load",
    "llvm.inline_asm",
)


def lane_dependence(value: Any) -> str | None:
    """Name of the operation that makes `value` differ between lanes, or None when nothing in its history does.

    Walks the operations that the value was computed from. What a buffer load or inline assembly gave counts as
    different: LLVM takes it so, `first_lane` makes it uniform. A value carried round a loop is not followed further.
    """
    seen: set[int] = set()
    todo = [raw(value)]
    while todo:
        current = todo.pop()
        key = ir.Value.__hash__(current)
        if key in seen:
            continue
        seen.add(key)
        owner = current.owner
        if isinstance(owner, ir.Block):
            parent = owner.owner
            if parent is not None and parent.name == "scf.for":
                todo.extend(_loop_sources(parent, ir.BlockArgument(current).arg_number - 1))
            continue
        operation = owner.operation if hasattr(owner, "operation") else owner
        name = operation.name
        if name == "llvm.inline_asm" and str(operation.attributes["constraints"]).strip('"').startswith("=s"):
            continue  # a scalar register
        if name.startswith(_LANE_RESULTS):
            return str(name)
        if name.startswith(_UNIFORM_RESULTS):
            continue
        if name == "scf.for":
            todo.extend(_loop_sources(operation, ir.OpResult(current).result_number))
            continue
        todo.extend(operation.operands)
    return None


def _loop_sources(loop: Any, carried: int) -> list[Any]:
    """What value `carried` of an `scf.for` starts from; for -1, its counter, the bounds and the step."""
    operands = list(loop.operands)
    return operands[:3] if carried < 0 else [operands[3 + carried]]


# -- lowering without a GPU --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _environment(**settings: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def isa_text(launcher: Callable[..., Any], arguments: Sequence[Any]) -> str:
    """gfx950 assembly of every kernel that `launcher` (a `@flyc.jit` function) launches; needs no ROCm, no linker."""
    return isa_of(lowered_text(launcher, arguments))


def lowered_text(launcher: Callable[..., Any], arguments: Sequence[Any]) -> str:
    """MLIR of a launcher after FlyDSL's own pipeline, just before code generation, by its documented dump variables."""
    with tempfile.TemporaryDirectory() as folder:
        with (
            _environment(
                FLYDSL_GPU_ARCH="gfx950",
                ARCH="gfx950",
                COMPILE_ONLY="1",
                FLYDSL_RUNTIME_ENABLE_CACHE="0",
                FLYDSL_DUMP_IR="1",
                FLYDSL_DUMP_DIR=folder,
            ),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            try:
                launcher(*arguments)
            except Exception as error:
                if "lld" not in str(error):
                    raise
        dumps = sorted(Path(folder).rglob("*reconcile_unrealized_casts.mlir"))
        if not dumps:
            raise RuntimeError("FlyDSL left no dump: was this launcher compiled before in this process?")
        return dumps[-1].read_text()


def isa_of(lowered: str) -> str:
    """gfx950 assembly of `lowered_text`."""
    with _all_dialects():
        module = ir.Module.parse(lowered)
        PassManager.parse("builtin.module(gpu-module-to-binary{format=isa})").run(module.operation)
        return _assembly(module)


def code_object_of(lowered: str, lld: Path) -> bytes:
    """ELF code object of `lowered_text`, linked by the `ld.lld` at `lld`."""
    from flydsl._mlir.dialects import gpu

    with tempfile.TemporaryDirectory() as rocm:
        binaries = Path(rocm) / "llvm" / "bin"
        binaries.mkdir(parents=True)
        (binaries / "ld.lld").symlink_to(lld.resolve())
        with _environment(ROCM_PATH=rocm), _all_dialects():
            module = ir.Module.parse(lowered)
            PassManager.parse("builtin.module(gpu-module-to-binary{format=fatbin})").run(module.operation)
            for operation in module.body.operations:
                if operation.operation.name == "gpu.binary":
                    objects = ir.ArrayAttr(operation.attributes["objects"])
                    return bytes(gpu.ObjectAttr(objects[0]).object)
    raise RuntimeError("FlyDSL's last pass left no binary")


def _all_dialects() -> Any:
    context = ir.Context()
    context.load_all_available_dialects()
    return context


def _assembly(module: Any) -> str:
    from flydsl.compiler.jit_function import _extract_isa_text

    return str(_extract_isa_text(module.operation.get_asm(enable_debug_info=False)))
