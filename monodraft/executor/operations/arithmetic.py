"""Constants, integers, floats, comparisons, and the functions of the vector and transcendental units."""

from __future__ import annotations

from monodraft.executor.operations.table import NotKnown, Use, key, known
from monodraft.executor.program import Pointer, Scalar, Vector
from monodraft.executor.values import build, numpy_type, zero

BINARY = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
FLOAT = {"fadd": "+", "fsub": "-", "fmul": "*", "fdiv": "/"}


@known("llvm.mlir.constant", kind="constant")
def constant(use: Use) -> str:
    return use.constant(build(list(use.attributes["value"]), use.result))


@known("llvm.mlir.poison", "llvm.mlir.undef", "llvm.mlir.zero", kind="constant")
def nothing(use: Use) -> str:
    return use.constant(zero(use.result))


@known("llvm.mlir.addressof", kind="constant")
def address_of(use: Use) -> str:
    return use.constant(numpy_type(Pointer(3))(use.attributes["offset"]))


@known(*(f"llvm.{name}" for name in BINARY), kind="valu")
def integer(use: Use) -> str:
    name = use.op.name.removeprefix("llvm.")
    sign = BINARY[name]
    if use.scalar() == "i1" and name in ("add", "sub", "mul"):
        sign = "&" if name == "mul" else "^"
    return use.elementwise(lambda a, b: f"{a} {sign} {b}")


@known("llvm.shl", "llvm.ashr", kind="valu")
def shift(use: Use) -> str:
    sign = "<<" if use.op.name == "llvm.shl" else ">>"
    return use.elementwise(lambda a, b: f"{a} {sign} {b}")


FUNCTIONS = {
    "llvm.lshr": "shift_right_logical",
    "llvm.sdiv": "divide_signed",
    "llvm.udiv": "divide_unsigned",
    "llvm.srem": "remainder_signed",
    "llvm.urem": "remainder_unsigned",
    "llvm.intr.smax": "np.maximum",
    "llvm.intr.smin": "np.minimum",
    "llvm.intr.umax": "max_unsigned",
    "llvm.intr.umin": "min_unsigned",
}


@known(*FUNCTIONS, kind="valu")
def integer_function(use: Use) -> str:
    return use.elementwise(lambda a, b: f"{FUNCTIONS[use.op.name]}({a}, {b})")


@known("llvm.intr.ctpop", kind="valu")
def population(use: Use) -> str:
    kind = numpy_type(Scalar(use.scalar())).__name__
    return use.elementwise(lambda a: f"np.bitwise_count(unsigned({a})).astype(np.{kind})")


@known("llvm.intr.ctlz", kind="valu")
def leading(use: Use) -> str:
    return use.elementwise(lambda a: f"leading_zeros({a})")


@known("llvm.intr.cttz", kind="valu")
def trailing(use: Use) -> str:
    return use.elementwise(lambda a: f"trailing_zeros({a})")


@known("llvm.intr.abs", kind="valu")
def absolute(use: Use) -> str:
    return use.elementwise(lambda a: f"np.abs({a})")


@known("llvm.amdgcn.mul.hi", "llvm.amdgcn.mulhi", kind="valu")
def high_product(use: Use) -> str:
    return use.elementwise(lambda a, b: f"multiply_high({a}, {b})")


@known("llvm.amdgcn.perm", kind="valu")
def permute_bytes(use: Use) -> str:
    return f"permute_bytes({', '.join(use.operands)})"


@known(*(f"llvm.{name}" for name in FLOAT), kind="valu")
def floating(use: Use) -> str:
    sign = FLOAT[use.op.name.removeprefix("llvm.")]
    if use.scalar() == "bf16":
        return use.elementwise(lambda a, b: f"f32_to_bf16(bf16_to_f32({a}) {sign} bf16_to_f32({b}))")
    return use.elementwise(lambda a, b: f"{a} {sign} {b}")


@known("llvm.frem", kind="valu")
def float_remainder(use: Use) -> str:
    refuse_bf16(use)
    return use.elementwise(lambda a, b: f"np.fmod({a}, {b})")


@known("llvm.fneg", kind="valu")
def negate(use: Use) -> str:
    if use.scalar() == "bf16":
        return use.elementwise(lambda a: f"({a} ^ np.uint16(0x8000))")
    return use.elementwise(lambda a: f"-{a}")


@known("llvm.intr.fabs", kind="valu")
def float_absolute(use: Use) -> str:
    if use.scalar() == "bf16":
        return use.elementwise(lambda a: f"({a} & np.uint16(0x7fff))")
    return use.elementwise(lambda a: f"np.abs({a})")


@known("llvm.intr.copysign", kind="valu")
def copy_sign(use: Use) -> str:
    refuse_bf16(use)
    return use.elementwise(lambda a, b: f"np.copysign({a}, {b})")


@known("llvm.intr.fma", "llvm.intr.fmuladd", kind="valu")
def fused(use: Use) -> str:
    if use.scalar() != "f32":
        raise NotKnown(f"fma of {use.scalar()}")
    return use.elementwise(lambda a, b, c: f"fused_multiply_add({a}, {b}, {c})")


TWO_FLOATS = {
    "llvm.intr.maxnum": "maxnum",
    "llvm.intr.minnum": "minnum",
    "llvm.intr.maximumnum": "maxnum",
    "llvm.intr.minimumnum": "minnum",
    "llvm.intr.maximum": "maximum",
    "llvm.intr.minimum": "minimum",
}


@known("llvm.amdgcn.fmed3", kind="valu")
def median(use: Use) -> str:
    a, b, c = use.operands
    return f"maxnum(minnum({a}, {b}), minnum(maxnum({a}, {b}), {c}))"


@known(*TWO_FLOATS, kind="valu")
def two_floats(use: Use) -> str:
    name = TWO_FLOATS[key(use.op)]
    if use.scalar() == "bf16":
        return use.elementwise(lambda a, b: f"f32_to_bf16({name}(bf16_to_f32({a}), bf16_to_f32({b})))")
    return use.elementwise(lambda a, b: f"{name}({a}, {b})")


ROUNDED = {
    "sqrt": "np.sqrt",
    "exp2": "np.exp2",
    "exp": "np.exp",
    "log2": "np.log2",
    "log": "np.log",
    "log10": "np.log10",
    "sin": "np.sin",
    "cos": "np.cos",
    "floor": "np.floor",
    "ceil": "np.ceil",
    "trunc": "np.trunc",
    "roundeven": "np.rint",
    "rint": "np.rint",
    "nearbyint": "np.rint",
    "tanh": "np.tanh",
}
LIBRARY = ("sqrt", "exp2", "exp", "log2", "log", "log10", "sin", "cos", "floor", "ceil", "trunc", "rint", "tanh")


@known(*(f"llvm.intr.{name}" for name in ROUNDED), kind="trans")
def llvm_function(use: Use) -> str:
    refuse_bf16(use)
    function = ROUNDED[key(use.op).removeprefix("llvm.intr.")]
    return use.elementwise(lambda a: f"through_double({function}, {a})")


@known(*(f"call __ocml_{name}_f32" for name in LIBRARY), kind="trans")
def library_function(use: Use) -> str:
    name = str(use.attributes["callee"]).removeprefix("__ocml_").removesuffix("_f32")
    return f"through_double({ROUNDED[name]}, {use.operands[0]})"


HARDWARE = {"exp2": "exp2", "sqrt": "sqrt", "rcp": "rcp", "rsq": "rsq", "log": "log2"}


@known(*(f"llvm.amdgcn.{name}" for name in HARDWARE), kind="trans")
def hardware_function(use: Use) -> str:
    if use.scalar() != "f32":
        raise NotKnown(f"{use.op.name} of {use.scalar()}")
    return f"hardware_{HARDWARE[key(use.op).removeprefix('llvm.amdgcn.')]}({use.operands[0]})"


SIGNED_COMPARE = ("==", "!=", "<", "<=", ">", ">=")


@known("llvm.icmp", kind="valu")
def compare_integers(use: Use) -> str:
    order = use.attributes["predicate"]
    if order < 6:
        if use.scalar(0) == "i1" and order >= 2:
            sign = SIGNED_COMPARE[order]  # true is -1 as a signed bit
            return use.elementwise(lambda a, b: f"({b} {sign} {a})")
        return use.elementwise(lambda a, b: f"({a} {SIGNED_COMPARE[order]} {b})")
    sign = SIGNED_COMPARE[order - 4]
    return use.elementwise(lambda a, b: f"(unsigned({a}) {sign} unsigned({b}))")


# LLVM's fcmp predicates: ordered ones are false, unordered ones true, where an operand is NaN.
ORDERED = {1: "==", 2: ">", 3: ">=", 4: "<", 5: "<="}
UNORDERED = 7  # ueq is 8, and so on
NAN = "(np.isnan({a}) | np.isnan({b}))"


@known("llvm.fcmp", kind="valu")
def compare_floats(use: Use) -> str:
    order = use.attributes["predicate"]

    def expression(a: str, b: str) -> str:
        if use.scalar(0) == "bf16":
            a, b = f"bf16_to_f32({a})", f"bf16_to_f32({b})"
        nan = NAN.format(a=a, b=b)
        if order in ORDERED:
            return f"({a} {ORDERED[order]} {b})"
        if order - UNORDERED in ORDERED:
            return f"(({a} {ORDERED[order - UNORDERED]} {b}) | {nan})"
        if order in (0, 15):
            return f"(({a} == {a}) {'&' if order == 0 else '|'} np.bool_({order == 15}))"
        return {6: f"(({a} != {b}) & ~{nan})", 7: f"(~{nan})", 13: f"({a} != {b})", 14: nan}[order]

    return use.elementwise(expression)


@known("llvm.select", kind="valu")
def select(use: Use) -> str:
    return f"select({', '.join(use.operands)})"


REDUCE = {"add": "+", "mul": "*", "and": "&", "or": "|", "xor": "^"}
REDUCE_BY = {
    "smax": "np.maximum",
    "smin": "np.minimum",
    "umax": "max_unsigned",
    "umin": "min_unsigned",
    "fmax": "maxnum",
    "fmin": "minnum",
    "fmaximum": "maximum",
    "fminimum": "minimum",
}


@known(*(f"llvm.intr.vector.reduce.{name}" for name in (*REDUCE, *REDUCE_BY, "fadd", "fmul")), kind="valu")
def reduce(use: Use) -> str:
    """In element order, the start value of fadd and fmul first."""
    refuse_bf16(use)
    name = use.op.name.removeprefix("llvm.intr.vector.reduce.")
    kind = use.kind(len(use.operands) - 1)
    assert isinstance(kind, Vector)
    parts = [f"{use.operands[-1]}[{index}]" for index in range(kind.count)]
    if name in ("fadd", "fmul"):
        return f" {'+' if name == 'fadd' else '*'} ".join([use.operands[0], *parts])
    if name in REDUCE:
        return f" {REDUCE[name]} ".join(parts)
    expression = parts[0]
    for part in parts[1:]:
        expression = f"{REDUCE_BY[name]}({expression}, {part})"
    return expression


def refuse_bf16(use: Use) -> None:
    if "bf16" in (use.scalar(), use.scalar(len(use.operands) - 1)):
        raise NotKnown(f"{use.op.name} of bf16")
