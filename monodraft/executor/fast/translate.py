"""A Program to the text of one function, `step(wave, machine)`, that runs a wave until its next event.

Shape of the function: a dispatcher picks the lowest waiting step (runtime_steps); a step does its operations on 64-lane
vectors for its lanes, hands lanes on to its successors and goes back to the dispatcher, until the turn is over or an
event (barrier, clock, sleep, end) returns to the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence

from monodraft.executor.errors import UnknownOperation, Where
from monodraft.executor.fast import arithmetic, control, conversions, lanes, matrix, memory, special
from monodraft.executor.fast.emit import BYTES, F32, I1, I16, I32, I64, Emit, lane_types, slot_bytes, vec
from monodraft.executor.fast.layout import CONSTANTS, TERMINATORS, Layout, lay_out
from monodraft.executor.fast.records import Machine, Wave
from monodraft.executor.fast.table import HANDLERS, Unknown, table_name
from monodraft.executor.fast.words import fields, size_of
from monodraft.executor.program import BUFFER_SPACE, Op, Pointer, Program, Struct, Type, leaves

TABLES = (arithmetic, control, conversions, lanes, matrix, memory, special)
"""Imported so that their operations are in the table."""

WAVE = fields(Wave)
SCRATCH_OFFSET = -(-size_of(Machine) // 64) * 64
SCRATCH_BYTES = 64 * 1024


def refuse_unknown(program: Program) -> None:
    """Raise UnknownOperation naming every operation that is not in the table, with its source line."""
    function = program.kernel
    known = CONSTANTS | TERMINATORS
    found = [
        op for block in function.blocks for op in block.ops if op.name not in known and table_name(op) not in HANDLERS
    ]
    if found:
        raise unknown(program, [(table_name(op), op) for op in found])


def unknown(program: Program, found: Sequence[tuple[str, Op]]) -> UnknownOperation:
    names = sorted({name for name, _ in found})
    places = [Where(line=f"{name} in {program.kernel.line(op)}") for name, op in found]
    return UnknownOperation(f"{program.name}: the fast engine does not know {', '.join(names)}", places)


class Translation:
    """What the handlers of the tables use; see `table.Handler`."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.function = program.kernel
        self.layout: Layout = lay_out(self.function)
        self.e = Emit()
        self.called: dict[str, int] = {}
        self.mask = ""
        self.mask_bits = ""
        self.event: int | None = None
        self._cache: dict[int, list[str]] = {}
        self._scratch = 0
        self._waited: set[int] = set()

    # -- types and constants

    def type(self, value: int) -> Type:
        return self.function.types[value]

    def kinds(self, value: int) -> list[str]:
        """Lane-vector element types of a value."""
        return lane_types(self.type(value))

    def element_of(self, value: int) -> str:
        """The one lane-vector element type of a scalar or vector."""
        return self.kinds(value)[0]

    def constant(self, value: int) -> tuple[int, ...] | None:
        """Bit patterns of a compile-time constant, or None."""
        op = self.layout.constants.get(value)
        if op is None:
            return None
        if op.name == "llvm.mlir.constant":
            return tuple(op.attributes["value"])
        if op.name == "llvm.mlir.addressof":
            return (op.attributes["offset"],)
        return (0,) * len(self.kinds(value))

    def need_constant(self, op: Op, index: int) -> int:
        """An operand that must be a compile-time constant."""
        found = self.constant(op.operands[index]) if index < len(op.operands) else None
        if found is None:
            raise Unknown(f"{table_name(op)} whose operand {index} is not a constant")
        return found[0]

    def unless_zero(self, value: int, lanes: str) -> str:
        """The lanes of a value, or nothing where it is the constant 0."""
        return "" if self.constant(value) == (0,) else lanes

    def known_size(self, resource: int) -> int | None:
        """The size of a buffer resource that is made with a constant one."""
        op = self.layout.definition.get(resource)
        if op is None or table_name(op) != "llvm.amdgcn.make.buffer.rsrc":
            return None
        size = self.constant(op.operands[2])
        return size[0] & 0xFFFFFFFF if size else None

    def part(self, kind: Type, path: Sequence[int]) -> tuple[int, int]:
        """First component and number of components of a member of an aggregate."""
        start = 0
        for index in path:
            if isinstance(kind, Struct):
                start += sum(len(lane_types(each)) for each in kind.fields[:index])
                kind = kind.fields[index]
            else:
                assert hasattr(kind, "element"), kind
                inner: Type = kind.element
                start += index * len(lane_types(inner))
                kind = inner
        return start, len(lane_types(kind))

    def memory_place(self, op: Op) -> int:
        """The number of an operation that ends a step, for the runtime's reports."""
        return self.layout.places.get(id(op), 0)

    # -- bf16

    def from_bf16(self, x: str) -> str:
        """i16 lanes holding bf16 as f32."""
        wide = self.e.convert("zext", x, I16, I32)
        return self.e.bits_as(self.e.lanes("shl", I32, wide, self.e.splat_bits(16, I32)), I32, F32)

    def to_bf16(self, x: str) -> str:
        """f32 as bf16 in i16 lanes: nearest even, subnormals kept, NaN quiet with its upper payload."""
        e = self.e
        bits = e.bits_as(x, F32, I32)
        upper = e.lanes("lshr", I32, bits, e.splat_bits(16, I32))
        odd = e.lanes("and", I32, upper, e.splat_bits(1, I32))
        rounded = e.lanes("add", I32, e.lanes("add", I32, bits, e.splat_bits(0x7FFF, I32)), odd)
        rounded = e.lanes("lshr", I32, rounded, e.splat_bits(16, I32))
        quiet = e.lanes("or", I32, upper, e.splat_bits(0x40, I32))
        return e.convert("trunc", e.select(e.float_test("uno", x, x, F32), quiet, rounded, I32), I32, I16)

    # -- the runtime

    def call(self, function: str, *arguments: str) -> str:
        """Call a native function with the machine, the wave and more integers."""
        return self.call_plain(function, "%machine_address", "%wave_address", *arguments)

    def call_plain(self, function: str, *arguments: str) -> str:
        self.called[function] = len(arguments)
        return self.e.call(function, *arguments)

    def _take_scratch(self, nbytes: int) -> int:
        """Room in working space, which begins right after the machine's record; dead at the next operation."""
        offset = SCRATCH_OFFSET + self._scratch
        self._scratch += nbytes
        assert self._scratch <= SCRATCH_BYTES
        return offset

    def scratch_address(self, kind: str, count: int = 1) -> str:
        """The address of room for lane vectors that a call fills."""
        return self.e.address("%machine", self._take_scratch(count * slot_bytes(kind)))

    def to_scratch(self, x: str, kind: str) -> str:
        """The address of a lane vector put into working space."""
        return self.to_scratch_all([x], [kind])

    def to_scratch_all(self, parts: Sequence[str], kinds: Sequence[str]) -> str:
        """Lane vectors one after the other in working space; the address of the first."""
        step = BYTES[kinds[0]] * 64
        start = self._take_scratch(max(step * len(parts), 64))
        for index, (part, kind) in enumerate(zip(parts, kinds, strict=True)):
            self.e.store(part, vec(kind), "%machine", start + step * index, 64)
        return self.e.address("%machine", start)

    def from_address(self, address: str, kind: str, offset: int = 0) -> str:
        """A lane vector at an address."""
        pointer = self.e.cast("inttoptr", address, I64, "!llvm.ptr")
        return self.e.load(vec(kind), pointer, offset, 64)

    def lanewise(self, function: str, inputs: Sequence[tuple[str, str]], kind: str) -> str:
        """A function of the library that works lane by lane (`special.lane_loop`)."""
        addresses = [self.to_scratch(x, k) for x, k in inputs]
        target = self.scratch_address(kind)
        self.call_plain(function, self.mask_bits, target, *addresses)
        return self.from_address(target, kind)

    # -- identity

    def read_clock(self) -> str:
        return self.call("read_clock")

    def thread_index(self, axis: int) -> str:
        table = self.e.cast("inttoptr", self.e.load(I64, "%wave", WAVE["threads"]), I64, "!llvm.ptr")
        return self.e.load(vec(I32), table, 256 * axis, 64)

    def cta_index(self, axis: int) -> str:
        field = self.e.load(I64, "%wave", WAVE[f"cta_{'xyz'[axis]}"])
        return self.e.splat(self.e.cast("trunc", field, I64, I32), I32)

    def launch_size(self, index: int, kind: str) -> str:
        table = self.e.cast("inttoptr", self.e.load(I64, "%wave", WAVE["dims"]), I64, "!llvm.ptr")
        size = self.e.load(I64, table, 8 * index)
        return self.e.splat(size if kind == I64 else self.e.cast("trunc", size, I64, kind), kind)

    # -- values

    def operand(self, value: int) -> list[str]:
        """The lane vectors of a value, from this step, its slot, a constant, an argument, or written again."""
        cached = self._cache.get(value)
        if cached is None:
            cached = self._cache[value] = self._fetch(value)
        return cached

    def _fetch(self, value: int) -> list[str]:
        if value in self.layout.constants:
            bits = self.constant(value)
            assert bits is not None
            return [self.e.splat_bits(b, k) for b, k in zip(self._spread(value, bits), self.kinds(value), strict=True)]
        if value in self.layout.slots:
            if value in self.layout.loaded:
                self.call("wait_load", self.e.scalar(self.layout.loaded[value]))
            return self.in_slot(value)
        if value in self.function.parameters:
            return self._argument(value)
        assert value in self.layout.again, f"value {value} has no home"
        op = self.layout.definition[value]
        results = self.run_handler(op)
        return self._split(op, results)[value]

    def _spread(self, value: int, bits: tuple[int, ...]) -> tuple[int, ...]:
        count = len(self.kinds(value))
        return bits if len(bits) == count else bits * count

    def _argument(self, value: int) -> list[str]:
        before = self.function.parameters[: self.function.parameters.index(value)]
        start = sum(len(leaves(self.type(each))) for each in before)
        table = self.e.cast("inttoptr", self.e.load(I64, "%wave", WAVE["arguments"]), I64, "!llvm.ptr")
        for leaf in leaves(self.type(value)):
            if isinstance(leaf, Pointer) and leaf.space == BUFFER_SPACE:
                raise Unknown("a buffer resource as a kernel argument")
        return [
            self.e.splat(self.e.load(kind, table, 8 * (start + i)), kind) for i, kind in enumerate(self.kinds(value))
        ]

    def slot_address(self, value: int, offset: int = 0) -> str:
        """The address of a value's slot, where the active lanes have it."""
        return self.e.address("%wave", self.layout.slots[value] + offset)

    def in_slot(self, value: int) -> list[str]:
        """Read a value's slot."""
        result, offset = [], self.layout.slots[value]
        for kind in self.kinds(value):
            if kind == I1:
                result.append(self._load_bools(value, offset))
            else:
                result.append(self.e.load(vec(kind), "%wave", offset, 64))
            offset += slot_bytes(kind)
        return result

    def _load_bools(self, value: int, offset: int) -> str:
        """A loaded i1 has a byte a lane, a computed one a mask."""
        if value in self.layout.loaded:
            return self.e.convert("trunc", self.e.load(vec("i8"), "%wave", offset, 64), "i8", I1)
        return self.e.mask_lanes(self.e.load(I64, "%wave", offset))

    def keep(self, value: int, parts: Sequence[str], mask: str) -> None:
        """Write a value's slot in the lanes of a mask."""
        offset = self.layout.slots[value]
        for kind, part in zip(self.kinds(value), parts, strict=True):
            if kind == I1:
                old = self.e.mask_lanes(self.e.load(I64, "%wave", offset))
                merged = self.e.mask_bits(self.e.select(mask, part, old, I1))
                self.e.store(merged, I64, "%wave", offset)
            elif BYTES[kind] >= 4:
                pointer = self.e.at("%wave", offset)
                self.e.emit(
                    f"llvm.intr.masked.store {part}, {pointer}, {mask} {{alignment = 64 : i32}} : "
                    f"{vec(kind)}, vector<64xi1> into !llvm.ptr"
                )
            else:
                old = self.e.load(vec(kind), "%wave", offset, 64)
                self.e.store(self.e.select(mask, part, old, kind), vec(kind), "%wave", offset, 64)
            offset += slot_bytes(kind)

    def _split(self, op: Op, parts: list[str]) -> dict[int, list[str]]:
        """The lane vectors of each result of an operation."""
        result, position = {}, 0
        for value in op.results:
            count = len(self.kinds(value))
            result[value] = parts[position : position + count]
            position += count
        assert position == len(parts), table_name(op)
        return result

    def run_handler(self, op: Op) -> list[str]:
        self._scratch = 0
        operands = [self.operand(value) for value in op.operands]
        self._scratch = 0
        return HANDLERS[table_name(op)](self, op, operands)

    # -- steps

    def text(self) -> str:
        """The module: the step function and declarations of what it calls. Raises UnknownOperation."""
        refuse_unknown(self.program)
        self._prologue()
        failures: list[tuple[str, Op]] = []
        for number in range(len(self.layout.steps)):
            self._step(number, failures)
        if failures:
            raise unknown(self.program, failures)
        body = [
            "llvm.func @step(%wave_address: i64, %machine_address: i64) -> i64 "
            'attributes {passthrough = ["noinline"]} {',
            *self.e.lines,
            "}",
        ]
        declarations = [
            f"llvm.func @{name}({', '.join(['i64'] * count)}) -> i64" for name, count in sorted(self.called.items())
        ]
        return "\n".join(["module {", *declarations, *body, "}", ""])

    def _prologue(self) -> None:
        e = self.e
        e.emit("%wave = llvm.inttoptr %wave_address : i64 to !llvm.ptr")
        e.emit("%machine = llvm.inttoptr %machine_address : i64 to !llvm.ptr")
        e.emit("llvm.br ^dispatch")
        e.start_block("^dispatch")
        number = e.cast("trunc", self.call("pick_step"), I64, I32)
        cases = ", ".join(f"{k}: ^enter{k}" for k in range(len(self.layout.steps)))
        e.emit(f"llvm.switch {number} : i32, ^leave [{cases}]")
        e.start_block("^leave")
        e.emit(f"llvm.return {e.scalar(0)} : i64")

    def _step(self, number: int, failures: list[tuple[str, Op]]) -> None:
        e, step = self.e, self.layout.steps[number]
        e.start_block(f"^enter{number}")
        e.emit(f"llvm.br ^body{number}({e.load(I64, '%wave', WAVE['mask'])} : i64)")
        e.start_block(f"^body{number}(%mask{number}: i64)")
        self.mask_bits, self.event = f"%mask{number}", None
        self.mask = e.mask_lanes(self.mask_bits)
        self._cache = {}
        for op in step.ops:
            try:
                if op.name in TERMINATORS:
                    self._terminate(op)
                    return
                self._operation(op)
            except Unknown as error:
                failures.append((str(error), op))
                for result in op.results:  # so that the rest can be looked through too
                    self._cache[result] = [e.splat_bits(0, kind) for kind in self.kinds(result)]
        self._next(number + 1)

    def _operation(self, op: Op) -> None:
        if op.name in CONSTANTS or any(result in self.layout.again for result in op.results):
            return
        results = self.run_handler(op)
        if any(result in self.layout.loaded for result in op.results):
            return  # The runtime writes it to its slot; whoever uses it waits for it first.
        for value, parts in self._split(op, results).items():
            self._cache[value] = parts
            if value in self.layout.slots:
                self.keep(value, parts, self.mask)

    def _next(self, step: int) -> None:
        """The end of a step inside its block: on to the next one, unless there is an event or the turn is over."""
        e = self.e
        if self.event is not None:
            self.call("pend_step", e.scalar(step), self.mask_bits)
            e.store(e.scalar(self.event), I64, "%wave", WAVE["event"])
            e.emit(f"llvm.return {e.scalar(0)} : i64")
            return
        go = e.compare("ne", self.call("next_step", e.scalar(step), self.mask_bits), e.scalar(0))
        e.emit(f"llvm.cond_br {go}, ^body{step}({self.mask_bits} : i64), ^dispatch")

    def _edge(self, block: int, values: Sequence[list[str]], mask_bits: str, mask: str) -> None:
        """Hand lanes and block arguments to a successor."""
        for argument, parts in zip(self.function.blocks[block].arguments, values, strict=True):
            self.keep(argument, parts, mask)
        self.call("pend_step", self.e.scalar(self.layout.first[block]), mask_bits)

    def _terminate(self, op: Op) -> None:
        e = self.e
        # All values are read before any slot is written: a loop may hand on its own arguments, changed places.
        values = [[self.operand(v) for v in target.arguments] for target in op.targets]
        if op.name == "llvm.br":
            self._edge(op.targets[0].block, values[0], self.mask_bits, self.mask)
        elif op.name == "llvm.cond_br":
            taken = e.binary("and", e.mask_bits(self.operand(op.operands[0])[0]), self.mask_bits)
            other = e.binary("xor", taken, self.mask_bits)
            for target, given, bits in zip(op.targets, values, (taken, other), strict=True):
                self._edge(target.block, given, bits, e.mask_lanes(bits))
        elif op.name == "llvm.switch":
            self._switch(op, values)
        elif op.name == "llvm.unreachable":
            raise Unknown("llvm.unreachable")
        e.emit("llvm.br ^dispatch")

    def _switch(self, op: Op, values: Sequence[list[list[str]]]) -> None:
        """The first target is the default; the others match the case values in order."""
        e, kind = self.e, self.element_of(op.operands[0])
        cases = op.attributes["case_values"]
        if isinstance(cases, str):
            raise Unknown(f"llvm.switch with cases {cases}")
        selector, left = self.operand(op.operands[0])[0], self.mask_bits
        for case, target, given in zip(cases, op.targets[1:], values[1:], strict=True):
            bits = e.binary("and", e.mask_bits(e.test("eq", selector, e.splat_bits(case, kind), kind)), self.mask_bits)
            left = e.binary("and", left, e.binary("xor", bits, e.scalar(-1)))
            self._edge(target.block, given, bits, e.mask_lanes(bits))
        self._edge(op.targets[0].block, values[0], left, e.mask_lanes(left))
