"""Sizes, health word and tags on the host: plain Python, no FlyDSL."""

from __future__ import annotations

import re
from typing import Any

import pytest

from monodraft.device import Failure, Geometry, next_tag
from monodraft.device.geometry import check_address, check_array, check_depth, check_dtype
from monodraft.device.health import decode, epoch_and_mark, launch_tag
from monodraft.errors import KernelError

pytestmark = pytest.mark.numbers


def test_m3_geometry_is_the_pages() -> None:
    geo = Geometry()
    assert (geo.threads, geo.row_threads, geo.flag_limit) == (512, 384, 512)
    assert (geo.chunks(6144), geo.chunks(12288), geo.chunks(128)) == (6, 12, 1)
    assert geo.partial_words(1) == 8 * 256
    assert geo.residual_words() == 4096


@pytest.mark.parametrize("hidden", [128, 256, 512, 1152, 1536, 2304, 2560, 4096, 6144, 8192])
def test_hidden_sizes_of_known_models_fit(hidden: int) -> None:
    assert Geometry(hidden=hidden).row_threads * 16 == hidden


BAD = [
    ({"hidden": 0}, "Geometry.hidden", "0", "multiple of 128"),
    ({"hidden": 6143}, "Geometry.hidden", "6143", "multiple of 128"),
    ({"hidden": 8320}, "Geometry.hidden", "8320", "at most 8192"),
    ({"hidden": 2176, "waves": 2}, "Geometry.hidden", "2176", "at most 2048"),
    ({"hidden": 6144.0}, "Geometry.hidden", "6144.0", "multiple of 128"),
    ({"ranks": 3}, "Geometry.ranks", "3", "one of 1, 2, 4, 8"),
    ({"ranks": True}, "Geometry.ranks", "True", "one of 1, 2, 4, 8"),
    ({"waves": 0}, "Geometry.waves", "0", "one of 1, 2, 4, 8, 16"),
    ({"columns": 17}, "Geometry.columns", "17", "1 .. 16"),
    ({"columns": 0}, "Geometry.columns", "0", "1 .. 16"),
]


@pytest.mark.parametrize(("fields", "where", "found", "wanted"), BAD)
def test_a_field_that_does_not_fit_is_named(fields: dict[str, Any], where: str, found: str, wanted: str) -> None:
    with pytest.raises(KernelError) as caught:
        Geometry(**fields)
    (fault,) = caught.value.faults
    assert (fault.where, fault.found) == (where, found)
    assert wanted in fault.wanted


def test_all_bad_fields_are_named_at_once() -> None:
    with pytest.raises(KernelError) as caught:
        Geometry(hidden=100, ranks=5, waves=3, columns=99)
    assert len(caught.value.faults) == 4


@pytest.mark.parametrize("k", [0, 64, 130, 6144.0])
def test_a_depth_that_is_no_multiple_of_a_chunk_is_refused(k: Any) -> None:
    with pytest.raises(KernelError, match=f"k: found {re.escape(repr(k))}, wanted a positive multiple of 128"):
        check_depth(k)


@pytest.mark.parametrize(("tiles", "limit"), [(0, "1 .. 20"), (21, "1 .. 20")])
def test_partials_past_lds_are_refused(tiles: int, limit: str) -> None:
    with pytest.raises(KernelError, match=f"tiles: found {tiles}, wanted {re.escape(limit)}"):
        Geometry().partial_words(tiles)


@pytest.mark.parametrize("address", [0, 0x7F0000000008, 2**48])
def test_an_address_that_is_null_misaligned_or_too_high_is_refused(address: int) -> None:
    with pytest.raises(KernelError, match=f"weights: found {hex(address)}, wanted an address .* aligned to 16 bytes"):
        check_address("weights", address, 16)
    check_address("weights", 0x7F0000000010, 16)


def test_an_array_too_small_or_too_large_is_refused() -> None:
    with pytest.raises(KernelError, match="x: found 4095 bytes, wanted 4096 bytes"):
        check_array("x", 4095, 4096)
    with pytest.raises(KernelError, match=f"x: found {2**31 + 1} bytes, wanted at most {2**31}"):
        check_array("x", 2**31 + 1, 2**31 + 1)
    check_array("x", 4096, 4096)


def test_a_wrong_dtype_is_refused() -> None:
    with pytest.raises(KernelError, match="x: found float16, wanted bfloat16"):
        check_dtype("x", "float16", "bfloat16")


def test_health_word_decodes_to_rank_and_site() -> None:
    assert decode(0) is None
    assert decode(77 << 32 | 3 << 16 | 1) == Failure(rank=3, site=77)
    assert decode(-(2**63) + (5 << 16) + 1) == Failure(rank=5, site=2**31)
    with pytest.raises(ValueError, match="health word"):
        decode(2)


def test_tags_of_launches_that_disagree_never_meet() -> None:
    """Marks 0 .. 31 of an epoch are 32 tags, none 0, and a tag tells its epoch and mark; also where epochs wrap."""
    last = 2**32 - 1
    for epoch in (1, 2, 2**27 - 1, 2**27, 5 << 27, 2**31, last - 2, last):
        tags = [launch_tag(epoch, mark) for mark in range(32)]
        assert tags[0] == epoch
        assert len(set(tags)) == 32
        assert all(1 <= tag <= last for tag in tags)
        for near in (epoch, next_tag(epoch), max(1, epoch - 1000)):
            assert [epoch_and_mark(tag, near) for tag in tags] == [(epoch, mark) for mark in range(32)]
        # The next launch of the same mark has another tag than this one, as far as epochs go.
        assert all(launch_tag(next_tag(epoch), mark) == next_tag(tag) for mark, tag in enumerate(tags))


def test_tags_skip_zero_at_the_wrap() -> None:
    assert next_tag(0) == 1
    assert next_tag(2**31 - 1) == 2**31
    assert next_tag(2**32 - 2) == 2**32 - 1
    assert next_tag(2**32 - 1) == 1
