"""RoPE's facts in a `config.json`: base and rotated dims, wherever vendors write them."""

from __future__ import annotations

from typing import Any

import pytest
from vendors import GEMMA4_12B, M31, QWEN3_4B, changed

from monodraft.checkpoint import config_from_dict
from monodraft.errors import ConfigError

pytestmark = pytest.mark.numbers


def faults_of(raw: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as error:
        config_from_dict(raw)
    return str(error.value)


def test_pitfall_31_theta_in_both_places_must_agree() -> None:
    same = changed(QWEN3_4B, rope_parameters={"rope_theta": 1000000.0, "rope_type": "default"})
    assert config_from_dict(same).rope_theta == 1e6
    message = faults_of(changed(same, rope_theta=10000))
    assert "rope_theta and rope_parameters.rope_theta" in message
    assert "10000 and 1000000.0" in message


def test_pitfall_31_no_theta_is_an_error_and_not_10000() -> None:
    assert "rope_theta" in faults_of(changed(QWEN3_4B, rope_theta=...))


def test_m31_theta_flat_nested_or_in_rope_parameters() -> None:
    nested = changed(M31, text_config__rope_theta=..., text_config__rope_parameters={"rope_theta": 1e7})
    assert config_from_dict(nested).rope_theta == 1e7
    message = faults_of(changed(M31, rope_theta=10000000))
    assert "text_config.rope_theta and rope_theta" in message


def test_m31_rotary_dim_and_partial_factor_must_agree() -> None:
    factor = changed(M31, text_config__rotary_dim=..., text_config__partial_rotary_factor=0.5)
    assert config_from_dict(factor).rotary_dim == 64
    message = faults_of(changed(M31, text_config__partial_rotary_factor=0.25))
    assert "rotary_dim" in message
    assert "partial_rotary_factor" in message
    assert "rotary_dim or partial_rotary_factor" in faults_of(changed(M31, text_config__rotary_dim=...))


@pytest.mark.parametrize(
    ("raw", "changes", "first", "second"),
    [
        (
            M31,
            {"text_config__rope_scaling": {"rope_theta": 3.0}},
            "text_config.rope_theta",
            "text_config.rope_scaling.rope_theta",
        ),
        (M31, {"rope_parameters": {"rope_theta": 3.0}}, "text_config.rope_theta", "rope_parameters.rope_theta"),
        (
            M31,
            {"partial_rotary_factor": 0.5, "rope_scaling": {"partial_rotary_factor": 1.0}},
            "partial_rotary_factor",
            "rope_scaling.partial_rotary_factor",
        ),
        (
            M31,
            {"text_config__partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 0.25}},
            "text_config.partial_rotary_factor",
            "rope_parameters.partial_rotary_factor",
        ),
        (QWEN3_4B, {"rope_scaling": {"rope_theta": 3.0}}, "rope_theta", "rope_scaling.rope_theta"),
        (
            QWEN3_4B,
            {"rope_scaling": {"partial_rotary_factor": 0.5}},
            "rope_scaling.partial_rotary_factor: found 0.5",
            "1 or 1.0",
        ),
        (
            GEMMA4_12B,
            {"rope_scaling": {"full_attention": {"rope_theta": 3.0}}},
            "rope_parameters.full_attention.rope_theta",
            "rope_scaling.full_attention.rope_theta",
        ),
        (
            GEMMA4_12B,
            {"partial_rotary_factor": 0.5},
            "partial_rotary_factor",
            "rope_parameters.full_attention.partial_rotary_factor",
        ),
    ],
)
def test_pitfall_31_facts_of_rope_are_read_in_every_place(
    raw: dict[str, Any], changes: dict[str, Any], first: str, second: str
) -> None:
    """Two places that disagree are an error that names both, wherever they are."""
    message = faults_of(changed(raw, **changes))
    assert first in message
    assert second in message


@pytest.mark.parametrize("theta", [1e-300, 0.5, 0, -1, 1e39, 10**400, float("inf"), float("nan"), True, "10000"])
def test_a_base_that_no_rope_has(theta: Any) -> None:
    assert "rope_theta: found" in faults_of(changed(QWEN3_4B, rope_theta=theta))
    assert "text_config.rope_theta: found" in faults_of(changed(M31, text_config__rope_theta=theta))
    gemma = changed(GEMMA4_12B, rope_parameters__full_attention__rope_theta=theta)
    assert "rope_parameters.full_attention.rope_theta: found" in faults_of(gemma)


@pytest.mark.parametrize("factor", [0.001, 1.5, 1e308, 10**400])
def test_a_rotary_factor_rotates_at_least_a_pair_and_at_most_the_head(factor: float) -> None:
    m31 = changed(M31, text_config__rotary_dim=..., text_config__partial_rotary_factor=factor)
    assert f"{'rotary_dim' if factor < 1 else 'partial_rotary_factor'}: found" in faults_of(m31)
    gemma = changed(GEMMA4_12B, rope_parameters__full_attention__partial_rotary_factor=factor)
    assert "partial_rotary_factor: found" in faults_of(gemma)
