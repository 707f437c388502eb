"""FlyDSL's tracer and pipeline, without a GPU: the one place that knows FlyDSL's private names.

`lower` runs in process on FlyDSL 0.5 (`JitFunction` internals). Where those are absent it falls back to documented
environment variables only: `COMPILE_ONLY` and `FLYDSL_DUMP_IR` into a temporary folder. `read_mlir` takes the text of
such a dump (`19_reconcile_unrealized_casts.mlir`), so a module captured elsewhere runs too.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from monodraft.errors import Fault
from monodraft.executor.errors import BadLaunch
from monodraft.executor.memory import Region
from monodraft.executor.program import Program, TensorLayout

ARCHITECTURE = "gfx950"
TRACEBACK_DEPTH = 40


def lower(launcher: Any, *args: Any, **kwargs: Any) -> Program:
    """Trace a @flyc.jit launcher for gfx950 and lower it to the last stage before LLVM.

    `args` are those of the launcher; only their types matter, except compile-time constants. A `Region` or an int may
    stand for an address, a NumPy array or a torch tensor for an fx.Tensor. Missing arguments are filled with zeros
    where the annotation says the type. Raises BadLaunch for arguments that do not fit the signature.
    """
    require_flydsl()
    with environment():
        if not hasattr(launcher, "_ensure_sig"):
            raise BadLaunch(f"launcher: found {type(launcher).__name__}, wanted a function decorated with @flyc.jit")
        owner, args = launcher._split_self(args)
        bound = bind(launcher, args, kwargs)
        if not hasattr(launcher, "_resolve_arguments"):
            return lower_by_dump(launcher, *bound.args, **bound.kwargs)
        return lower_in_process(launcher, owner, bound)


def read_mlir(text: str) -> Program:
    """A Program from the text of FlyDSL's last dump before the binary (with locations, for source lines)."""
    require_flydsl()
    from flydsl._mlir import ir

    from monodraft.executor.mlir import read_program

    context = ir.Context()
    context.enable_multithreading(False)
    context.load_all_available_dialects()
    with context:
        return read_program(ir.Module.parse(text))


def require_flydsl() -> None:
    """Refuse with the remedy where FlyDSL is missing."""
    if importlib.util.find_spec("flydsl") is None:
        raise BadLaunch("FlyDSL is not installed: pip install 'monodraft[gfx950]'")


def signature(launcher: Any) -> inspect.Signature:
    """The launcher's parameters without `self`, annotations resolved."""
    launcher._ensure_sig()
    return launcher._sig


def bind(launcher: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
    """Arguments as FlyDSL values; the ones not given are zeros of their annotated type."""
    declared = signature(launcher)
    try:
        bound = declared.bind_partial(*args, **kwargs)
    except TypeError as error:
        raise BadLaunch(f"{launcher.func.__name__}: {error}") from error
    for name, parameter in declared.parameters.items():
        if name in bound.arguments:
            bound.arguments[name] = as_traced(name, bound.arguments[name], parameter.annotation)
        elif parameter.default is inspect.Parameter.empty:
            bound.arguments[name] = placeholder(name, parameter.annotation)
    bound.apply_defaults()
    # bind_partial keeps the order of calls; FlyDSL reads positions.
    bound.arguments = {name: bound.arguments[name] for name in declared.parameters}
    return bound


def placeholder(name: str, annotation: Any) -> Any:
    """A zero of a numeric annotation."""
    import flydsl.expr as fx

    if isinstance(annotation, type) and issubclass(annotation, fx.Numeric):
        return annotation(0)
    raise BadLaunch(f"argument {name}: missing, and its annotation {annotation!r} does not say a value to trace with")


def as_traced(name: str, value: Any, annotation: Any) -> Any:
    """A value that FlyDSL accepts for `annotation`, standing for `value`."""
    import flydsl.expr as fx

    if isinstance(annotation, type) and issubclass(annotation, fx.Numeric):
        if isinstance(value, Region | np.ndarray) or hasattr(value, "data_ptr"):
            return annotation(0)
        if isinstance(value, int | float | np.generic):
            return annotation(value)
        if not isinstance(value, fx.Numeric):
            wanted = f"{annotation.__name__}: a number, or a region or array for its address"
            raise BadLaunch("cannot lower", faults=[Fault(f"argument {name}", repr(value)[:80], wanted)])
        return value
    if isinstance(value, Region):
        value = value.array
    if isinstance(value, np.ndarray):
        import torch

        value = torch.from_numpy(value)
    if isinstance(annotation, type) and issubclass(annotation, fx.Pointer) and hasattr(value, "data_ptr"):
        return as_pointer(name, value)
    return value


ELEMENTS = {
    "float64": "Float64",
    "float32": "Float32",
    "float16": "Float16",
    "bfloat16": "BFloat16",
    "float8_e4m3fn": "Float8E4M3FN",
    "int64": "Int64",
    "int32": "Int32",
    "int16": "Int16",
    "int8": "Int8",
    "uint8": "Uint8",
}


def as_pointer(name: str, tensor: Any) -> Any:
    """An fx.Pointer argument with the element type of a tensor."""
    import flydsl.compiler as flyc
    import flydsl.expr as fx

    kind = str(tensor.dtype).removeprefix("torch.")
    if kind not in ELEMENTS:
        raise BadLaunch("cannot lower", faults=[Fault(f"argument {name}", f"{kind} elements", ", ".join(ELEMENTS))])
    return flyc.from_c_void_p(getattr(fx, ELEMENTS[kind]), 0)


def lower_in_process(launcher: Any, owner: Any, bound: inspect.BoundArguments) -> Program:
    """The pipeline of FlyDSL 0.5 up to the stage before gpu-module-to-binary."""
    from flydsl._mlir import ir
    from flydsl.compiler import jit_function as flydsl_jit

    from monodraft.executor.mlir import read_program

    hints = launcher._effective_compile_hints()
    backend = flydsl_jit.get_backend()
    launcher._backend_target = backend.target
    launcher._resolve_arguments(bound.arguments)
    context = flydsl_jit._create_mlir_context()
    with context, flydsl_jit.CompilationContext.compile_hints(hints):
        with source_lines():
            traced = launcher._trace(context, launcher._sig, bound, owner, execute=False)
        _, config = flydsl_jit.MlirCompiler.prepare(
            traced.module, backend=backend, compile_hints=hints, link_libs=traced.link_libs
        )
        module = ir.Module.parse(traced.module.operation.get_asm(enable_debug_info=True))
        flydsl_jit._run_pipeline(module, config.fragments[:-1], verifier=True, print_after_all=False)
        program = read_program(module, traced_parameters(traced))
        program.constants = constant_positions(launcher, traced)
        return program


@contextlib.contextmanager
def source_lines() -> Iterator[None]:
    """Give every operation the Python stack that made it (raw builders would get the kernel's first line)."""
    from flydsl._mlir import ir

    if not hasattr(ir, "loc_tracebacks"):
        yield
        return
    with ir.loc_tracebacks(max_depth=TRACEBACK_DEPTH):
        yield


def traced_parameters(traced: Any) -> list[Any]:
    """Names and shapes of what each launcher parameter became, without the stream."""
    from flydsl.compiler.jit_argument import MemRefJitArg
    from flydsl.compiler.protocol import c_abi_spec
    from flydsl.expr.typing import Stream

    from monodraft.executor.mlir import Traced

    result = []
    for name, argument in zip(traced.param_names, traced.jit_args, strict=False):
        if isinstance(argument, Stream):
            break  # the stream comes last and no kernel sees it
        layout = tensor_layout(argument) if isinstance(argument, MemRefJitArg) else None
        result.append(Traced(name, len(c_abi_spec(argument)), layout))
    return result


def constant_positions(launcher: Any, traced: Any) -> tuple[int, ...]:
    """Positions of the launcher's parameters that tracing baked in."""
    return tuple(i for i, name in enumerate(signature(launcher).parameters) if name not in traced.param_names)


def tensor_layout(argument: Any) -> TensorLayout:
    """Which sizes and strides of a traced tensor are fixed."""
    tensor = argument.torch_tensor
    fixed_shape = [None if i in argument.shape_dyn_indices else int(n) for i, n in enumerate(tensor.shape)]
    fixed_strides = [None if i in argument.stride_dyn_indices else int(n) for i, n in enumerate(tensor.stride())]
    return TensorLayout(str(tensor.dtype).removeprefix("torch."), tuple(fixed_shape), tuple(fixed_strides))


def lower_by_dump(launcher: Any, *args: Any, **kwargs: Any) -> Program:
    """The same module by FlyDSL's documented dump; the final link may fail for want of ld.lld, which is no matter."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"FLYDSL_DUMP_IR": "1", "FLYDSL_DUMP_DIR": folder, "FLYDSL_RUNTIME_ENABLE_CACHE": "0"}
        with environment(**settings), contextlib.redirect_stdout(io.StringIO()):
            try:
                launcher(*args, **kwargs)
            except Exception as error:
                if "lld" not in str(error):
                    raise
        dumps = sorted(Path(folder).rglob("*reconcile_unrealized_casts.mlir"))
        if not dumps:
            raise BadLaunch(f"{launcher.func.__name__}: FlyDSL wrote no dump (was it compiled before in this process?)")
        return read_mlir(dumps[-1].read_text())


@contextlib.contextmanager
def environment(**settings: str) -> Iterator[None]:
    """FlyDSL's settings for compiling for gfx950 without a GPU, restored on the way out."""
    wanted = {"FLYDSL_GPU_ARCH": ARCHITECTURE, "ARCH": ARCHITECTURE, "COMPILE_ONLY": "1", **settings}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
