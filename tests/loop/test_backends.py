"""The registry of drafter backends: what cannot be had is refused with its reason, never replaced."""

from __future__ import annotations

import pytest
from tiny_models import tiny_draft_config

from monodraft.drafter import Drafter
from monodraft.errors import InputError
from monodraft.loop import backends
from monodraft.loop.backends import Backend, backend_names, check_backend, make_drafter, register_backend
from monodraft.reference import ReferenceDrafter
from monodraft.testing import random_weights

pytestmark = pytest.mark.numbers


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry as the loop makes it, whatever the command line has added to it in this process."""
    monkeypatch.setattr(backends, "_BACKENDS", {"reference": backends._BACKENDS["reference"]})


def test_reference_is_made_with_its_options() -> None:
    config = tiny_draft_config()
    drafter = make_drafter("reference", config, random_weights(config), numerics="w8a16", ranks=2, max_requests=3)
    assert isinstance(drafter, Drafter)
    assert drafter.config is config


def test_reference_has_pages_for_the_positions_it_is_asked_for() -> None:
    config = tiny_draft_config()
    for positions, pages in ((100, 2), (10**9, -(-config.max_positions // 64))):
        options = {"positions": positions, "max_requests": 3, "page_size": 64}
        drafter = make_drafter("reference", config, random_weights(config), **options)
        assert isinstance(drafter, ReferenceDrafter)
        assert drafter.pool.free_pages == 3 * pages


@pytest.mark.usefixtures("registry")
def test_another_backend_plugs_in() -> None:
    made: dict[str, object] = {}

    def make(config: object, weights: object, **options: object) -> Drafter:
        made.update(options)
        return "a drafter"  # type: ignore[return-value]

    register_backend("mine", Backend(make))
    assert backend_names() == ["reference", "mine"]
    config = tiny_draft_config()
    assert make_drafter("mine", config, random_weights(config), ranks=4, numerics=None) == "a drafter"  # type: ignore[comparison-overlap]
    assert made == {"ranks": 4}


@pytest.mark.usefixtures("registry")
def test_unavailable_is_an_error_with_the_reason_and_no_fallback() -> None:
    def never(*_: object, **__: object) -> Drafter:
        raise AssertionError("made although unavailable")

    register_backend("gpu", Backend(never, unavailable=lambda: "no such GPU here"))
    config = tiny_draft_config()
    with pytest.raises(InputError, match="gpu: found no such GPU here"):
        make_drafter("gpu", config, random_weights(config))
    with pytest.raises(InputError, match="found warp, wanted reference or gpu"):
        check_backend("warp")
