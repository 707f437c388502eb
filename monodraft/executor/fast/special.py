"""Transcendental functions, and the library of lane-by-lane functions that kernels call.

f32 functions are computed by the C library in f64 and rounded once, which is the correctly rounded result but for
about one input in 2^28; the GPU's own instructions may be one ulp off it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monodraft.executor.fast.arithmetic import is_bf16
from monodraft.executor.fast.emit import F16, F32, F64, I32, I64
from monodraft.executor.fast.table import Operands, Unknown, known, table_name
from monodraft.executor.program import Op

if TYPE_CHECKING:
    from monodraft.executor.fast.translate import Translation

UNARY = ("exp", "exp2", "log", "log2", "log10", "sin", "cos", "tanh")
AMDGCN = {
    "exp2": "exp2",
    "log": "log2",
    "sqrt": "sqrt",
    "rcp": "rcp",
    "rsq": "rsq",
}


def apply(t: Translation, op: Op, name: str, parts: list[str]) -> list[str]:
    """A library function of one float on each component."""
    kind, out = t.element_of(op.results[0]), []
    for a in parts:
        if is_bf16(t.type(op.results[0])):
            out.append(t.to_bf16(t.lanewise(f"special_{name}", [(t.from_bf16(a), F32)], F32)))
        elif kind == F16:
            wide = t.lanewise(f"special_{name}", [(t.e.convert("fpext", a, F16, F32), F32)], F32)
            out.append(t.e.convert("fptrunc", wide, F32, F16))
        else:
            out.append(t.lanewise(f"special_{name}{'_f64' if kind == F64 else ''}", [(a, kind)], kind))
    return out


@known(*(f"llvm.intr.{name}" for name in UNARY))
def math_function(t: Translation, op: Op, x: Operands) -> list[str]:
    return apply(t, op, table_name(op)[10:], x[0])


OCML_EXACT = ("floor", "ceil", "trunc", "rint", "sqrt")


@known(*(f"call __ocml_{name}_f32" for name in (*UNARY, *OCML_EXACT)))
def device_library(t: Translation, op: Op, x: Operands) -> list[str]:
    """Functions of AMD's device library."""
    name = str(op.attributes["callee"])[7:-4]
    return [t.e.intrinsic(name, F32, x[0][0])] if name in OCML_EXACT else apply(t, op, name, x[0])


@known(*(f"llvm.amdgcn.{name}" for name in AMDGCN))
def hardware_function(t: Translation, op: Op, x: Operands) -> list[str]:
    """v_exp_f32 and its kin: subnormal inputs and results become zeros of the same sign."""
    if t.element_of(op.results[0]) != F32:
        raise Unknown(f"{op.name} on {t.type(op.results[0])}")
    name = AMDGCN[table_name(op).removeprefix("llvm.amdgcn.")]
    return [flush(t, t.lanewise(f"special_{name}", [(flush(t, a), F32)], F32)) for a in x[0]]


def flush(t: Translation, x: str) -> str:
    """Subnormals to a zero of the same sign."""
    e = t.e
    bits = e.bits_as(x, F32, I32)
    small = e.test("eq", e.lanes("and", I32, bits, e.splat_bits(0x7F800000, I32)), e.splat_bits(0, I32), I32)
    sign = e.lanes("and", I32, bits, e.splat_bits(0x80000000, I32))
    return e.bits_as(e.select(small, sign, bits, I32), I32, F32)


# -- the library itself: LLVM-dialect text, compiled once and cached like a kernel


def special_library() -> str:
    """All `special_*` functions, with the lane shuffles and divisions that have no vector form on the host."""
    functions = [unary_function(name, F32) for name in (*UNARY, "sqrt", "rcp", "rsq")]
    functions += [unary_function(name, F64) for name in (*UNARY, "sqrt", "rcp", "rsq")]
    functions.append(remainder_function())
    functions += [division(name) for name in ("sdiv", "udiv", "srem", "urem")]
    functions.append(address_range())
    declarations = [f"llvm.func @{name}(f64) -> f64" for name in ("tanh", "log10")]
    declarations.append("llvm.func @fmod(f64, f64) -> f64")
    return "module {\n" + "\n".join([*declarations, *functions]) + "\n}\n"


def lane_loop(name: str, inputs: list[str], output: str, body: list[str]) -> str:
    """A function `name(mask, out, in...)` over addresses of lane vectors: `body` makes %result of %x0, %x1, ..."""
    arguments = ", ".join(["%mask: i64", "%out: i64", *(f"%in{i}: i64" for i in range(len(inputs)))])
    lines = [
        f'llvm.func @{name}({arguments}) -> i64 attributes {{passthrough = ["noinline"]}} {{',
        "  %zero = llvm.mlir.constant(0 : i64) : i64",
        "  %step = llvm.mlir.constant(1 : i64) : i64",
        "  %end = llvm.mlir.constant(64 : i64) : i64",
        "  %pout = llvm.inttoptr %out : i64 to !llvm.ptr",
        *(f"  %pin{i} = llvm.inttoptr %in{i} : i64 to !llvm.ptr" for i in range(len(inputs))),
        "  llvm.br ^loop(%zero : i64)",
        "^loop(%i: i64):",
    ]
    for i, kind in enumerate(inputs):
        lines.append(f"  %a{i} = llvm.getelementptr %pin{i}[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {kind}")
        lines.append(f"  %x{i} = llvm.load %a{i} : !llvm.ptr -> {kind}")
    lines += [f"  {line}" for line in body]
    lines += [
        f"  %o = llvm.getelementptr %pout[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {output}",
        f"  llvm.store %result, %o : {output}, !llvm.ptr",
        "  %next = llvm.add %i, %step : i64",
        '  %more = llvm.icmp "slt" %next, %end : i64',
        "  llvm.cond_br %more, ^loop(%next : i64), ^done",
        "^done:",
        "  llvm.return %zero : i64",
        "}",
    ]
    return "\n".join(lines)


def address_range() -> str:
    """`address_range(mask, addresses, result)`: see runtime_checks."""
    longs = "vector<64xi64>"
    return "\n".join(
        [
            "llvm.func @address_range(%mask: i64, %addresses: i64, %result: i64) -> i64 "
            'attributes {passthrough = ["noinline"]} {',
            "  %lanes = llvm.bitcast %mask : i64 to vector<64xi1>",
            "  %from = llvm.inttoptr %addresses : i64 to !llvm.ptr",
            "  %to = llvm.inttoptr %result : i64 to !llvm.ptr",
            f"  %all = llvm.load %from {{alignment = 64 : i64}} : !llvm.ptr -> {longs}",
            f"  %top = llvm.mlir.constant(dense<-1> : {longs}) : {longs}",
            f"  %zero = llvm.mlir.constant(dense<0> : {longs}) : {longs}",
            f"  %high_or_top = llvm.select %lanes, %all, %top : vector<64xi1>, {longs}",
            f"  %some = llvm.select %lanes, %all, %zero : vector<64xi1>, {longs}",
            f'  %low = "llvm.intr.vector.reduce.umin"(%high_or_top) : ({longs}) -> i64',
            f'  %high = "llvm.intr.vector.reduce.umax"(%some) : ({longs}) -> i64',
            f'  %bits = "llvm.intr.vector.reduce.or"(%some) : ({longs}) -> i64',
            "  llvm.store %low, %to : i64, !llvm.ptr",
            "  %to1 = llvm.getelementptr %to[1] : (!llvm.ptr) -> !llvm.ptr, i64",
            "  llvm.store %high, %to1 : i64, !llvm.ptr",
            "  %to2 = llvm.getelementptr %to[2] : (!llvm.ptr) -> !llvm.ptr, i64",
            "  llvm.store %bits, %to2 : i64, !llvm.ptr",
            "  llvm.return %low : i64",
            "}",
        ]
    )


def unary_function(name: str, kind: str) -> str:
    """One float in, one out, by way of f64."""
    body = ["%w = llvm.fpext %x0 : f32 to f64"] if kind == F32 else ["%w = llvm.fadd %x0, %x0 : f64"][:0]
    x = "%w" if kind == F32 else "%x0"
    body += list(formula(name, x))
    body.append("%result = llvm.fptrunc %r : f64 to f32" if kind == F32 else "%result = llvm.bitcast %r : f64 to f64")
    if name == "sqrt" and kind == F32:
        body = ["%result = llvm.intr.sqrt(%x0) : (f32) -> f32"]
    if name == "rcp" and kind == F32:
        body = ["%u = llvm.mlir.constant(1.0 : f32) : f32", "%result = llvm.fdiv %u, %x0 : f32"]
    return lane_loop(f"special_{name}{'_f64' if kind == F64 else ''}", [kind], kind, body)


def formula(name: str, x: str) -> list[str]:
    """%r from `x`, both f64."""
    one = "%u = llvm.mlir.constant(1.0 : f64) : f64"
    match name:
        case "tanh" | "log10":
            return [f"%r = llvm.call @{name}({x}) : (f64) -> f64"]
        case "rcp":
            return [one, f"%r = llvm.fdiv %u, {x} : f64"]
        case "rsq":
            return [one, f"%s = llvm.intr.sqrt({x}) : (f64) -> f64", "%r = llvm.fdiv %u, %s : f64"]
    return [f"%r = llvm.intr.{name}({x}) : (f64) -> f64"]


def remainder_function() -> str:
    """fmod of f32, which is exact."""
    body = [
        "%w0 = llvm.fpext %x0 : f32 to f64",
        "%w1 = llvm.fpext %x1 : f32 to f64",
        "%r = llvm.call @fmod(%w0, %w1) : (f64, f64) -> f64",
        "%result = llvm.fptrunc %r : f64 to f32",
    ]
    return lane_loop("special_fmod", [F32, F32], F32, body)


def division(name: str) -> str:
    """64-bit division; by zero, or of the least integer by -1, it is division by 1."""
    body = [
        "%m1 = llvm.mlir.constant(-1 : i64) : i64",
        "%least = llvm.mlir.constant(-9223372036854775808 : i64) : i64",
        '%z = llvm.icmp "eq" %x1, %zero : i64',
        '%n = llvm.icmp "eq" %x1, %m1 : i64',
        '%l = llvm.icmp "eq" %x0, %least : i64',
        "%nl = llvm.and %n, %l : i1",
        f"%bad = llvm.or %z, {'%nl' if name[0] == 's' else '%z'} : i1",
        "%b = llvm.select %bad, %step, %x1 : i1, i64",
        f"%result = llvm.{name} %x0, %b : i64",
    ]
    return lane_loop(f"divide_{name}", [I64, I64], I64, body)
