"""gfx950 assembly text as data: instructions, control flow, registers. Plain Python, no FlyDSL.

Reads what LLVM prints for AMDGPU; `compile.isa_of` makes such text from a launcher.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

_LABEL = re.compile(r"^(\.L\w+|[A-Za-z_]\w*):")
_BRANCH = re.compile(r"^s_c?branch\w*\s+(\.?\w+)")
_KERNEL = re.compile(r"^\s*\.type\s+(\S+),@function", re.MULTILINE)
_ASM_BEGIN, _ASM_END = ";;#ASMSTART", ";;#ASMEND"


@dataclass(frozen=True)
class Instruction:
    """One instruction. `mark` is the comment of an inline assembly statement that holds nothing else (`; wait`)."""

    mnemonic: str
    operands: str
    mark: str = ""

    def __str__(self) -> str:
        return f"; {self.mark}" if self.mark else f"{self.mnemonic} {self.operands}".strip()

    @property
    def is_load(self) -> bool:
        """Reads global memory into vector registers."""
        return self.mnemonic.startswith(("buffer_load", "global_load", "flat_load"))

    @property
    def is_store(self) -> bool:
        """Writes global memory."""
        return self.mnemonic.startswith(("buffer_store", "global_store", "flat_store"))

    @property
    def is_coherent(self) -> bool:
        """Carries sc1: sees, or is seen by, more than its own XCD."""
        return "sc1" in self.operands.split()

    @property
    def drains(self) -> bool:
        """Waits for all outstanding global loads and stores of the wave."""
        return self.mnemonic == "s_waitcnt" and "vmcnt(0)" in self.operands

    @property
    def branch_target(self) -> str | None:
        match = _BRANCH.match(f"{self.mnemonic} {self.operands}")
        return match[1] if match else None


@dataclass(frozen=True)
class Kernel:
    """One kernel of an assembly text. Registers and bytes are LLVM's own metadata."""

    name: str
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    lds_bytes: int
    scratch_bytes: int

    def mnemonics(self) -> Counter[str]:
        """How often each instruction occurs."""
        return Counter(each.mnemonic for each in self.instructions if each.mnemonic)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """For each instruction, the indices of those that can follow it."""
        count = len(self.instructions)
        result = []
        for index, each in enumerate(self.instructions):
            target = each.branch_target
            following = [] if each.mnemonic in ("s_branch", "s_endpgm") or index + 1 == count else [index + 1]
            if target is not None and self.labels[target] < count:
                following.append(self.labels[target])
            result.append(tuple(following))
        return tuple(result)

    def reachable(self, start: int, stop: frozenset[int] = frozenset()) -> set[int]:
        """Instructions that can run after `start`, not going through any in `stop`."""
        seen: set[int] = set()
        todo = list(self.successors[start])
        while todo:
            index = todo.pop()
            if index not in seen and index not in stop:
                seen.add(index)
                todo.extend(self.successors[index])
        return seen

    def loops(self, without: frozenset[int] = frozenset()) -> list[frozenset[int]]:
        """Maximal sets of instructions that can repeat (strongly connected), in the graph `without` some of them."""
        return _cycles(self.successors, without)


def parse(text: str) -> list[Kernel]:
    """The kernels of an assembly text, in order. Raises ValueError for a text that holds none."""
    kernels = [_kernel(text, match[1], match.end()) for match in _KERNEL.finditer(text)]
    if not kernels:
        raise ValueError("assembly text: found no kernel (.type NAME,@function)")
    return kernels


def _kernel(text: str, name: str, start: int) -> Kernel:
    begin = text.index(f"\n{name}:", start)
    end = text.find(".Lfunc_end", begin)
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    inside: list[str] | None = None
    for line in text[begin:end].splitlines():
        stripped = line.strip()
        if stripped.startswith(_ASM_BEGIN):
            inside = []
        elif stripped.startswith(_ASM_END):
            instructions.extend(_inline(inside or []))
            inside = None
        elif inside is not None:
            inside.append(stripped)
        elif match := _LABEL.match(line):
            labels[match[1]] = len(instructions)
        elif each := _instruction(stripped):
            instructions.append(each)
    data = _metadata(text, name)
    return Kernel(
        name=name,
        instructions=tuple(instructions),
        labels=labels,
        vgprs=data["vgpr_count"],
        agprs=data["agpr_count"],
        sgprs=data["sgpr_count"],
        vgpr_spills=data["vgpr_spill_count"],
        sgpr_spills=data["sgpr_spill_count"],
        lds_bytes=data["group_segment_fixed_size"],
        scratch_bytes=data["private_segment_fixed_size"],
    )


def _inline(lines: list[str]) -> list[Instruction]:
    """What an inline assembly statement holds: instructions, or one mark where it is a comment only."""
    found = [each for line in lines if (each := _instruction(line))]
    comments = [line.lstrip("; ") for line in lines if line.startswith(";")]
    return found or [Instruction("", "", mark=comment) for comment in comments if comment]


def _instruction(line: str) -> Instruction | None:
    code = re.split(r"//|;", line, maxsplit=1)[0].strip()
    if not code or code.startswith("."):
        return None
    mnemonic, _, operands = code.partition(" ")
    return Instruction(mnemonic, operands.strip())


_FIELDS = (
    "vgpr_count",
    "agpr_count",
    "sgpr_count",
    "vgpr_spill_count",
    "sgpr_spill_count",
    "group_segment_fixed_size",
    "private_segment_fixed_size",
)


def _metadata(text: str, name: str) -> dict[str, int]:
    """The fields of one kernel in the `.amdgpu_metadata` list."""
    block = text[text.find(".amdgpu_metadata") :]
    entries = re.split(r"^  - ", block, flags=re.MULTILINE)
    entry = next(each for each in entries if re.search(rf"\.name:\s+{re.escape(name)}$", each, re.MULTILINE))
    return {field: int(re.search(rf"\.{field}:\s+(\d+)", entry)[1]) for field in _FIELDS}  # type: ignore[index]


def _cycles(successors: tuple[tuple[int, ...], ...], without: frozenset[int]) -> list[frozenset[int]]:
    """Non-trivial strongly connected components (Tarjan, without recursion)."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[frozenset[int]] = []
    for root in range(len(successors)):
        if root in order or root in without:
            continue
        work = [(root, iter(successors[root]))]
        order[root] = low[root] = len(order)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, following = work[-1]
            for each in following:
                if each in without:
                    continue
                if each not in order:
                    order[each] = low[each] = len(order)
                    stack.append(each)
                    on_stack.add(each)
                    work.append((each, iter(successors[each])))
                    break
                if each in on_stack:
                    low[node] = min(low[node], order[each])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    members = _pop_until(stack, node)
                    on_stack -= members
                    if len(members) > 1 or node in successors[node]:
                        found.append(frozenset(members))
    return found


def _pop_until(stack: list[int], node: int) -> set[int]:
    members = set()
    while True:
        members.add(stack.pop())
        if node in members:
            return members
