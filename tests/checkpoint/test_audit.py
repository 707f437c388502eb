"""The audit: the released counts, both name layouts, and every kind of wrong tensor, all at once."""

from dataclasses import replace
from pathlib import Path

import pytest
from vendors import GEMMA4_12B, M31, MINICPM5, NVIDIA_M3, QWEN3_4B, QWEN3_8B

from monodraft.checkpoint import config_from_dict
from monodraft.checkpoint.audit import Audit, audit
from monodraft.checkpoint.config import DraftConfig, MarkovKind
from monodraft.checkpoint.layout import MODEL, NATIVE, RELEASED, Layout, detect_layout, tensor_specs
from monodraft.checkpoint.stored import DTYPE_BYTES, StoredTensor
from monodraft.errors import CheckpointError
from monodraft.testing import random_config

pytestmark = pytest.mark.numbers

FILE = Path("folder/model.safetensors")


def stored(
    config: DraftConfig, layout: Layout | None = None, dtype: str | None = None, shared: bool = True
) -> dict[str, StoredTensor]:
    """Tensors that fit a config, as a header would list them."""
    tensors = {}
    for spec in tensor_specs(config, layout):
        if spec.shared and not shared:
            continue
        kind = dtype if dtype in spec.dtypes else spec.dtypes[0]
        size = DTYPE_BYTES[kind]
        for n in spec.shape:
            size *= n
        tensors[spec.name] = StoredTensor(spec.name, FILE, kind, spec.shape, 0, size)
    return tensors


def check(config: DraftConfig, tensors: dict[str, StoredTensor]) -> Audit:
    return audit(config, tensors, Path("folder"))


def test_m31_has_the_97_tensors_of_the_released_checkpoint() -> None:
    config = config_from_dict(M31)
    audited = check(config, stored(config, shared=False))
    assert len(audited.tensors) == 97
    # 2.302 GB by the specification: layers 1.719, fc 0.3775, Markov 2 x 0.1024.
    assert round(audited.total_bytes / 1e9, 3) == 2.302
    names = {tensor.name: tensor for tensor in audited.tensors.values()}
    down = names["language_model.model.dspark.layers.4.decoder_layer.mlp.down_proj.weight_scale_inv"]
    assert (down.dtype, down.shape) == ("U8", (6144, 384))
    assert names["language_model.model.dspark.fc.weight"].shape == (6144, 30720)
    assert names["language_model.model.dspark.final_norm.weight"].shape == (6144,)
    assert names["language_model.model.dspark.confidence_head.proj.weight"].shape == (1, 6400)
    assert audited.from_target == ("embed", "lm_head")
    assert not audited.config.ships_embeddings


@pytest.mark.parametrize(("raw", "gigabytes"), [(QWEN3_4B, 2.79), (QWEN3_8B, 4.74)])
def test_deepspec_sizes_are_the_published_ones(raw: dict, gigabytes: float) -> None:
    config = config_from_dict(raw)
    audited = check(config, stored(config))
    assert round(audited.total_bytes / 1e9, 2) == gigabytes
    assert audited.from_target == ()


def test_minicpm5_has_the_published_number_of_parameters() -> None:
    config = config_from_dict(MINICPM5)
    audited = check(config, stored(config, shared=False))
    assert audited.total_bytes // 2 == 323_776_001


def test_nvidia_m3_is_float32_with_one_vocabulary_matrix() -> None:
    config = config_from_dict(NVIDIA_M3)
    tensors = stored(config, dtype="F32")
    del tensors["lm_head.weight"]
    embed = tensors["embed_tokens.weight"]
    tensors["embed_tokens.weight"] = replace(embed, dtype="BF16", size=embed.size // 2)
    audited = check(config, tensors)
    assert round(audited.total_bytes / 1e9, 2) == 10.72
    assert audited.from_target == ("lm_head",)


def test_gemma4_names() -> None:
    config = config_from_dict(GEMMA4_12B)
    names = {spec.name: spec.shape for spec in tensor_specs(config)}
    assert names["layers.0.layer_scalar"] == (1,)
    assert names["layers.4.pre_feedforward_layernorm.weight"] == (3840,)
    assert names["layers.4.post_feedforward_layernorm.weight"] == (3840,)
    assert names["layers.0.self_attn.k_proj.weight"] == (512, 3840)
    assert "layers.0.self_attn.v_proj.weight" not in names
    roles = {spec.role: spec.name for spec in tensor_specs(config)}
    assert roles["layers.0.post_norm"] == "layers.0.pre_feedforward_layernorm.weight"
    assert roles["layers.0.attention_output_norm"] == "layers.0.post_attention_layernorm.weight"


@pytest.mark.parametrize("family", ["minimax-m31", "qwen3", "gemma4"])
@pytest.mark.parametrize("layout", [RELEASED, NATIVE, MODEL], ids=["released", "native", "model."])
def test_every_family_in_every_layout(family: str, layout: Layout) -> None:
    config = random_config(family)
    tensors = stored(config, layout)
    assert detect_layout(tensors, config.family) == layout
    assert check(config, tensors).layout == layout


@pytest.mark.parametrize(
    ("kind", "name", "shape"),
    [
        (MarkovKind.GATED, "markov_head.gate_proj", (64, 256 + 64)),
        (MarkovKind.RNN, "markov_head.joint_proj", (192, 256 + 128)),
    ],
)
def test_serial_heads(kind: MarkovKind, name: str, shape: tuple[int, int]) -> None:
    names = {spec.name: spec.shape for spec in tensor_specs(random_config("qwen3", markov=kind))}
    assert names[f"{name}.weight"] == shape
    assert names[f"{name}.bias"] == shape[:1]


def test_pitfall_17_fc_takes_as_many_layers_as_are_captured() -> None:
    config = random_config("qwen3", target_layer_ids=(0, 1, 2, 3, 4), num_layers=2)
    assert next(spec.shape for spec in tensor_specs(config) if spec.role == "fc") == (256, 5 * 256)


def test_all_faults_of_all_kinds_at_once() -> None:
    config = random_config("minimax-m31")
    tensors = stored(config, shared=False)
    root = "language_model.model.dspark."
    q, scale = f"{root}layers.0.decoder_layer.self_attn.q_proj.weight", "_scale_inv"
    del tensors[f"{root}hidden_norm.weight"]
    tensors[q] = replace(tensors[q], dtype="F8_E5M2")
    tensors[q + scale] = replace(tensors[q + scale], shape=(256, 16))
    tensors[f"{root}fc.weight"] = replace(tensors[f"{root}fc.weight"], dtype="F16", shape=(256, 256))
    tensors["stray"] = StoredTensor("stray", FILE, "F32", (1,), 0, 4)
    with pytest.raises(CheckpointError) as error:
        check(config, tensors)
    said = {fault.where.split(": ")[1]: f"{fault.found} / {fault.wanted}" for fault in error.value.faults}
    assert said.keys() == {f"{root}hidden_norm.weight", q, q + scale, f"{root}fc.weight", "stray"}
    assert len(error.value.faults) == 6
    assert "missing" in said[f"{root}hidden_norm.weight"]
    assert said[q] == "dtype F8_E5M2 / dtype F8_E4M3"
    assert said[q + scale] == "shape [256, 16] / shape [256, 8]"
    assert "unexpected" in said["stray"]


def test_pitfall_29_every_tensor_is_consumed_or_named_as_ignored() -> None:
    config = random_config("qwen3")
    tensors = stored(config)
    for name in ("t2d", "mask_embedding", "rotary_emb.inv_freq", "confidence_head.sts_temperatures"):
        tensors[name] = StoredTensor(name, FILE, "F32", (1,), 0, 4)
    audited = check(config, tensors)
    assert audited.ignored.keys() == {
        "t2d",
        "mask_embedding",
        "rotary_emb.inv_freq",
        "confidence_head.sts_temperatures",
    }
    assert all(audited.ignored.values())
    consumed = {tensor.name for tensor in audited.tensors.values()}
    assert consumed | audited.ignored.keys() == tensors.keys()


@pytest.mark.parametrize("name", ["layers.0.mlp.experts.0.up_proj.weight", "layers.0.self_attn.q_proj.bias", "fc.bias"])
def test_pitfall_29_a_tensor_that_would_not_be_loaded_is_an_error(name: str) -> None:
    config = random_config("qwen3")
    extra = {name: StoredTensor(name, FILE, "BF16", (1,), 0, 2)}
    with pytest.raises(CheckpointError, match="unexpected"):
        check(config, stored(config) | extra)


def test_a_d2t_map_is_refused_by_name() -> None:
    config = random_config("qwen3")
    with pytest.raises(CheckpointError, match="d2t"):
        check(config, stored(config) | {"d2t": StoredTensor("d2t", FILE, "I64", (512,), 0, 4096)})


def test_a_dropped_confidence_head_is_missing_unless_the_config_says_none() -> None:
    config = random_config("qwen3")
    tensors = {name: t for name, t in stored(config).items() if "confidence" not in name}
    with pytest.raises(CheckpointError, match="confidence_head"):
        check(config, tensors)
    check(replace(config, has_confidence=False, confidence_with_markov=False), tensors)


def test_fp8_linears_without_a_quantization_config_are_a_wrong_dtype() -> None:
    config = random_config("qwen3", mxfp8_linears=True)
    with pytest.raises(CheckpointError) as error:
        check(replace(config, mxfp8_linears=False), stored(config))
    assert "found dtype F8_E4M3, wanted dtype BF16 or F32" in str(error.value)
    assert "weight_scale_inv: found an unexpected U8" in str(error.value)
