"""The lint over assembly text: clean on every word, and seen to fail on kernels that were broken on purpose."""

from __future__ import annotations

import importlib

import pytest

pytest.importorskip("flydsl")

import flydsl.expr as fx
from device_compiled import M3, TINY, isa
from device_mutants import Sabotage, mutant

from monodraft.device import lint, probes
from monodraft.device import words as dw
from monodraft.device.flydsl_names import isa_text
from monodraft.device.memory import load_words, resource

pytestmark = pytest.mark.compile_only


@pytest.mark.parametrize("geo", [M3, TINY], ids=["m3", "tiny"])
@pytest.mark.parametrize("name", sorted(probes.PROBES))
def test_every_word_is_clean(name: str, geo: object) -> None:
    assert lint(isa(name, geo)) == []  # type: ignore[arg-type]


# (text of waits.py, what it becomes, the word that shows it, the rule that must name it)
BROKEN = [
    ("while waiting:", "if waiting:", "poll_pairs", "poll-gone"),
    ("load_words(region, start, 8 * n, cm)", "load_words(region, start, 8 * n, 0)", "poll_pairs", "poll-gone"),
    ("opaque(thread * 4, rounds), 4, cm)", "opaque(thread * 4, rounds), 4, 0)", "wait_flags", "poll-gone"),
    ("late = clock() - dl >= 0", "late = dl < 0", "poll_pairs", "poll-unbounded"),
    ("    fly.wait_vmcnt_zero()\n    gpu.barrier()\n", "    gpu.barrier()\n", "publish", "flag-undrained"),
    ("    gpu.barrier()\n    if fx", "    if fx", "publish", "flag-undrained"),
    (
        "    fly.wait_vmcnt_zero()\n    gpu.barrier()\n",
        "    gpu.barrier()\n    fly.wait_vmcnt_zero()\n",
        "publish",
        "flag-undrained",
    ),
]


@pytest.mark.parametrize(("old", "new", "name", "rule"), BROKEN)
def test_lint_names_the_sabotage(old: str, new: str, name: str, rule: str) -> None:
    package = mutant(Sabotage("lint", "waits.py", old, new, rule))
    broken = importlib.import_module(f"{package.__name__}.probes")
    assert rule in {finding.rule for finding in lint(broken.probe_isa(name))}


def test_opaque_keeps_a_load_in_its_loop() -> None:
    """And without it LLVM takes the load out: the word is not a comment."""
    identity = Sabotage("opaque", "numbers.py", 'fly.asm_value(v, "", "=v,0,s", v, loop_var)', "v", "")
    broken = importlib.import_module(f"{mutant(identity).__name__}.probes")
    kept = [compiled_loop_loads(each) for each in (isa("opaque"), broken.probe_isa("opaque"))]
    assert kept == [True, False]


def compiled_loop_loads(text: str) -> bool:
    (kernel,) = probes.parse(text)
    return any(kernel.instructions[i].is_load for loop in kernel.loops() for i in loop)


@dw.traced
def _unbounded_spin(p: probes.Arguments) -> None:
    """A poll without any side effect in the loop: LLVM removes it, whatever the cache policy says."""
    where = resource(p.a)
    rounds = fx.Int32(0)
    value = load_words(where, p.i * 4, 4, dw.CM_SYS)[0]
    while (value != p.tag) & (rounds < p.n):
        value = load_words(where, p.i * 4, 4, dw.CM_SYS)[0]
        rounds = rounds + 1
    dw.st(p.b, p.i, value)


def test_a_poll_without_side_effects_is_deleted_by_llvm() -> None:
    """The trap that `opaque` is there for: still true of this FlyDSL? If not, its docs and ours must change."""
    kernel = probes.parse(isa_text(probes.launcher(_unbounded_spin, TINY), probes.placeholders()))[0]
    assert kernel.loops() == []


@dw.traced
def _foreign_poll(p: probes.Arguments) -> None:
    """Someone else's bounded poll that forgot the coherent bit: no marks of ours in it."""
    where = resource(p.a)
    value = load_words(where, p.i * 4, 4, 0)[0]
    now = dw.clock()
    while (value != p.tag) & (now < p.bound.deadline):
        value = load_words(where, dw.opaque(p.i, fx.Int32(0)) * 4, 4, 0)[0]
        now = dw.clock()
    dw.st(p.b, p.i, value)


@dw.traced
def _foreign_publish(p: probes.Arguments) -> None:
    """Someone else's flag after a barrier, without a drain."""
    dw.st(p.b, p.i, p.tag, cm=dw.CM_DEV)
    fx.gpu.barrier()
    if p.tid == 0:
        dw.st(p.c, fx.block_idx.x, p.tag, cm=dw.CM_DEV)


@pytest.mark.parametrize(
    ("body", "rule"), [(_foreign_poll, "poll-stale"), (_foreign_publish, "flag-undrained")], ids=["poll", "publish"]
)
def test_lint_works_on_kernels_without_our_marks(body: object, rule: str) -> None:
    text = isa_text(probes.launcher(body, TINY), probes.placeholders())  # type: ignore[arg-type]
    assert [finding.rule for finding in lint(text)] == [rule]


def test_text_without_a_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match="no kernel"):
        lint("s_endpgm")
