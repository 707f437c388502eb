"""`monodraft kernels`: the table, JSON for scripts, assembly of one word, and what it says without FlyDSL."""

from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

pytest.importorskip("flydsl")

from monodraft.cli.app import app
from monodraft.device import probes
from monodraft.errors import InputError, KernelError

pytestmark = pytest.mark.compile_only


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["kernels", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0
    return result.stdout


def test_json_lists_every_word_of_a_small_geometry() -> None:
    found = json.loads(invoke("--json", "--hidden", "256", "--ranks", "2"))
    assert found["geometry"] == {"hidden": 256, "ranks": 2, "waves": 8, "columns": 16}
    assert set(found["words"]) == set(probes.PROBES)
    word = found["words"]["poll_pairs"]
    assert word["vgprs"] > 0
    assert word["instructions"] == sum(word[kind] for kind in ("vector", "scalar", "global", "lds", "matrix"))
    assert word["findings"] == []


def test_table_names_every_word() -> None:
    text = invoke("--hidden", "256")
    assert all(name in text for name in probes.PROBES)
    assert text.count("clean") == len(probes.PROBES)


def test_isa_prints_the_assembly_of_one_word() -> None:
    assert "v_sqrt_f32" in invoke("--isa", "hw_sqrt")


def test_an_unknown_word_is_named_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"--isa: found sqrt, wanted one of .*hw_sqrt"):
        invoke("--isa", "sqrt")


def test_a_bad_geometry_is_refused() -> None:
    with pytest.raises(KernelError, match=r"Geometry.ranks: found 3"):
        invoke("--ranks", "3")


def test_without_flydsl_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith("monodraft.device")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [each for each in sys.modules if each.split(".")[0] == "flydsl"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "flydsl", None)
    with pytest.raises(KernelError, match=r"pip install .monodraft\[gfx950\]"):
        invoke()
