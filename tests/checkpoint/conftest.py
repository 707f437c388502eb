"""What several tests of `pack` start from."""

from pathlib import Path

import pytest

from monodraft.testing import random_config, random_weights, write_checkpoint


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    config = random_config("qwen3", hidden_size=128, ffn_size=256)
    write_checkpoint(folder, config, random_weights(config, seed=5))
    (folder / "README.md").write_text("card")
    return folder
