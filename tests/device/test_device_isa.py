"""Every device word, compiled for gfx950: the instruction that its contract names, no scratch, no spill."""

from __future__ import annotations

import importlib.metadata
import json
import re
from pathlib import Path

import pytest

pytest.importorskip("flydsl")

from device_compiled import M3, TINY, isa, kernel

from monodraft.cli.kernels import costs
from monodraft.device import probes

pytestmark = pytest.mark.compile_only

# The words of the page. The list is written out: a word that goes missing must fail here.
PAGE = (
    "bf16_bits",
    "bf16r",
    "bfpair",
    "exp",
    "fail",
    "gst32",
    "hw_sqrt",
    "ld",
    "ld8",
    "ldn",
    "mma8",
    "mma_chain",
    "mx_scale",
    "norm_row",
    "norm_w",
    "opaque",
    "poll_pairs",
    "poll_rows",
    "publish",
    "quant_store",
    "red_store",
    "red_sum",
    "row_sum4",
    "row_x",
    "st",
    "w_chunk",
    "wait_flags",
    "xq_chunk",
    "_spin",
)

# word -> what its assembly must show, as (pattern, exact count or None for at least one).
WANTED: dict[str, list[tuple[str, int | None]]] = {
    "bf16_bits": [(r"v_cvt_pk_bf16_f32", 1)],
    "bf16r": [(r"v_cvt_pk_bf16_f32", 1)],
    "bfpair": [(r"v_cvt_pk_bf16_f32", 1), (r"v_perm|v_and_b32", 0)],
    "exp": [(r"v_exp_f32", 1), (r"v_ldexp_f32", 1)],
    "hw_sqrt": [(r"v_sqrt_f32", 1), (r"v_fma|v_div|v_rcp", 0)],
    "mx_scale": [(r"v_log|v_exp|v_rcp|v_div", 0), (r"v_mul_f32\w* .*0x3b124925", None)],
    "opaque": [(r"buffer_load_dword ", None), (r"s_cbranch", None)],
    "ld": [(r"buffer_load_dwordx4 .* sc1$", 2), (r"sc0", 0)],
    "ld8": [(r"buffer_load_ubyte", 1)],
    "ldn": [(r"buffer_load_dwordx2", 1), (r"s_cbranch|v_cndmask", 0)],
    "st": [(r"buffer_store_dwordx2 .* sc0 sc1$", 1)],
    "gst32": [(r"global_store_dword .* sc0 sc1$", 1)],
    "_spin": [(r"s_memrealtime", 1), (r"buffer_load_dword .* sc1$", None)],
    "poll_pairs": [(r"buffer_load_dwordx4 .* sc0 sc1$", 8), (r"s_memrealtime", 1)],
    "poll_rows": [(r"buffer_load_dwordx4 .* sc0 sc1$", 6), (r"s_memrealtime", 1)],
    "publish": [(r"s_barrier", 1), (r"buffer_store_dword .* sc1$", 2), (r"sc0", 0)],
    "wait_flags": [(r"buffer_load_dword .* offen sc1$", 3), (r"s_barrier", 1), (r"s_memrealtime", 1)],
    "fail": [(r"global_atomic_cmpswap_x2 .* sc1$", 1), (r"store", 0)],
    "w_chunk": [(r"buffer_load_dwordx4", 2), (r"buffer_load_ubyte", 1)],
    "xq_chunk": [
        (r"buffer_load_dwordx4", 4),
        (r"v_cvt_scalef32_pk_fp8_f32", 16),
        (r"v_permlane16_swap", 2),
        (r"v_permlane32_swap", 1),
    ],
    "mma8": [(r"v_mfma_scale_f32_16x16x128_f8f6f4", 1)],
    "mma_chain": [(r"v_mfma_scale_f32_16x16x128_f8f6f4", 6)],
    "red_store": [(r"ds_write", None)],
    "red_sum": [(r"ds_read", None), (r"v_add_f32", 7)],
    "quant_store": [
        (r"v_cvt_scalef32_pk_fp8_f32", 8),
        (r"buffer_store_dwordx4 .* sc1$", 1),
        (r"buffer_store_byte .* sc1$", 1),
        (r"quad_perm:\[1,0,3,2\]", 1),
        (r"s_cbranch", 0),
    ],
    "row_x": [(r"buffer_load_dwordx4", 2), (r"s_cbranch", 0)],
    "row_sum4": [(r"buffer_load_dwordx4 .* sc0 sc1$", 32), (r"v_cvt_pk_bf16_f32", 8)],
    "norm_w": [(r"buffer_load_dwordx4", 2)],
    "norm_row": [
        (r"v_rsq_f32", 2),
        (r"row_half_mirror", 2),
        (r"v_permlane32_swap", 2),
        (r"v_div|v_sqrt", 0),
        (r"ds_write_b128", 4),
        (r"ds_read_b128", None),
    ],
}


def test_every_word_of_the_page_is_there_and_probed() -> None:
    from monodraft.device import words

    for name in [*PAGE, "traced", "CM_DEV", "CM_SYS", "CHECK_EVERY"]:
        assert hasattr(words, name), name
    assert set(PAGE) == set(probes.PROBES) == set(WANTED)
    assert len(PAGE) == 29


@pytest.mark.parametrize("name", PAGE)
def test_word_compiles_to_the_instruction_that_its_contract_names(name: str) -> None:
    lines = [str(each) for each in kernel(name).instructions]
    for pattern, count in WANTED[name]:
        found = [line for line in lines if re.search(pattern, line)]
        assert len(found) == count if count is not None else found, f"{name}: {pattern}: {found}"


@pytest.mark.parametrize("geo", [M3, TINY], ids=["m3", "tiny"])
@pytest.mark.parametrize("name", PAGE)
def test_word_uses_no_scratch_and_spills_nothing(name: str, geo: object) -> None:
    compiled = kernel(name, geo)  # type: ignore[arg-type]
    assert (compiled.scratch_bytes, compiled.vgpr_spills, compiled.sgpr_spills) == (0, 0, 0)
    assert not any("scratch_" in each.mnemonic for each in compiled.instructions)


@pytest.mark.parametrize("name", PAGE)
def test_registers_are_those_on_record(name: str) -> None:
    """Refresh with `monodraft kernels --json > tests/device/registers.json` and look at the difference."""
    record = json.loads((Path(__file__).parent / "registers.json").read_text())
    version = importlib.metadata.version("flydsl")
    if record["flydsl"] != version:
        pytest.skip(f"registers recorded with flydsl {record['flydsl']}, this is {version}")
    assert {**costs(kernel(name)), "findings": []} == record["words"][name]


def test_float_mode_keeps_subnormals_and_does_not_contract() -> None:
    """mx_scale and quant_store rely on f32 subnormals; the norm's stated order relies on no hidden fma."""
    assert re.search(r"\.amdhsa_float_denorm_mode_32 3", isa("quant_store"))
    assert re.search(r"\.amdhsa_float_round_mode_32 0", isa("quant_store"))
    fused = [str(each) for each in kernel("norm_row").instructions if re.match(r"v_(pk_)?fma", each.mnemonic)]
    assert len(fused) == 2 * 16, fused


def test_waterfall_free() -> None:
    """No word builds a buffer resource from a divergent address: that would be a loop over the lanes."""
    for name in PAGE:
        loops = kernel(name).loops()
        allowed = name in ("_spin", "poll_pairs", "poll_rows", "wait_flags", "row_sum4", "opaque")
        assert allowed or not loops, name
