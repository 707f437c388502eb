"""Every public drafter outside the supported families is refused with its own reason."""

import pytest
from vendors import M31, MINICPM5, NVIDIA_M3, QWEN3_8B, REFUSED, SUPPORTED, changed

from monodraft.checkpoint import config_from_dict
from monodraft.checkpoint.fields import Reader
from monodraft.checkpoint.refusals import ARCHITECTURES, SIGNS, refusals
from monodraft.errors import UnsupportedCheckpoint

pytestmark = pytest.mark.numbers


@pytest.mark.parametrize("name", list(REFUSED))
def test_refused_with_its_reason(name: str) -> None:
    raw, words = REFUSED[name]
    with pytest.raises(UnsupportedCheckpoint) as error:
        config_from_dict(raw)
    message = str(error.value)
    assert all(word in message for word in words), message


@pytest.mark.parametrize("name", list(SUPPORTED))
def test_nothing_supported_shows_a_sign(name: str) -> None:
    assert refusals(Reader(SUPPORTED[name])) == []


def test_pitfall_17_19_slot_conventions() -> None:
    """sample_from_anchor false means 1 + N rows, at the top or under dflash_config; true, null and absent mean ours."""
    for raw in (QWEN3_8B, NVIDIA_M3, MINICPM5):
        for field in ("sample_from_anchor", "dflash_config__sample_from_anchor"):
            with pytest.raises(UnsupportedCheckpoint, match="slot 0"):
                config_from_dict(changed(raw, **{field: False}))
            config_from_dict(changed(raw, **{field: True}))
            config_from_dict(changed(raw, **{field: None}))


def test_pitfall_5_6_causal_blocks() -> None:
    with pytest.raises(UnsupportedCheckpoint, match="causal"):
        config_from_dict(changed(NVIDIA_M3, dflash_config__causal=True))
    with pytest.raises(UnsupportedCheckpoint, match="causal"):
        config_from_dict(changed(NVIDIA_M3, sliding_window_non_causal=False))


def test_m31_experts_of_its_target_do_not_count_but_its_own_do() -> None:
    config_from_dict(changed(M31, text_config__num_local_experts=128))
    for changes in ({"text_config__moe_layer_freq": [0, 0, 1, 0, 0]}, {"text_config__dspark_use_dense_ffn": False}):
        with pytest.raises(UnsupportedCheckpoint, match="MoE"):
            config_from_dict(changed(M31, **changes))


def test_reduced_vocabulary_is_told_from_a_whole_one() -> None:
    config_from_dict(changed(QWEN3_8B, draft_vocab_size=151936))
    with pytest.raises(UnsupportedCheckpoint, match="d2t"):
        config_from_dict(changed(QWEN3_8B, draft_vocab_size=32000))
    config_from_dict(changed(M31, text_config__draft_vocab_size=200064))
    for name in ("draft_vocab_size", "text_config__draft_vocab_size"):
        with pytest.raises(UnsupportedCheckpoint, match="d2t"):
            config_from_dict(changed(M31, **{name: 32000}))


def test_all_reasons_are_given_at_once() -> None:
    with pytest.raises(UnsupportedCheckpoint) as error:
        config_from_dict(changed(QWEN3_8B, attention_bias=True, kv_lora_rank=512, sample_from_anchor=False))
    assert len(error.value.faults) == 3


@pytest.mark.parametrize("sign", SIGNS, ids=[sign.field for sign in SIGNS])
def test_every_sign_can_be_seen(sign) -> None:  # type: ignore[no-untyped-def]
    """Some JSON value of the field refuses an otherwise good config, and says the sign's reason."""
    architecture = next(name for name in ("Gemma4DSparkModel", "Qwen3DSparkModel") if name not in sign.meaningless_in)
    values = [value for value in (False, True, 8, [1], 0, "mla", 0.5) if sign.shows(value)]
    found = refusals(Reader({"architectures": [architecture], sign.field: values[0]}))
    assert [fault for fault in found if sign.reason in fault.wanted]


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_every_refused_architecture_says_why(name: str) -> None:
    with pytest.raises(UnsupportedCheckpoint) as error:
        config_from_dict({"architectures": [name]})
    assert ARCHITECTURES[name] in str(error.value)
