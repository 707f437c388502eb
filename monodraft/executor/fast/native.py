"""A small language for the scheduler and the memory model: integer Python, compiled to LLVM-dialect text.

The wheel of FlyDSL brings a JIT but no C compiler, and a scheduler in Python costs microseconds a switch. So the
runtime (files runtime_*.py) is written in a subset of Python that is read, never run:

* every value is a 64-bit integer; a parameter or local of a `words.Struct` type is the address of such a record and
  `record.field` reads or writes its word;
* statements: assignment, augmented assignment, `if`, `while`, `for i in range(...)`, `break`, `continue`, `return`,
  `pass`, a call;
* operators: + - * & | ^ ~ << (shifts by 64 and more are undefined), `>>` is a logical shift, `//` and `%` are unsigned,
  comparisons are signed (`words.below` is unsigned), `and`, `or`, `not` (in conditions), conditional expressions;
* calls of other functions of the subset, of `words`, and names of module-level integers.

Anything else is refused with file and line when the runtime is compiled.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

from monodraft.executor.fast import words

WORDS: dict[Any, str] = {
    f: f.__name__
    for f in (
        words.load8,
        words.load16,
        words.load32,
        words.load64,
        words.store8,
        words.store16,
        words.store32,
        words.store64,
        words.lowest_bit,
        words.count_bits,
        words.below,
        words.high_product,
        words.call2,
        words.copy_bytes,
        words.fill_bytes,
        words.address_of,
        words.add_f32,
        words.add_f64,
        words.multiply_f64,
        words.less_f32,
        words.less_f64,
        words.f64_of_f32,
        words.f32_of_f64,
    )
}
BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
    ast.LShift: "shl",
    ast.RShift: "lshr",
    ast.FloorDiv: "udiv",
    ast.Mod: "urem",
}
COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "slt",
    ast.LtE: "sle",
    ast.Gt: "sgt",
    ast.GtE: "sge",
}


# word -> LLVM operation, operand type, result type
FLOAT_WORDS = {
    "add_f32": ("fadd", "f32", "f32"),
    "add_f64": ("fadd", "f64", "f64"),
    "multiply_f64": ("fmul", "f64", "f64"),
    "less_f32": ("fcmp", "f32", "f32"),
    "less_f64": ("fcmp", "f64", "f64"),
    "f64_of_f32": ("fpext", "f32", "f64"),
    "f32_of_f64": ("fptrunc", "f64", "f32"),
}


class NativeSyntax(Exception):
    """A runtime function leaves the subset: a defect of ours, found when the runtime is compiled."""


def compile_functions(roots: Iterable[Callable[..., Any]]) -> str:
    """LLVM-dialect text of the functions and of all that they call, each under its own name."""
    done: dict[str, tuple[FunctionType, str]] = {}
    queue = [f for f in roots if isinstance(f, FunctionType)]
    while queue:
        function = queue.pop()
        if function.__name__ in done:
            if done[function.__name__][0] is not function:
                raise NativeSyntax(f"two native functions are named {function.__name__}")
            continue
        compiler = _Function(function)
        done[function.__name__] = (function, compiler.compile())
        queue += compiler.calls
    return "\n".join(text for _, text in done.values())


class _Function:
    """Compiles one function. Locals live in allocas, which LLVM turns into registers."""

    def __init__(self, function: FunctionType) -> None:
        self.function = function
        source, self.first_line = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(source))).body[0]
        assert isinstance(tree, ast.FunctionDef)
        self.tree = tree
        self.globals = function.__globals__
        self.calls: list[FunctionType] = []
        self.lines: list[str] = []
        self.entry: list[str] = []
        self.types: dict[str, type[words.Struct] | None] = {}
        self.loops: list[tuple[str, str]] = []
        self.count = 0

    def compile(self) -> str:
        arguments = [a.arg for a in self.tree.args.args]
        decorators = {ast.unparse(d) for d in self.tree.decorator_list}
        if "external" in decorators:
            return f"llvm.func @{self.tree.name}({', '.join(['i64'] * len(arguments))}) -> i64"
        for argument in self.tree.args.args:
            self.declare(argument.arg, self.annotation(argument.annotation))
        self.body(self.tree.body)
        self.emit(f"llvm.return {self.constant(0)} : i64")
        signature = ", ".join(f"%arg_{name}: i64" for name in arguments)
        entry = [*self.entry, *(f"llvm.store %arg_{n}, %local_{n} : i64, !llvm.ptr" for n in arguments)]
        inlined = "inline" in decorators
        linkage, hint = ("internal ", "alwaysinline") if inlined else ("", "noinline")
        header = f'llvm.func {linkage}@{self.tree.name}({signature}) -> i64 attributes {{passthrough = ["{hint}"]}} {{'
        return "\n".join([header, *entry, *self.lines, "}"])

    # -- names and types

    def refuse(self, node: ast.AST, why: str) -> NativeSyntax:
        line = self.first_line + getattr(node, "lineno", 1) - 1
        return NativeSyntax(f"{self.function.__code__.co_filename}:{line}: {why}")

    def annotation(self, node: ast.expr | None) -> type[words.Struct] | None:
        found = self.globals.get(ast.unparse(node)) if node is not None else None
        return found if isinstance(found, type) and issubclass(found, words.Struct) else None

    def declare(self, name: str, kind: type[words.Struct] | None) -> None:
        if name not in self.types:
            self.entry.append(f"%one_{name} = llvm.mlir.constant(1 : i64) : i64")
            self.entry.append(f"%local_{name} = llvm.alloca %one_{name} x i64 : (i64) -> !llvm.ptr")
            self.types[name] = kind

    def kind(self, node: ast.expr) -> type[words.Struct] | None:
        """The record type of an expression, or None for a plain integer."""
        if isinstance(node, ast.Name):
            return self.types.get(node.id)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            target = self.globals.get(node.func.id)
            if isinstance(target, type) and issubclass(target, words.Struct):
                return target
            if isinstance(target, FunctionType):
                name = target.__annotations__.get("return")
                found = target.__globals__.get(name) if isinstance(name, str) else name
                return found if isinstance(found, type) and issubclass(found, words.Struct) else None
        return None

    # -- emission

    def emit(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def value(self, expression: str) -> str:
        self.count += 1
        self.emit(f"%v{self.count} = {expression}")
        return f"%v{self.count}"

    def label(self) -> str:
        self.count += 1
        return f"^b{self.count}"

    def constant(self, number: int) -> str:
        number = (number + 2**63) % 2**64 - 2**63
        return self.value(f"llvm.mlir.constant({number} : i64) : i64")

    def pointer(self, address: str) -> str:
        return self.value(f"llvm.inttoptr {address} : i64 to !llvm.ptr")

    def field(self, node: ast.Attribute) -> str:
        record = self.kind(node.value)
        if record is None:
            raise self.refuse(node, f"{ast.unparse(node.value)} is not a record")
        offsets = words.fields(record)
        if node.attr not in offsets:
            raise self.refuse(node, f"{record.__name__} has no field {node.attr}")
        base = self.pointer(self.expression(node.value))
        return self.value(f"llvm.getelementptr {base}[{offsets[node.attr]}] : (!llvm.ptr) -> !llvm.ptr, i8")

    # -- expressions

    def expression(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(value=int() as number):
                return self.constant(number)
            case ast.Name():
                return self.name(node)
            case ast.BinOp():
                operation = BINARY.get(type(node.op))
                if operation is None:
                    raise self.refuse(node, f"operator {type(node.op).__name__}")
                a, b = self.expression(node.left), self.expression(node.right)
                return self.value(f"llvm.{operation} {a}, {b} : i64")
            case ast.UnaryOp(op=ast.USub()):
                return self.value(f"llvm.sub {self.constant(0)}, {self.expression(node.operand)} : i64")
            case ast.UnaryOp(op=ast.Invert()):
                return self.value(f"llvm.xor {self.expression(node.operand)}, {self.constant(-1)} : i64")
            case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                return self.value(f"llvm.zext {self.condition(node)} : i1 to i64")
            case ast.IfExp():
                return self.choice(node)
            case ast.Attribute():
                return self.value(f"llvm.load {self.field(node)} : !llvm.ptr -> i64")
            case ast.Call():
                return self.call(node)
        raise self.refuse(node, f"expression {type(node).__name__}")

    def choice(self, node: ast.IfExp) -> str:
        """A conditional expression: only the chosen side is evaluated."""
        test, then, other, end = self.condition(node.test), self.label(), self.label(), self.label()
        self.emit(f"llvm.cond_br {test}, {then}, {other}")
        for label, side in ((then, node.body), (other, node.orelse)):
            self.emit(f"{label}:")
            self.emit(f"llvm.br {end}({self.expression(side)} : i64)")
        self.count += 1
        result = f"%v{self.count}"
        self.emit(f"{end}({result}: i64):")
        return result

    def name(self, node: ast.Name) -> str:
        if node.id in self.types:
            return self.value(f"llvm.load %local_{node.id} : !llvm.ptr -> i64")
        number = self.globals.get(node.id)
        if not isinstance(number, int):
            raise self.refuse(node, f"{node.id} is neither a local nor a module-level integer")
        return self.constant(number)

    def condition(self, node: ast.expr) -> str:
        """An i1; both sides of `and` and `or` are evaluated only as far as Python would."""
        match node:
            case ast.Compare(ops=[op], comparators=[right]) if type(op) in COMPARE:
                a, b = self.expression(node.left), self.expression(right)
                return self.value(f'llvm.icmp "{COMPARE[type(op)]}" {a}, {b} : i64')
            case ast.UnaryOp(op=ast.Not()):
                true = self.value("llvm.mlir.constant(true) : i1")
                return self.value(f"llvm.xor {self.condition(node.operand)}, {true} : i1")
            case ast.BoolOp():
                stop, end = isinstance(node.op, ast.Or), self.label()
                for operand in node.values[:-1]:
                    test, next_ = self.condition(operand), self.label()
                    known = self.value(f"llvm.mlir.constant({'true' if stop else 'false'}) : i1")
                    leave, stay = f"{end}({known} : i1)", next_
                    self.emit(f"llvm.cond_br {test}, {leave if stop else stay}, {stay if stop else leave}")
                    self.emit(f"{next_}:")
                last = self.condition(node.values[-1])
                self.emit(f"llvm.br {end}({last} : i1)")
                self.count += 1
                result = f"%v{self.count}"
                self.emit(f"{end}({result}: i1):")
                return result
        return self.value(f'llvm.icmp "ne" {self.expression(node)}, {self.constant(0)} : i64')

    def call(self, node: ast.Call) -> str:
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise self.refuse(node, "call")
        target = self.globals.get(node.func.id)
        if target is words.size_of:
            assert isinstance(node.args[0], ast.Name)
            return self.constant(words.size_of(self.globals[node.args[0].id]))
        arguments = [self.expression(a) for a in node.args]
        if isinstance(target, type) and issubclass(target, words.Struct):
            return arguments[0]
        if target in WORDS:
            return self.word(WORDS[target], arguments)
        if not isinstance(target, FunctionType):
            raise self.refuse(node, f"call of {node.func.id}")
        self.calls.append(target)
        kinds = ", ".join(["i64"] * len(arguments))
        return self.value(f"llvm.call @{target.__name__}({', '.join(arguments)}) : ({kinds}) -> i64")

    def word(self, name: str, x: list[str]) -> str:
        if name == "address_of":
            return x[0]
        if name.startswith(("load", "store")):
            bits = int(name.lstrip("loadstre"))
            pointer = self.pointer(x[0])
            if name.startswith("load"):
                loaded = self.value(f"llvm.load {pointer} {{alignment = 1 : i64}} : !llvm.ptr -> i{bits}")
                return loaded if bits == 64 else self.value(f"llvm.zext {loaded} : i{bits} to i64")
            stored = x[1] if bits == 64 else self.value(f"llvm.trunc {x[1]} : i64 to i{bits}")
            self.emit(f"llvm.store {stored}, {pointer} {{alignment = 1 : i64}} : i{bits}, !llvm.ptr")
            return x[1]
        if name == "lowest_bit":
            return self.value(f'"llvm.intr.cttz"({x[0]}) <{{is_zero_poison = false}}> : (i64) -> i64')
        if name == "count_bits":
            return self.value(f"llvm.intr.ctpop({x[0]}) : (i64) -> i64")
        if name == "below":
            test = self.value(f'llvm.icmp "ult" {x[0]}, {x[1]} : i64')
            return self.value(f"llvm.zext {test} : i1 to i64")
        if name == "high_product":
            a, b = (self.value(f"llvm.zext {v} : i64 to i128") for v in x)
            product = self.value(f"llvm.mul {a}, {b} : i128")
            sixty_four = self.value("llvm.mlir.constant(64 : i128) : i128")
            return self.value(f"llvm.trunc {self.value(f'llvm.lshr {product}, {sixty_four} : i128')} : i128 to i64")
        if name in FLOAT_WORDS:
            return self.float_word(*FLOAT_WORDS[name], x)
        if name == "call2":
            return self.value(f"llvm.call {self.pointer(x[0])}({x[1]}, {x[2]}) : !llvm.ptr, (i64, i64) -> i64")
        if name == "copy_bytes":
            a, b = self.pointer(x[0]), self.pointer(x[1])
            self.emit(
                f'"llvm.intr.memcpy"({a}, {b}, {x[2]}) <{{isVolatile = false}}> : (!llvm.ptr, !llvm.ptr, i64) -> ()'
            )
            return x[2]
        assert name == "fill_bytes"
        byte = self.value(f"llvm.trunc {x[1]} : i64 to i8")
        operands = f"{self.pointer(x[0])}, {byte}, {x[2]}"
        self.emit(f'"llvm.intr.memset"({operands}) <{{isVolatile = false}}> : (!llvm.ptr, i8, i64) -> ()')
        return x[2]

    def float_word(self, operation: str, source: str, target: str, x: list[str]) -> str:
        """A float operation on bit patterns."""
        operands = [self.from_bits(v, source) for v in x]
        if operation == "fcmp":
            test = self.value(f'llvm.fcmp "olt" {operands[0]}, {operands[1]} : {source}')
            return self.value(f"llvm.zext {test} : i1 to i64")
        kinds = source if source == target else f"{source} to {target}"
        result = self.value(f"llvm.{operation} {', '.join(operands)} : {kinds}")
        if target == "f64":
            return self.value(f"llvm.bitcast {result} : f64 to i64")
        return self.value(f"llvm.zext {self.value(f'llvm.bitcast {result} : f32 to i32')} : i32 to i64")

    def from_bits(self, x: str, kind: str) -> str:
        if kind == "f64":
            return self.value(f"llvm.bitcast {x} : i64 to f64")
        return self.value(f"llvm.bitcast {self.value(f'llvm.trunc {x} : i64 to i32')} : i32 to f32")

    # -- statements

    def body(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                pass
            case ast.Expr(value=ast.Call() as call):
                self.call(call)
            case ast.Assign(targets=[target]):
                self.assign(target, self.expression(node.value), self.kind(node.value))
            case ast.AnnAssign(value=ast.expr() as value):
                self.assign(node.target, self.expression(value), self.annotation(node.annotation))
            case ast.AugAssign():
                operator = ast.BinOp(node.target, node.op, node.value)
                ast.copy_location(operator, node)
                self.assign(node.target, self.expression(operator), None)
            case ast.If():
                self.if_(node)
            case ast.While():
                self.while_(node)
            case ast.For():
                self.for_(node)
            case ast.Break() | ast.Continue():
                self.emit(f"llvm.br {self.loops[-1][isinstance(node, ast.Continue)]}")
                self.emit(f"{self.label()}:")
            case ast.Return():
                result = self.expression(node.value) if node.value is not None else self.constant(0)
                self.emit(f"llvm.return {result} : i64")
                self.emit(f"{self.label()}:")
            case _:
                raise self.refuse(node, f"statement {type(node).__name__}")

    def assign(self, target: ast.expr, value: str, kind: type[words.Struct] | None) -> None:
        match target:
            case ast.Name():
                self.declare(target.id, kind)
                self.emit(f"llvm.store {value}, %local_{target.id} : i64, !llvm.ptr")
            case ast.Attribute():
                self.emit(f"llvm.store {value}, {self.field(target)} : i64, !llvm.ptr")
            case _:
                raise self.refuse(target, "assignment target")

    def if_(self, node: ast.If) -> None:
        test, then, other, end = self.condition(node.test), self.label(), self.label(), self.label()
        self.emit(f"llvm.cond_br {test}, {then}, {other}")
        self.emit(f"{then}:")
        self.body(node.body)
        self.emit(f"llvm.br {end}")
        self.emit(f"{other}:")
        self.body(node.orelse)
        self.emit(f"llvm.br {end}")
        self.emit(f"{end}:")

    def while_(self, node: ast.While) -> None:
        head, inside, end = self.label(), self.label(), self.label()
        self.emit(f"llvm.br {head}")
        self.emit(f"{head}:")
        self.emit(f"llvm.cond_br {self.condition(node.test)}, {inside}, {end}")
        self.emit(f"{inside}:")
        self.loops.append((end, head))
        self.body(node.body)
        self.loops.pop()
        self.emit(f"llvm.br {head}")
        self.emit(f"{end}:")

    def for_(self, node: ast.For) -> None:
        loop, target = node.iter, node.target
        if not (
            isinstance(loop, ast.Call)
            and isinstance(loop.func, ast.Name)
            and loop.func.id == "range"
            and len(loop.args) < 3
            and isinstance(target, ast.Name)
            and not node.orelse
        ):
            raise self.refuse(node, "for without range(n) or range(a, b)")
        start = self.expression(loop.args[0]) if len(loop.args) == 2 else self.constant(0)
        stop = self.expression(loop.args[-1])
        self.assign(target, start, None)
        head, inside, step, end = (self.label() for _ in range(4))
        self.emit(f"llvm.br {head}")
        self.emit(f"{head}:")
        now = self.value(f"llvm.load %local_{target.id} : !llvm.ptr -> i64")
        self.emit(f'llvm.cond_br {self.value(f"""llvm.icmp "slt" {now}, {stop} : i64""")}, {inside}, {end}')
        self.emit(f"{inside}:")
        self.loops.append((end, step))
        self.body(node.body)
        self.loops.pop()
        self.emit(f"llvm.br {step}")
        self.emit(f"{step}:")
        now = self.value(f"llvm.load %local_{target.id} : !llvm.ptr -> i64")
        self.assign(target, self.value(f"llvm.add {now}, {self.constant(1)} : i64"), None)
        self.emit(f"llvm.br {head}")
        self.emit(f"{end}:")
