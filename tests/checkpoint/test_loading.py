"""`load_drafter`: bits as saved, embeddings from the target, mismatched targets, NaN, memory mapping."""

import json
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from monodraft.checkpoint import finite, load_drafter
from monodraft.checkpoint.config import DraftConfig, Family, MarkovKind
from monodraft.checkpoint.loading import disassemble
from monodraft.checkpoint.weights import DraftWeights, Mxfp8Matrix
from monodraft.errors import CheckpointError
from monodraft.formats import mxfp8_torch
from monodraft.testing import (
    nvidia_m3_config,
    random_config,
    random_weights,
    write_checkpoint,
    write_modelopt_checkpoint,
    write_target,
)

pytestmark = pytest.mark.numbers


def pair(tmp_path: Path, family: str = "minimax-m31", **overrides) -> tuple[DraftConfig, DraftWeights, Path, Path]:  # type: ignore[no-untyped-def]
    config = random_config(family, hidden_size=128, ffn_size=256, **overrides)
    weights = random_weights(config, seed=3)
    drafter, target = tmp_path / "drafter", tmp_path / "target"
    write_checkpoint(drafter, config, weights)
    write_target(target, config, weights)
    return config, weights, drafter, target


def change(file: Path, name: str, place: int | tuple[int, ...], value: float) -> None:
    """Overwrite one element of a tensor in a file."""
    tensors = load_file(file)
    flat = tensors[name].view(torch.uint8) if tensors[name].element_size() == 1 else tensors[name]
    flat[place] = value  # type: ignore[index]
    save_file(tensors, file)


def same_bits(a: DraftWeights, b: DraftWeights) -> bool:
    ours, theirs = disassemble(a), disassemble(b)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[role], theirs[role]) for role in ours)


@pytest.mark.parametrize("family", list(Family))
@pytest.mark.parametrize("sharded", [False, True])
def test_weights_come_back_bit_for_bit(tmp_path: Path, family: Family, sharded: bool) -> None:
    config, weights, drafter, target = pair(tmp_path, family, markov=MarkovKind.RNN)
    write_checkpoint(tmp_path / "again", config, weights, sharded=sharded)
    assert len(list((tmp_path / "again").glob("*.safetensors"))) > sharded
    loaded_config, loaded = load_drafter(tmp_path / "again", target)
    assert loaded_config == config
    assert same_bits(loaded, weights)
    assert same_bits(load_drafter(drafter, target)[1], weights)


def test_mxfp8_linears_are_the_files_bytes(tmp_path: Path) -> None:
    _, weights, drafter, target = pair(tmp_path)
    q = load_drafter(drafter, target)[1].layers[1].q
    assert isinstance(q, Mxfp8Matrix)
    assert (q.elements.dtype, q.scales.dtype) == (torch.uint8, torch.uint8)
    assert q.shape == (256, 128)
    assert torch.equal(q.scales, weights.layers[1].q.scales)  # type: ignore[union-attr]


def test_weights_are_memory_mapped(tmp_path: Path) -> None:
    """A mapped tensor's storage is not ours to have allocated: its file shows up in the process's maps."""
    _, _, drafter, target = pair(tmp_path)
    _, weights = load_drafter(drafter, target)
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("no /proc/self/maps on this system")
    assert str(drafter / "model.safetensors") in maps.read_text()
    assert weights.fc.shape[0] == 128


def test_embedding_and_head_from_the_target(tmp_path: Path) -> None:
    _, weights, drafter, target = pair(tmp_path)
    _, loaded = load_drafter(drafter, target)
    assert torch.equal(loaded.embed, weights.embed)
    assert torch.equal(loaded.lm_head, weights.lm_head)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_embedding_and_head_of_a_multimodal_target(tmp_path: Path, prefix: str) -> None:
    config, weights, drafter, target = pair(tmp_path)
    head = "language_model.lm_head.weight" if prefix.startswith("language") else "lm_head.weight"
    save_file({f"{prefix}embed_tokens.weight": weights.embed, head: weights.lm_head}, target / "model.safetensors")
    text = {"hidden_size": config.hidden_size, "vocab_size": config.vocab_size, "num_hidden_layers": 9}
    (target / "config.json").write_text(json.dumps({"text_config": text, "hidden_size": config.hidden_size}))
    _, loaded = load_drafter(drafter, target)
    assert torch.equal(loaded.lm_head, weights.lm_head)


def test_tied_target(tmp_path: Path) -> None:
    config, weights, drafter, target = pair(tmp_path)
    write_target(target, config, weights, tied=True)
    _, loaded = load_drafter(drafter, target)
    assert torch.equal(loaded.lm_head, weights.embed)
    facts = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(facts | {"tie_word_embeddings": False}))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight, or tie_word_embeddings true"):
        load_drafter(drafter, target)
    gemma = {key: value for key, value in facts.items() if key != "tie_word_embeddings"} | {"model_type": "gemma3"}
    (target / "config.json").write_text(json.dumps(gemma))
    assert torch.equal(load_drafter(drafter, target)[1].lm_head, weights.embed)


def test_target_as_tensors(tmp_path: Path) -> None:
    _, weights, drafter, _ = pair(tmp_path)
    _, loaded = load_drafter(drafter, (weights.embed, weights.lm_head))
    assert loaded.lm_head is weights.lm_head
    with pytest.raises(CheckpointError, match=r"target lm_head: found shape \[511, 128\], wanted shape \[512, 128\]"):
        load_drafter(drafter, (weights.embed, weights.lm_head[1:]))


def test_a_drafter_that_ships_its_own_needs_no_target(tmp_path: Path) -> None:
    _config, weights, drafter, target = pair(tmp_path, "qwen3")
    loaded_config, loaded = load_drafter(drafter)
    assert loaded_config.ships_embeddings
    assert same_bits(loaded, weights)
    assert same_bits(load_drafter(drafter, target)[1], weights)


def test_a_native_drafter_without_embeddings_takes_the_targets(tmp_path: Path) -> None:
    _config, weights, drafter, target = pair(tmp_path, "qwen3")
    tensors = load_file(drafter / "model.safetensors")
    del tensors["embed_tokens.weight"], tensors["lm_head.weight"]
    save_file(tensors, drafter / "model.safetensors")
    loaded_config, loaded = load_drafter(drafter, target)
    assert not loaded_config.ships_embeddings
    assert torch.equal(loaded.embed, weights.embed)
    with pytest.raises(CheckpointError, match="no embed and no lm_head"):
        load_drafter(drafter)


def test_target_of_another_size_names_both_values(tmp_path: Path) -> None:
    _config, _, drafter, _ = pair(tmp_path)
    other = random_config(hidden_size=256, ffn_size=256, vocab_size=480, target_layer_ids=(0,))
    write_target(tmp_path / "other", other, random_weights(other))
    with pytest.raises(CheckpointError) as error:
        load_drafter(drafter, tmp_path / "other")
    message = str(error.value)
    assert "hidden_size: found 256, wanted 128, the drafter's hidden_size" in message
    assert "vocab_size: found 480, wanted 512, the drafter's vocab_size" in message
    assert "num_hidden_layers: found 2, wanted more than 3" in message
    assert "found shape [480, 256], wanted shape [512, 128]" in message


ROOT = "language_model.model.dspark."


@pytest.mark.parametrize(
    ("name", "place", "value", "found"),
    [
        ("fc.weight", (3, 5), float("nan"), "the first at [3, 5]"),
        ("hidden_norm.weight", 7, float("inf"), "the first at [7]"),
        ("markov_head.markov_w2.weight", (1, 1), float("-inf"), "1 NaN or infinite"),
        ("layers.1.decoder_layer.mlp.up_proj.weight", (2, 9), 0x7F, "the first at [2, 9]"),
        ("layers.1.decoder_layer.mlp.up_proj.weight", (2, 9), 0xFF, "the first at [2, 9]"),
        ("layers.0.decoder_layer.self_attn.o_proj.weight_scale_inv", (4, 3), 255, "the first at [4, 3]"),
    ],
)
def test_nan_in_weights_is_named(tmp_path: Path, name: str, place, value: float, found: str) -> None:  # type: ignore[no-untyped-def]
    _, _, drafter, target = pair(tmp_path)
    change(drafter / "model.safetensors", ROOT + name, place, value)
    with pytest.raises(CheckpointError) as error:
        load_drafter(drafter, target)
    assert [fault.where for fault in error.value.faults] == [f"{drafter / 'model.safetensors'}: {ROOT}{name}"]
    assert found in error.value.faults[0].found
    load_drafter(drafter, target, check_finite=False)


@pytest.mark.parametrize(
    ("dtype", "words", "values"),
    [
        ("BF16", np.arange(65536, dtype=np.uint16), lambda w: (w.astype(np.uint32) << 16).view(np.float32)),
        ("F32", np.arange(512, dtype=np.uint32) << 23, lambda w: w.view(np.float32)),
        ("F32", (np.arange(512, dtype=np.uint32) << 23) | 1, lambda w: w.view(np.float32)),
        ("F8_E4M3", np.arange(256, dtype=np.uint8), lambda w: w.view(ml_dtypes.float8_e4m3fn).astype(np.float32)),
        ("U8", np.arange(256, dtype=np.uint8), lambda w: np.where(w == 255, np.nan, 0)),
        ("F8_E8M0", np.arange(256, dtype=np.uint8), lambda w: w.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)),
    ],
)
def test_every_pattern_that_is_not_finite_is_seen(dtype: str, words, values) -> None:  # type: ignore[no-untyped-def]
    """All 16-bit and 8-bit patterns; of float32 every sign and exponent, with a mantissa of 0 and of 1."""
    assert np.array_equal(finite.NOT_FINITE[dtype](words.tobytes()), ~np.isfinite(values(words)))


def test_nan_in_the_targets_head_is_named(tmp_path: Path) -> None:
    _, _, drafter, target = pair(tmp_path)
    change(target / "model.safetensors", "lm_head.weight", (0, 0), float("nan"))
    with pytest.raises(CheckpointError, match=r"target.*lm_head\.weight"):
        load_drafter(drafter, target)


def test_finite_check_spans_chunks(tmp_path: Path) -> None:
    """A tensor longer than one chunk: the last element is seen, and its index is right."""
    from monodraft.checkpoint.finite import CHUNK, check_finite
    from monodraft.checkpoint.stored import read_header

    rows = CHUNK // 2 // 64 + 3
    tensor = torch.zeros(rows, 64, dtype=torch.bfloat16)
    tensor[-1, -1] = float("nan")
    save_file({"x": tensor}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match=rf"the first at \[{rows - 1}, 63\]"):
        check_finite(read_header(tmp_path / "x.safetensors").values())


def test_scale_byte_0_is_a_value(tmp_path: Path) -> None:
    _, _, drafter, target = pair(tmp_path)
    name = "layers.0.decoder_layer.self_attn.q_proj.weight"
    change(drafter / "model.safetensors", f"{ROOT}{name}_scale_inv", (0, 0), 0)
    change(drafter / "model.safetensors", ROOT + name, (0, 0), 0x38)
    q = load_drafter(drafter, target)[1].layers[0].q
    assert isinstance(q, Mxfp8Matrix)
    assert mxfp8_torch.decode(q.elements, q.scales)[0, 0] == 2.0**-127


def test_scale_byte_254_is_a_value(tmp_path: Path) -> None:
    _, _, drafter, target = pair(tmp_path)
    name = "layers.0.decoder_layer.self_attn.q_proj.weight_scale_inv"
    change(drafter / "model.safetensors", ROOT + name, (0, 0), 254)
    load_drafter(drafter, target)


def test_target_of_another_dtype_is_named(tmp_path: Path) -> None:
    _, _, drafter, target = pair(tmp_path)
    tensors = load_file(target / "model.safetensors")
    save_file(tensors | {"lm_head.weight": tensors["lm_head.weight"].half()}, target / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lm_head\.weight: found dtype F16, wanted dtype BF16 or F32"):
        load_drafter(drafter, target)


def test_a_truncated_file_is_found_before_anything_is_mapped(tmp_path: Path) -> None:
    _, _, drafter, target = pair(tmp_path)
    file = drafter / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match="truncated"):
        load_drafter(drafter, target)


def test_a_modelopt_export_is_float32_with_the_target_s_lm_head(tmp_path: Path) -> None:
    config = nvidia_m3_config(hidden_size=128, ffn_size=256)
    weights = random_weights(config, dtype=torch.float32)
    write_modelopt_checkpoint(tmp_path / "drafter", config, weights)
    write_target(tmp_path / "target", config, weights)
    loaded, found = load_drafter(tmp_path / "drafter", tmp_path / "target")
    assert loaded == replace(config, ships_embeddings=False)
    assert same_bits(found, replace(weights, embed=weights.embed.bfloat16()))
