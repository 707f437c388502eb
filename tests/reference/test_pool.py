"""The paged pool: what it holds, shares, frees and refuses."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from monodraft.errors import InputError
from monodraft.reference.attention import Keys
from monodraft.reference.pool import KvPool
from reference.cases import small_config

pytestmark = pytest.mark.numbers

CONFIG = small_config(windows=(5, 8), num_kv_heads=1, head_dim=4)


def make_pool(**options: Any) -> KvPool:
    settings: dict[str, Any] = {"pages": 8, "page_size": 4, "max_requests": 3, "windowed": False}
    return KvPool(CONFIG, dtype=torch.float32, device=torch.device("cpu"), **(settings | options))


def rows(values: list[float], start: int) -> Keys:
    keys = torch.tensor(values)[:, None, None].expand(-1, 1, 4)
    return Keys(start, keys, -keys)


def add(pool: KvPool, request: int, values: list[float]) -> None:
    """Append rows whose key is one number, to both layers; the second layer holds the number plus a half."""
    pool.check_room({request: len(values)})
    start = pool.length(request)
    pool.extend(request, len(values))
    first = max(start, pool.first_kept(pool.length(request)))
    for layer in range(2):
        pool.write(request, layer, rows([v + layer / 2 for v in values[first - start :]], first))


def held(pool: KvPool, request: int, first: int = 0, layer: int = 0) -> list[float]:
    found = pool.read(request, layer, first)
    assert found.start == first
    assert torch.equal(found.keys, -found.values)
    return found.keys[:, 0, 0].tolist()


def test_rows_come_back_in_order_across_pages() -> None:
    pool = make_pool()
    pool.open(0)
    pool.open(1)
    for n in range(9):
        add(pool, 0, [float(n)])
        add(pool, 1, [100.0 + n])
    assert held(pool, 0) == [float(n) for n in range(9)]
    assert held(pool, 1, 3, layer=1) == [100.5 + n for n in range(3, 9)]
    assert held(pool, 0, 9) == []
    assert pool.free_pages == 2


def test_close_frees_and_pages_are_used_again() -> None:
    pool = make_pool(pages=2)
    for request in range(5):
        pool.open(request)
        add(pool, request, [1.0] * 8)
        assert pool.free_pages == 0
        pool.close(request)
    assert pool.free_pages == 2


def test_full_pool_refuses_before_anything_changes() -> None:
    pool = make_pool(pages=3)
    pool.open(0)
    pool.open(1)
    add(pool, 0, [1.0] * 8)
    with pytest.raises(InputError, match=r"2 more pages of 4 positions needed, 1 free"):
        pool.check_room({0: 1, 1: 1})
    assert pool.free_pages == 1
    assert pool.length(0) == 8
    add(pool, 1, [2.0])
    with pytest.raises(InputError, match="pool is full"):
        pool.fork(1, 2, 1)
    assert 2 not in pool


def test_fork_shares_whole_pages_and_copies_the_cut_one() -> None:
    pool = make_pool()
    pool.open(0)
    add(pool, 0, [float(n) for n in range(10)])
    assert pool.free_pages == 5
    pool.fork(0, 1, 6)
    assert pool.free_pages == 4
    add(pool, 1, [60.0, 70.0, 80.0])
    add(pool, 0, [10.0])
    assert held(pool, 0) == [float(n) for n in range(11)]
    assert held(pool, 1) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 60.0, 70.0, 80.0]
    pool.close(0)
    assert held(pool, 1)[:6] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    pool.close(1)
    assert pool.free_pages == 8


def test_windowed_pool_holds_the_widest_window_and_frees_the_rest() -> None:
    """Window 8: a block at L sees L - 7 .. L - 1, at most three pages of 4."""
    pool = make_pool(pages=3, windowed=True)
    pool.open(0)
    for n in range(50):
        add(pool, 0, [float(n)])
        first = max(0, n + 1 - 7)
        assert held(pool, 0, first) == [float(m) for m in range(first, n + 1)]
    add(pool, 0, [float(n) for n in range(50, 250)])
    assert held(pool, 0, 243) == [float(n) for n in range(243, 250)]
    with pytest.raises(InputError, match="window"):
        pool.fork(0, 1, 100)


def test_one_layer_with_full_attention_keeps_everything() -> None:
    config = small_config(windows=(5, None))
    pool = KvPool(
        config, pages=2, page_size=4, max_requests=1, dtype=torch.float32, device=torch.device("cpu"), windowed=True
    )
    assert pool.first_kept(1000) == 0


@pytest.mark.parametrize("name", ["pages", "page_size", "max_requests"])
def test_impossible_sizes_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name}: found 0, wanted at least 1"):
        make_pool(**{name: 0})


def test_requests_are_opened_once_and_not_too_many() -> None:
    pool = make_pool(max_requests=2)
    pool.open(4)
    with pytest.raises(InputError, match="found 4, wanted a request that is not open yet"):
        pool.open(4)
    pool.fork(4, 5, 0)
    with pytest.raises(InputError, match="fewer than 2"):
        pool.open(6)
    with pytest.raises(InputError, match="fewer than 2"):
        pool.fork(4, 6, 0)


@pytest.mark.parametrize("length", [-1, 4])
def test_fork_beyond_the_source_is_refused(length: int) -> None:
    pool = make_pool()
    pool.open(0)
    add(pool, 0, [1.0] * 3)
    with pytest.raises(InputError, match=f"length: found {length}, wanted 0..3"):
        pool.fork(0, 1, length)
    assert 1 not in pool


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_random_histories_against_lists(seed: int, windowed: bool) -> None:
    """400 operations against a dict of lists; refused operations change nothing; no page is lost."""
    choice = random.Random(seed)
    pool = make_pool(pages=10, max_requests=4, windowed=windowed)
    model: dict[int, list[float]] = {}
    value = 0.0
    for _ in range(400):
        request, other = choice.randrange(6), choice.randrange(6)
        action = choice.choice(["open", "close", "fork", "add", "add", "add"])
        try:
            if action == "open":
                pool.open(request)
                model[request] = []
            elif action == "close" and request in model:
                pool.close(request)
                del model[request]
            elif action == "fork" and request in model:
                length = choice.randint(0, len(model[request]))
                pool.fork(request, other, length)
                model[other] = model[request][:length]
            elif action == "add" and request in model:
                new = [value + i for i in range(choice.randint(0, 6))]
                add(pool, request, new)
                model[request] = model[request] + new
                value += len(new)
        except InputError:
            pass
        for name, wanted in model.items():
            first = pool.first_kept(len(wanted))
            assert held(pool, name, first) == wanted[first:]
    for name in list(model):
        pool.close(name)
    assert pool.free_pages == 10
