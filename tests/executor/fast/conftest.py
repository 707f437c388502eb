"""The words of the executor's test kernels, and a cache of objects of its own for the session."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def object_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing compiled earlier is used, and nothing is left behind; a folder that the environment names is kept."""
    if "MONODRAFT_CACHE" in os.environ:
        yield
        return
    os.environ["MONODRAFT_CACHE"] = str(tmp_path_factory.mktemp("objects"))
    yield
    del os.environ["MONODRAFT_CACHE"]
