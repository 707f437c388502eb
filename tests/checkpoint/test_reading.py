"""`read_config`: the supported configs as their vendors write them, and every way in which one can be wrong.

Test names carry the number of the pitfall (docs/checkpoint.md) that they hold off.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from vendors import GEMMA4_12B, M31, MINICPM5, NVIDIA_M3, QWEN3_4B, QWEN3_8B, SUPPORTED, changed

from monodraft.checkpoint import config_from_dict, read_config, write_config
from monodraft.checkpoint.config import Activation, Family, MarkovKind, Norm, Rotary, SwigluOai
from monodraft.checkpoint.dialects.qwen3 import write_modelopt
from monodraft.errors import ConfigError, UnsupportedCheckpoint
from monodraft.testing import nvidia_m3_config, random_config

pytestmark = pytest.mark.numbers


def faults_of(raw: dict[str, Any]) -> str:
    """The message of the ConfigError that a config must give."""
    with pytest.raises(ConfigError) as error:
        config_from_dict(raw)
    return str(error.value)


def test_minimax_m31() -> None:
    config = config_from_dict(M31)
    assert (config.family, config.norm, config.activation) == (Family.MINIMAX_M31, Norm.GEMMA, Activation.SWIGLU_OAI)
    assert config.swiglu == SwigluOai(1.702, 7.0, 1.0)
    assert (config.hidden_size, config.num_heads, config.num_kv_heads, config.ffn_size) == (6144, 64, 4, 12288)
    assert (config.block_size, config.mask_token_id, config.target_layer_ids) == (7, 200058, (3, 17, 31, 45, 59))
    assert (config.rotary_dim, config.rotary, config.rope_theta) == (64, Rotary.LEADING, 5e6)
    assert config.windows == (4096,) * 5
    assert config.mxfp8_linears
    assert not config.ships_embeddings
    assert config.feature_size == 30720


@pytest.mark.parametrize(("raw", "hidden", "heads", "ffn"), [(QWEN3_4B, 2560, 32, 9728), (QWEN3_8B, 4096, 32, 12288)])
def test_deepspec_qwen3(raw: dict[str, Any], hidden: int, heads: int, ffn: int) -> None:
    config = config_from_dict(raw)
    assert (config.family, config.norm, config.activation) == (Family.QWEN3, Norm.RMS, Activation.SILU)
    assert (config.hidden_size, config.num_heads, config.num_kv_heads, config.ffn_size) == (hidden, heads, 8, ffn)
    assert config.windows == (None,) * 5
    assert config.rotary_dim == config.head_dim == 128
    assert config.ships_embeddings
    assert config.score_scale == 128**-0.5


def test_nvidia_m3_reads_the_window_and_the_block_under_dflash_config() -> None:
    config = config_from_dict(NVIDIA_M3)
    assert config.windows == (1024,) * 6
    assert (config.block_size, config.mask_token_id, config.num_target_layers) == (8, 200063, 60)
    assert config.target_layer_ids == (1, 12, 23, 35, 46, 57)
    assert config.has_confidence
    assert config.confidence_with_markov
    # It declares the plain Qwen3 layer: no Gemma norm, no SwiGLU-OAI.
    assert (config.norm, config.activation) == (Norm.RMS, Activation.SILU)


def test_minicpm5_pitfall_31_theta_only_in_rope_parameters() -> None:
    config = config_from_dict(MINICPM5)
    assert (config.family, config.rope_theta) == (Family.MINICPM5, 5e6)
    assert not config.ships_embeddings


def test_gemma4_12b() -> None:
    config = config_from_dict(GEMMA4_12B)
    assert (config.head_dim, config.num_kv_heads, config.rotary_dim) == (512, 1, 128)
    assert (config.rotary, config.rope_theta) == (Rotary.PROPORTIONAL, 1e6)
    assert (config.embed_scale, config.score_scale, config.logit_softcap) == (3840**0.5, 1.0, 30.0)
    assert config.shared_kv_projection
    assert config.value_norm
    assert config.sandwich_norms
    assert config.layer_scalars
    # The sliding_window in its config is the target's.
    assert config.windows == (None,) * 5


def test_gemma4_without_shared_projection_has_the_common_number_of_kv_heads() -> None:
    config = config_from_dict(changed(GEMMA4_12B, attention_k_eq_v=False))
    assert config.num_kv_heads == 8
    assert not config.shared_kv_projection


@pytest.mark.parametrize("family", list(Family))
@pytest.mark.parametrize("kind", list(MarkovKind))
@pytest.mark.parametrize("mxfp8", [True, False])
def test_what_we_write_reads_back(family: Family, kind: MarkovKind, mxfp8: bool) -> None:
    config = random_config(family, markov=kind, mxfp8_linears=mxfp8)
    assert config_from_dict(json.loads(json.dumps(write_config(config)))) == config


def test_modelopt_s_dialect_is_written_as_nvidia_writes_it() -> None:
    assert write_modelopt(config_from_dict(NVIDIA_M3)) == NVIDIA_M3


@pytest.mark.parametrize("kind", list(MarkovKind))
@pytest.mark.parametrize("windows", [(64, 64), (64, None), (None, None)])
def test_modelopt_s_dialect_reads_back(kind: MarkovKind, windows: tuple[int | None, ...]) -> None:
    config = nvidia_m3_config(markov=kind, windows=windows)
    assert config_from_dict(json.loads(json.dumps(write_modelopt(config)))) == config


@pytest.mark.parametrize("confidence", [(True, False), (False, False)])
def test_confidence_head_variants_read_back(confidence: tuple[bool, bool]) -> None:
    config = random_config("qwen3", has_confidence=confidence[0], confidence_with_markov=confidence[1])
    assert config_from_dict(write_config(config)) == config


def test_qwen3_with_partial_rope_or_gemma_norm_is_not_the_layer_it_claims() -> None:
    assert "partial_rotary_factor" in faults_of(changed(QWEN3_4B, partial_rotary_factor=0.25))
    assert "use_gemma_norm" in faults_of(changed(QWEN3_4B, use_gemma_norm=True))


def test_pitfall_24_m31_says_that_its_norms_are_zero_centred() -> None:
    assert "use_gemma_norm" in faults_of(changed(M31, text_config__use_gemma_norm=False))
    assert "use_gemma_norm" in faults_of(changed(M31, text_config__use_gemma_norm=...))


# Sliding windows

SLIDING = ["sliding_attention"] * 5


def test_pitfall_2_3_window_of_each_layer() -> None:
    mixed = changed(
        QWEN3_4B,
        layer_types=["sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
        sliding_window=512,
        use_sliding_window=True,
    )
    assert config_from_dict(mixed).windows == (512, None, 512, None, 512)


def test_pitfall_4_null_zero_and_absent_are_three_things() -> None:
    assert config_from_dict(changed(QWEN3_4B, sliding_window=None)).windows == (None,) * 5
    assert config_from_dict(changed(QWEN3_4B, sliding_window=...)).windows == (None,) * 5
    assert "0 is neither" in faults_of(changed(QWEN3_4B, sliding_window=0))
    assert "0 is neither" in faults_of(changed(M31, text_config__sliding_window=0))
    null = faults_of(changed(M31, text_config__sliding_window=None))
    assert "text_config.layer_types and text_config.sliding_window" in null
    assert "sliding_window: found nothing" in faults_of(changed(M31, text_config__sliding_window=...))


def test_pitfall_2_use_sliding_window_false_with_sliding_layers_names_both() -> None:
    message = faults_of(changed(QWEN3_4B, layer_types=SLIDING, sliding_window=512))
    assert "layer_types and use_sliding_window" in message


def test_pitfall_2_a_window_that_no_layer_uses_is_a_contradiction() -> None:
    message = faults_of(changed(M31, text_config__layer_types=["full_attention"] * 5))
    assert "text_config.layer_types and text_config.sliding_window" in message
    message = faults_of(changed(QWEN3_4B, use_sliding_window=True, sliding_window=512))
    assert "layer_types and use_sliding_window" in message


def test_a_window_that_is_switched_off_is_full_attention() -> None:
    """Qwen2.5's habit: a number in sliding_window and use_sliding_window false."""
    assert config_from_dict(changed(QWEN3_4B, sliding_window=32768)).windows == (None,) * 5
    assert config_from_dict(changed(QWEN3_4B, sliding_window=32768, layer_types=...)).windows == (None,) * 5


def test_layer_types_left_out() -> None:
    absent = changed(QWEN3_4B, layer_types=..., use_sliding_window=...)
    assert config_from_dict(absent).windows == (None,) * 5
    assert "layer_types: found nothing" in faults_of(changed(absent, sliding_window=512))
    message = faults_of(changed(absent, use_sliding_window=True))
    assert "use_sliding_window and sliding_window" in message


def test_layer_types_of_another_length_or_kind() -> None:
    assert "5 entries" in faults_of(changed(QWEN3_4B, layer_types=["full_attention"] * 4))
    assert "chunked" in faults_of(changed(QWEN3_4B, layer_types=["chunked_attention"] * 5))


def test_pitfall_2_window_survives_where_qwen3config_nulled_the_flat_one() -> None:
    assert config_from_dict(changed(NVIDIA_M3, sliding_window=None)).windows == (1024,) * 6
    assert config_from_dict(changed(NVIDIA_M3, sliding_window=..., layer_types=...)).windows == (1024,) * 6


@pytest.mark.parametrize(
    ("changes", "both"),
    [
        ({"sliding_window": 2048}, "sliding_window and dflash_config.swa_window_size"),
        ({"dflash_config__swa_window_size": None}, "dflash_config.use_swa and dflash_config.swa_window_size"),
        ({"dflash_config__use_swa": False}, "dflash_config.use_swa and dflash_config.swa_window_size"),
        ({"layer_types": ["full_attention"] * 6}, "layer_types and dflash_config.use_swa"),
        ({"block_size": 7}, "block_size and dflash_config.block_size"),
        ({"markov_rank": 128}, "markov_rank and dflash_config.markov_rank"),
        ({"enable_confidence_head": False}, "enable_confidence_head and dflash_config.use_confidence_head"),
    ],
)
def test_contradictions_between_the_top_and_dflash_config_name_both(changes: dict[str, Any], both: str) -> None:
    assert both in faults_of(changed(NVIDIA_M3, **changes))


# Everything else


@pytest.mark.parametrize("name", list(SUPPORTED))
def test_all_faults_are_said_at_once(name: str) -> None:
    raw = SUPPORTED[name]
    nest = "text_config__" if "text_config" in raw else ""
    broken = changed(raw, **{f"{nest}hidden_size": "big", f"{nest}num_hidden_layers": ..., f"{nest}rms_norm_eps": -1})
    with pytest.raises(ConfigError) as error:
        config_from_dict(broken, "some/config.json")
    assert len(error.value.faults) == 3
    assert all(fault.where.startswith("some/config.json: ") for fault in error.value.faults)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target_layer_ids": [9, 1]}, ["target_layer_ids", "strictly increasing"]),
        ({"target_layer_ids": [1, 1]}, ["target_layer_ids", "strictly increasing"]),
        ({"target_layer_ids": []}, ["target_layer_ids"]),
        ({"target_layer_ids": [1, 36]}, ["target_layer_ids", "below num_target_layers"]),
        ({"mask_token_id": 151936}, ["mask_token_id", "below vocab_size"]),
        ({"mask_token_id": -1}, ["mask_token_id"]),
        ({"num_attention_heads": 30}, ["num_attention_heads", "multiple of num_key_value_heads"]),
        ({"hidden_act": "gelu"}, ["hidden_act", '"silu"']),
        ({"markov_head_type": "lstm"}, ["markov_head_type", '"vanilla" or "gated" or "rnn"']),
        ({"rms_norm_eps": 0}, ["rms_norm_eps"]),
        ({"rms_norm_eps": 10**400}, ["rms_norm_eps", "a positive number"]),
        ({"block_size": True}, ["block_size", "true"]),
        ({"enable_confidence_head": ...}, ["enable_confidence_head"]),
        ({"confidence_head_with_markov": ...}, ["confidence_head_with_markov"]),
        ({"quantization_config": {"quant_method": "fp8"}}, ["quantization_config.quant_method", "mxfp8"]),
        (
            {"quantization_config": {"quant_method": "mxfp8", "weight_block_size": [1, 16]}},
            ["quantization_config.weight_block_size", "[1, 16]", "[1, 32]"],
        ),
    ],
)
def test_a_bad_field_is_named_with_what_was_found_and_wanted(changes: dict[str, Any], words: list[str]) -> None:
    message = faults_of(changed(QWEN3_4B, **changes))
    assert all(word in message for word in words), message


def fields_of(raw: dict[str, Any], path: str = "") -> Iterator[str]:
    """Every field of a config, as `changed` writes it."""
    for name, value in raw.items():
        yield path + name
        if isinstance(value, dict):
            yield from fields_of(value, f"{path}{name}__")


@pytest.mark.parametrize("value", [10**400, -(10**400), 1e308, 5e-324, float("nan"), "", [[]], {"a": {}}])
@pytest.mark.parametrize("name", list(SUPPORTED))
def test_an_absurd_value_of_any_field_is_an_error_of_ours_or_of_no_account(name: str, value: object) -> None:
    for field in fields_of(SUPPORTED[name]):
        with suppress(ConfigError, UnsupportedCheckpoint):
            config_from_dict(changed(SUPPORTED[name], **{field: value}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dspark_noise_token_id": 200064}, ["dspark_noise_token_id: found 200064", "below vocab_size"]),
        ({"num_attention_heads": 62}, ["num_attention_heads: found 62", "multiple of num_key_value_heads"]),
        ({"dspark_target_layer_ids": [3, 3]}, ["text_config.dspark_target_layer_ids", "strictly increasing"]),
        ({"dspark_markov_head_type": "lstm"}, ["text_config.dspark_markov_head_type", '"vanilla" or "gated"']),
        ({"confidence_head_with_markov": ...}, ["confidence_head_with_markov: found nothing"]),
    ],
)
def test_a_bad_field_of_m31(changes: dict[str, Any], words: list[str]) -> None:
    message = faults_of(changed(M31, **{f"text_config__{name}": value for name, value in changes.items()}))
    assert all(word in message for word in words), message


def test_m31_ffn_width_in_two_fields_must_agree() -> None:
    message = faults_of(changed(M31, text_config__dense_intermediate_size=3072))
    assert "text_config.dspark_ffn_hidden_size and text_config.dense_intermediate_size" in message


@pytest.mark.parametrize(
    ("raw", "changes", "field"),
    [
        (M31, {"text_config__hidden_size": 6150}, "text_config.hidden_size: found 6150"),
        (M31, {"text_config__dspark_ffn_hidden_size": 1000, "text_config__dense_intermediate_size": 1000}, "1000"),
        (M31, {"text_config__head_dim": 66, "text_config__num_attention_heads": 4}, "head_dim: found 264"),
        (QWEN3_4B, {"intermediate_size": 9730}, "intermediate_size: found 9730"),
        (GEMMA4_12B, {"hidden_size": 3850}, "hidden_size: found 3850"),
    ],
)
def test_sizes_that_mxfp8_linears_cannot_have(raw: dict[str, Any], changes: dict[str, Any], field: str) -> None:
    packed = changed(raw, quantization_config={"quant_method": "mxfp8", "weight_block_size": [1, 32]})
    config_from_dict(packed)
    message = faults_of(changed(packed, **changes))
    assert field in message
    assert "a multiple of 32" in message


def test_gemma4_with_a_sliding_layer_is_not_its_drafter() -> None:
    assert "layer_types" in faults_of(changed(GEMMA4_12B, layer_types=["sliding_attention"] * 5))


def test_pitfall_30_dispatch_is_by_architecture() -> None:
    with pytest.raises(UnsupportedCheckpoint, match="Qwen3ForCausalLM"):
        config_from_dict(changed(QWEN3_4B, architectures=["Qwen3ForCausalLM"]))
    assert "architectures" in faults_of(changed(QWEN3_4B, architectures=...))
    assert "architectures" in faults_of(changed(QWEN3_4B, architectures=["Qwen3DSparkModel", "Other"]))
    assert "architectures" in faults_of({})


def test_files_that_are_no_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_config(tmp_path)
    for text in ("{", "[]", '"x"', "\udcff".encode("utf-8", "surrogateescape").decode("latin-1")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ConfigError, match=r"config\.json"):
            read_config(tmp_path)


def test_a_targets_folder_points_to_its_drafter(tmp_path: Path) -> None:
    (tmp_path / "dspark").mkdir()
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["MiniMaxM3ForCausalLM"]}))
    (tmp_path / "dspark" / "config.json").write_text(json.dumps(M31))
    with pytest.raises(UnsupportedCheckpoint, match="dspark"):
        read_config(tmp_path)
    assert read_config(tmp_path / "dspark").family is Family.MINIMAX_M31


@pytest.mark.parametrize("names", [5, "Qwen3DSparkModel", [["Qwen3DSparkModel"]], [], {}, None])
def test_architectures_of_any_json_kind_are_named(tmp_path: Path, names: object) -> None:
    (tmp_path / "config.json").write_text(json.dumps(changed(QWEN3_4B, architectures=names)))
    with pytest.raises(ConfigError, match=r"config\.json: architectures: found "):
        read_config(tmp_path)


@pytest.mark.parametrize("raw", [M31, QWEN3_4B, GEMMA4_12B], ids=["m31", "qwen3", "gemma4"])
@pytest.mark.parametrize("section", ["text_config", "dflash_config", "rope_parameters", "quantization_config"])
def test_a_section_that_is_no_object_is_not_passed_over(raw: dict[str, Any], section: str) -> None:
    assert f"config.json: {section}: found [1], wanted an object" in faults_of({**raw, section: [1]})


def test_counts_that_would_be_allocated_by_their_value_alone_are_bounded() -> None:
    """300000 layers made the audit name three million missing tensors; a block of ten million was tried."""
    assert "num_hidden_layers: found 300000, wanted an integer from 1 to 256" in faults_of(
        {**QWEN3_4B, "num_hidden_layers": 300000}
    )
    assert "block_size: found 10000000, wanted an integer from 1 to 256" in faults_of({**QWEN3_4B, "block_size": 10**7})
    text = M31["text_config"] | {"num_hidden_layers": 257, "dspark_block_size": 257}
    message = faults_of({**M31, "text_config": text})
    assert "num_hidden_layers: found 257" in message
    assert "dspark_block_size: found 257" in message
