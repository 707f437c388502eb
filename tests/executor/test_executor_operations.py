"""Single operations through the whole engine, against NumPy and torch."""

from __future__ import annotations

from typing import Any

import mlir_kernels
import numpy as np
import pytest
import torch

import monodraft.executor as ex
from monodraft.executor import numerics
from monodraft.executor.operations import KNOWN

pytestmark = [pytest.mark.executed, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
RNG = np.random.default_rng(5)
I = RNG.integers(-(2**31), 2**31, 64).astype(np.int32)  # noqa: E741
J = RNG.integers(-100, 100, 64).astype(np.int32)
J[J == 0] = 7
S = RNG.integers(0, 32, 64).astype(np.int32)
W = RNG.integers(-(2**62), 2**62, 64).astype(np.int64)
F = RNG.standard_normal(64).astype(np.float32)
G = RNG.standard_normal(64).astype(np.float32)
G[:6] = [np.nan, 0.0, -0.0, np.inf, -np.inf, 1e-40]
F[:6] = [1.0, -0.0, 0.0, np.nan, 2.0, -1e-41]
U = I.view(np.uint32)


def two(op: str, kind: str = "i32") -> str:
    return f"%r = {op} %a, %b : {kind}"


def to_i32(value: str) -> str:
    return f"{value}\n%r = llvm.zext %c1 : i1 to i32"


INTEGER: dict[str, tuple[str, np.ndarray, np.ndarray, Any]] = {
    "add": (two("llvm.add"), I, J, I + J),
    "sub": (two("llvm.sub"), I, J, I - J),
    "mul": (two("llvm.mul"), I, J, I * J),
    "and": (two("llvm.and"), I, J, I & J),
    "or": (two("llvm.or"), I, J, I | J),
    "xor": (two("llvm.xor"), I, J, I ^ J),
    "shl": (two("llvm.shl"), I, S, I << S),
    "lshr": (two("llvm.lshr"), I, S, (U >> S.view(np.uint32)).view(np.int32)),
    "ashr": (two("llvm.ashr"), I, S, I >> S),
    "sdiv": (two("llvm.sdiv"), I, J, np.trunc(I.astype(np.float64) / J).astype(np.int32)),
    "srem": (two("llvm.srem"), I, J, np.fmod(I, J)),
    "udiv": (two("llvm.udiv"), I, J, (U // J.view(np.uint32)).view(np.int32)),
    "urem": (two("llvm.urem"), I, J, (U % J.view(np.uint32)).view(np.int32)),
    "smax": ("%r = llvm.intr.smax(%a, %b) : (i32, i32) -> i32", I, J, np.maximum(I, J)),
    "umin": ("%r = llvm.intr.umin(%a, %b) : (i32, i32) -> i32", I, J, np.minimum(U, J.view(np.uint32)).view(np.int32)),
    "slt": (to_i32('%c1 = llvm.icmp "slt" %a, %b : i32'), I, J, (I < J).astype(np.int32)),
    "ult": (to_i32('%c1 = llvm.icmp "ult" %a, %b : i32'), I, J, (J.view(np.uint32) > U).astype(np.int32)),
    "ctpop": ("%r = llvm.intr.ctpop(%a) : (i32) -> i32", I, J, np.bitwise_count(U).astype(np.int32)),
    "mul.hi": (
        "%x = llvm.zext %a : i32 to i64\n%y = llvm.zext %b : i32 to i64\n%z = llvm.mul %x, %y : i64\n"
        "%n = llvm.mlir.constant(32 : i64) : i64\n%h = llvm.lshr %z, %n : i64\n%r = llvm.trunc %h : i64 to i32",
        I,
        J,
        ((U.astype(np.uint64) * J.view(np.uint32).astype(np.uint64)) >> np.uint64(32)).astype(np.uint32).view(np.int32),
    ),
    "sext i8": (
        "%x = llvm.trunc %a : i32 to i8\n%r = llvm.sext %x : i8 to i32",
        I,
        J,
        I.astype(np.int8).astype(np.int32),
    ),
}


@pytest.mark.parametrize("name", INTEGER)
def test_integer(name: str) -> None:
    body, a, b, want = INTEGER[name]
    got = mlir_kernels.run(body, {"a": ("i32", a), "b": ("i32", b)}, ("i32", np.int32))
    np.testing.assert_array_equal(got, want)


ORDER = {
    "oeq": lambda a, b: a == b,
    "ogt": lambda a, b: a > b,
    "oge": lambda a, b: a >= b,
    "olt": lambda a, b: a < b,
    "ole": lambda a, b: a <= b,
    "one": lambda a, b: (a < b) | (a > b),
    "ord": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "ueq": lambda a, b: ~((a < b) | (a > b)),
    "ugt": lambda a, b: ~(a <= b),
    "uge": lambda a, b: ~(a < b),
    "ult": lambda a, b: ~(a >= b),
    "ule": lambda a, b: ~(a > b),
    "une": lambda a, b: ~(a == b),
    "uno": lambda a, b: np.isnan(a) | np.isnan(b),
}


@pytest.mark.parametrize("name", ORDER)
def test_float_comparison(name: str) -> None:
    body = to_i32(f'%c1 = llvm.fcmp "{name}" %a, %b : f32')
    got = mlir_kernels.run(body, {"a": ("f32", F), "b": ("f32", G)}, ("i32", np.int32))
    np.testing.assert_array_equal(got, ORDER[name](F, G).astype(np.int32))


def bits(x: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(x), np.uint32(0x7FC00000), x.view(np.uint32))


with np.errstate(all="ignore"):
    FLOAT: dict[str, tuple[str, Any]] = {
        "fadd": (two("llvm.fadd", "f32"), F + G),
        "fsub": (two("llvm.fsub", "f32"), F - G),
        "fmul": (two("llvm.fmul", "f32"), F * G),
        "fdiv": (two("llvm.fdiv", "f32"), F / G),
        "fneg": ("%r = llvm.fneg %b : f32", -G),
        "fabs": ("%r = llvm.intr.fabs(%b) : (f32) -> f32", np.abs(G)),
        "sqrt": ("%r = llvm.intr.sqrt(%b) : (f32) -> f32", np.sqrt(G)),
        "exp2": ("%r = llvm.intr.exp2(%b) : (f32) -> f32", np.exp2(G.astype(np.float64)).astype(np.float32)),
        "floor": ("%r = llvm.intr.floor(%b) : (f32) -> f32", np.floor(G)),
        "maxnum": ("%r = llvm.intr.maxnum(%a, %b) : (f32, f32) -> f32", numerics.maxnum(F, G)),
        "minimum": ("%r = llvm.intr.minimum(%a, %b) : (f32, f32) -> f32", numerics.minimum(F, G)),
        "raw exp2": ('%r = llvm.call_intrinsic "llvm.amdgcn.exp2.f32"(%b) : (f32) -> f32', numerics.hardware_exp2(G)),
        "raw rcp": ('%r = llvm.call_intrinsic "llvm.amdgcn.rcp.f32"(%b) : (f32) -> f32', numerics.hardware_rcp(G)),
        "raw rsq": ('%r = llvm.call_intrinsic "llvm.amdgcn.rsq.f32"(%b) : (f32) -> f32', numerics.hardware_rsq(G)),
        "raw sqrt": ('%r = llvm.call_intrinsic "llvm.amdgcn.sqrt.f32"(%b) : (f32) -> f32', numerics.hardware_sqrt(G)),
        "select": ('%c1 = llvm.fcmp "ogt" %a, %b : f32\n%r = llvm.select %c1, %a, %b : i1, f32', np.where(F > G, F, G)),
        "reduce": (
            "%u = llvm.mlir.undef : vector<2xf32>\n%i0 = llvm.mlir.constant(0 : i32) : i32\n"
            "%i1 = llvm.mlir.constant(1 : i32) : i32\n%v0 = llvm.insertelement %a, %u[%i0 : i32] : vector<2xf32>\n"
            "%v1 = llvm.insertelement %b, %v0[%i1 : i32] : vector<2xf32>\n%s = llvm.mlir.constant(0.0 : f32) : f32\n"
            '%r = "llvm.intr.vector.reduce.fadd"(%s, %v1) : (f32, vector<2xf32>) -> f32',
            (np.float32(0) + F) + G,
        ),
    }


@pytest.mark.parametrize("name", FLOAT)
def test_float(name: str) -> None:
    body, want = FLOAT[name]
    got = mlir_kernels.run(body, {"a": ("f32", F), "b": ("f32", G)}, ("f32", np.float32))
    np.testing.assert_array_equal(bits(got), bits(np.asarray(want, np.float32)))


def test_bf16_conversions_and_arithmetic() -> None:
    a, b = torch.from_numpy(F).bfloat16(), torch.from_numpy(G).bfloat16()
    body = (
        "%x = llvm.fptrunc %a : f32 to bf16\n%y = llvm.fptrunc %b : f32 to bf16\n"
        "%z = llvm.fmul %x, %y : bf16\n%r = llvm.fpext %z : bf16 to f32"
    )
    got = mlir_kernels.run(body, {"a": ("f32", F), "b": ("f32", G)}, ("f32", np.float32))
    np.testing.assert_array_equal(bits(got), bits((a * b).float().numpy()))


def test_integer_and_float_conversions() -> None:
    x = (F * 1e5).astype(np.float32)
    got = mlir_kernels.run("%r = llvm.fptosi %a : f32 to i32", {"a": ("f32", x)}, ("i32", np.int32))
    np.testing.assert_array_equal(got, np.nan_to_num(np.trunc(x)).astype(np.int32))
    got = mlir_kernels.run("%r = llvm.uitofp %a : i32 to f32", {"a": ("i32", I)}, ("f32", np.float32))
    np.testing.assert_array_equal(got, U.astype(np.float32))
    got = mlir_kernels.run("%r = llvm.sitofp %a : i64 to f32", {"a": ("i64", W)}, ("f32", np.float32))
    np.testing.assert_array_equal(got, W.astype(np.float32))


def test_fp8_pack_and_unpack() -> None:
    body = (
        "%o = llvm.mlir.constant(0 : i32) : i32\n%l = rocdl.cvt.pk.fp8.f32 %a, %b -> %o[false] : i32\n"
        "%h = rocdl.cvt.pk.fp8.f32 %b, %a -> %l[true] : i32\n"
        "%p = rocdl.cvt.pk.f32.fp8 %h[true] : vector<2xf32>\n%i = llvm.mlir.constant(1 : i32) : i32\n"
        "%r = llvm.extractelement %p[%i : i32] : vector<2xf32>"
    )
    b = np.where(np.isfinite(G), G, 3).astype(np.float32)
    a = np.where(np.isfinite(F), F, 3).astype(np.float32)
    got = mlir_kernels.run(body, {"a": ("f32", a), "b": ("f32", b)}, ("f32", np.float32))
    np.testing.assert_array_equal(got, torch.from_numpy(a).to(torch.float8_e4m3fn).float().numpy())


LANE = np.arange(64)
CROSS: dict[str, tuple[str, Any]] = {
    "readfirstlane": ("%r = rocdl.readfirstlane %a : i32", np.full(64, I[0])),
    "dpp": (
        "%n = llvm.mlir.constant(177 : i32) : i32\n%m = llvm.mlir.constant(15 : i32) : i32\n"
        "%y = llvm.mlir.constant(true) : i1\n"
        '%r = llvm.call_intrinsic "llvm.amdgcn.update.dpp.i32"(%b, %a, %n, %m, %m, %y) : '
        "(i32, i32, i32, i32, i32, i1) -> i32",
        I[LANE ^ 1],
    ),
    "bpermute": (
        "%i = llvm.mlir.constant(63 : i32) : i32\n%x = llvm.sub %i, %t : i32\n%f = llvm.mlir.constant(4 : i32) : i32\n"
        "%y = llvm.mul %x, %f : i32\n%r = rocdl.ds_bpermute %y, %a : (i32, i32) -> i32",
        I[63 - LANE],
    ),
    "swizzle": (
        "%o = llvm.mlir.constant(16415 : i32) : i32\n%r = rocdl.ds_swizzle %a, %o : (i32, i32) -> i32",
        I[LANE ^ 16],
    ),
    "permlane32": (
        "%s = rocdl.permlane32.swap %a, %b, false, false : (i32, i32) -> !llvm.struct<(i32, i32)>\n"
        "%r = llvm.extractvalue %s[0] : !llvm.struct<(i32, i32)>",
        np.where(LANE < 32, I, J[LANE - 32]),
    ),
}


@pytest.mark.parametrize("name", CROSS)
def test_cross_lane(name: str) -> None:
    body, want = CROSS[name]
    got = mlir_kernels.run(body, {"a": ("i32", I), "b": ("i32", J)}, ("i32", np.int32))
    np.testing.assert_array_equal(got, want)


def mfma(scale: str) -> np.ndarray:
    body = (
        f"{scale}\n%c = llvm.mlir.constant(dense<0.0> : vector<4xf32>) : vector<4xf32>\n"
        "%r = rocdl.mfma.scale.f32.16x16x128.f8f6f4 %a, %b, %c, fp8_e4m3, fp8_e4m3, 0, %s, 0, %s : "
        "(vector<8xi32>, vector<8xi32>, vector<4xf32>, i32, i32) -> vector<4xf32>"
    )
    ones = np.full((64, 8), 0x38383838, np.int32)
    inputs = {"a": ("vector<8xi32>", ones), "b": ("vector<8xi32>", ones)}
    return mlir_kernels.run(body, inputs, ("vector<4xf32>", np.zeros((64, 4), np.float32)))


def test_two_constant_zero_scales_mean_no_scales() -> None:
    """LLVM emits the unscaled v_mfma_f32_16x16x128_f8f6f4 for them; FlyDSL's own fp8 GEMM relies on it."""
    assert (mfma("%s = llvm.mlir.constant(0 : i32) : i32") == 128).all()
    # A zero that LLVM cannot see is the scale byte 0: 2^-127 each.
    assert (
        mfma("%z = llvm.mlir.constant(31 : i32) : i32\n%w = llvm.lshr %t, %z : i32\n%s = llvm.or %w, %w : i32") == 0
    ).all()
    assert (mfma("%s = llvm.mlir.constant(128 : i32) : i32") == 512).all()


def test_scalar_buffer_load_through_a_resource_in_words() -> None:
    body = (
        "%s = llvm.mlir.constant(0 : i16) : i16\n%n = llvm.mlir.constant(40 : i64) : i64\n"
        "%f = llvm.mlir.constant(159744 : i32) : i32\n%z = llvm.mlir.constant(0 : i32) : i32\n"
        "%k = llvm.mlir.constant(36 : i32) : i32\n%x = rocdl.make.buffer.rsrc %p_a, %s, %n, %f : <1> to <8>\n"
        "%y = llvm.ptrtoint %x : !llvm.ptr<8> to i128\n%w = llvm.bitcast %y : i128 to vector<4xi32>\n"
        '%r = llvm.call_intrinsic "llvm.amdgcn.s.buffer.load.i32"(%w, %k, %z) : (vector<4xi32>, i32, i32) -> i32'
    )
    got = mlir_kernels.run(body, {"a": ("i32", I)}, ("i32", np.int32))
    assert (got == I[9]).all()
    past = mlir_kernels.run(body.replace("constant(36", "constant(40"), {"a": ("i32", I)}, ("i32", np.int32))
    assert (past == 0).all()


def load_to_lds(wait: str) -> str:
    """Lane t's 16 bytes at 16 t of a go to LDS; it reads back the first word of lane t ^ 1."""
    return (
        "%s = llvm.mlir.constant(0 : i16) : i16\n%n = llvm.mlir.constant(1024 : i64) : i64\n"
        "%f = llvm.mlir.constant(159744 : i32) : i32\n%z = llvm.mlir.constant(0 : i32) : i32\n"
        "%w = llvm.mlir.constant(16 : i32) : i32\n%i = llvm.mlir.constant(1 : i32) : i32\n"
        "%x = rocdl.make.buffer.rsrc %p_a, %s, %n, %f : <1> to <8>\n"
        "%l = llvm.mlir.addressof @lds : !llvm.ptr<3>\n%o = llvm.mul %t, %w : i32\n"
        f"rocdl.raw.ptr.buffer.load.lds %x, %l, %w, %o, %z, %z, 0\n{wait}\n"
        "%q = llvm.xor %t, %i : i32\n%y = llvm.mul %q, %w : i32\n"
        "%g = llvm.getelementptr %l[%y] : (!llvm.ptr<3>, i32) -> !llvm.ptr<3>, i8\n"
        "%r = llvm.load %g {alignment = 4 : i64} : !llvm.ptr<3> -> i32"
    )


def test_load_to_lds_needs_its_wait() -> None:
    a = np.arange(256, dtype=np.int32)
    inputs = {"a": ("i32", a)}
    for schedule in (ex.Schedule.round_robin(), ex.Schedule.random(1), ex.Schedule.random(2)):
        got = mlir_kernels.run(load_to_lds("rocdl.s.waitcnt 3952"), inputs, ("i32", np.int32), schedule=schedule)
        np.testing.assert_array_equal(got, 4 * (LANE ^ 1))
    with pytest.raises(ex.UninitialisedRead):
        mlir_kernels.run(load_to_lds(""), inputs, ("i32", np.int32), schedule=ex.Schedule.random(1))


ASSEMBLY = {
    "v_add_u32 $0, $1, $2": I + J,
    "v_xor_b32 $0, $1, $2": I ^ J,
    "v_mov_b32 $0, $1": I,
}


@pytest.mark.parametrize("text", ASSEMBLY)
def test_inline_assembly_with_a_result(text: str) -> None:
    body = f'%r = llvm.inline_asm "{text}", "=v,v,v" %a, %b : (i32, i32) -> i32'
    got = mlir_kernels.run(body, {"a": ("i32", I), "b": ("i32", J)}, ("i32", np.int32))
    np.testing.assert_array_equal(got, ASSEMBLY[text])


def test_every_registered_operation_has_an_emitter_and_a_kind() -> None:
    kinds = {
        "constant", "valu", "trans", "convert", "rename", "address", "cross-lane", "mfma", "load", "store", "atomic",
        "wait", "clock", "barrier", "hint", "asm",
    }  # fmt: skip
    assert {entry.kind for entry in KNOWN.values()} == kinds
