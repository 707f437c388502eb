"""Kernels written as MLIR, one operation each: lane t computes out[t] = op(a[t], b[t], c[t])."""

from __future__ import annotations

from typing import Any

import numpy as np

import monodraft.executor as ex

MODULE = """
module attributes {{gpu.container_module}} {{
  gpu.module @kernels {{
    llvm.mlir.global external @lds() {{addr_space = 3 : i32, alignment = 16 : i64}} : !llvm.array<1024 x i8>
    llvm.func @k({parameters}) attributes {{gpu.kernel, rocdl.kernel}} {{
      %t = rocdl.workitem.id.x : i32
{loads}
{body}
      %po = llvm.getelementptr %p_out[%t] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, {result}
      llvm.store %r, %po {{alignment = 1 : i64}} : {result}, !llvm.ptr<1>
      llvm.return
    }}
  }}
  llvm.func @launch({parameters}, %stream: !llvm.ptr) {{
    %one = llvm.mlir.constant(1 : index) : i64
    %n = llvm.mlir.constant(64 : index) : i64
    gpu.launch_func <%stream : !llvm.ptr> @kernels::@k
      blocks in (%one, %one, %one) threads in (%n, %one, %one) : i64 args({passed})
    llvm.return
  }}
}}
"""


def program(body: str, inputs: dict[str, str], result: str) -> ex.Program:
    """`body` computes %r of type `result` from %a, %b, ... of the types in `inputs`."""
    names = [*(f"p_{name}" for name in inputs), "p_out"]
    loads = []
    for name, kind in inputs.items():
        loads.append(f"%q_{name} = llvm.getelementptr %p_{name}[%t] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, {kind}")
        loads.append(f"%{name} = llvm.load %q_{name} {{alignment = 1 : i64}} : !llvm.ptr<1> -> {kind}")
    text = MODULE.format(
        parameters=", ".join(f"%{name}: !llvm.ptr<1>" for name in names),
        passed=", ".join(f"%{name} : !llvm.ptr<1>" for name in names),
        loads="\n".join(loads),
        body=body,
        result=result,
    )
    return ex.read_mlir(text)


def run(
    body: str,
    inputs: dict[str, tuple[str, np.ndarray]],
    result: tuple[str, Any],
    engine: str = "reference",
    schedule: ex.Schedule | None = None,
) -> np.ndarray:
    """The 64 results, with the dtype (or bytes per lane) of `result`. Inputs are arrays of 64 lanes."""
    lowered = program(body, {name: kind for name, (kind, _) in inputs.items()}, result[0])
    memory = ex.Memory()
    regions = [memory.array(0, name, array) for name, (_, array) in inputs.items()]
    shape = result[1] if isinstance(result[1], np.ndarray) else np.zeros(64, result[1])
    out = memory.array(0, "out", np.zeros_like(shape))
    ex.run(ex.Launch(lowered, [*regions, out]), memory=memory, engine=engine, schedule=schedule)  # type: ignore[arg-type]
    return out.array.copy()
