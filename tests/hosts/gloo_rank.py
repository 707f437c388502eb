"""One rank of a real gloo group: what each scenario ends in, as JSON. Run as a process a rank.

    python gloo_rank.py RANK SIZE FOLDER

The HIP library is the stand-in, with exchange memory in files that the processes map.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from fake_hip import FakeHip

from monodraft.errors import MonodraftError
from monodraft.hosts.consensus import Ranks, Refused
from monodraft.hosts.hip_drafter import HipDrafter
from monodraft.hosts.hip_library import Hip
from monodraft.testing import random_config, random_weights

CONFIG = random_config(block_size=2, vocab_size=128, ffn_size=256, hidden_size=128, markov_rank=32)
ABSENT_SECONDS = 2.0


class SharedHip(FakeHip):
    """Exchange memory is a file, its IPC handle the file's number: another process maps the same memory."""

    def __init__(self, folder: Path, rank: int, **options: Any) -> None:
        super().__init__(**options)
        self.folder, self.number, self.files = folder, 1000 * (rank + 1), {}

    def _map(self, number: int) -> int:
        with (self.folder / str(number)).open("r+b") as file:
            mapping = mmap.mmap(file.fileno(), 0)
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        self.files[address] = number, mapping
        return address

    def _hipExtMallocWithFlags(self, address: Any, nbytes: Any, flags: Any) -> None:  # noqa: N802
        self.number += 1
        (self.folder / str(self.number)).write_bytes(bytes(nbytes.value))
        address._obj.value = self._map(self.number)
        self.blocks[address._obj.value] = self.files[address._obj.value][1]

    def _hipIpcGetMemHandle(self, handle: Any, address: Any) -> None:  # noqa: N802
        number = self.files[address.value][0]
        ctypes.memmove(ctypes.addressof(handle._obj), number.to_bytes(8, "little"), 8)

    def _hipIpcOpenMemHandle(self, address: Any, handle: Any, flags: Any) -> None:  # noqa: N802
        address._obj.value = self._map(int.from_bytes(bytes(handle)[:8], "little"))
        self.opened.append(address._obj.value)


class Rank:
    """What a scenario has at hand."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.group = folder, dist.group.WORLD
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.odd = self.rank == self.size - 1
        """The last rank is the one that is different."""

    def made(self, hip: dict[str, Any] | None = None, code: bytes = b"ELF", **options: Any) -> HipDrafter:
        config = options.pop("config", CONFIG)
        options = {"ctas": 4, "positions": 64, "page_size": 32, "max_requests": 2} | options
        return HipDrafter(
            config,
            random_weights(config),
            ranks=self.size,
            group=self.group,
            hip=Hip(SharedHip(self.folder, self.rank, **(hip or {}))),
            compile_plan=lambda plan: SimpleNamespace(code_object=code, missing="", kernel="draft_0"),
            **options,
        )


def agreement(rank: Rank) -> None:
    """All start, and see each other's marks in memory that is mapped from another process."""
    drafter = rank.made()
    assert [len(each) for each in (drafter.workspace.addresses, drafter._modules)] == [rank.size, 1]
    drafter.close_device()


def another_plan(rank: Rank) -> None:
    rank.made(ctas=5 if rank.odd else 4, page_size=64 if rank.odd else 32)


def another_geometry(rank: Rank) -> None:
    rank.made(config=replace(CONFIG, rms_norm_eps=1e-5, ffn_size=512) if rank.odd else CONFIG)


def too_small_a_device(rank: Rank) -> None:
    rank.made(hip={"units": 2 if rank.odd else 256})


def another_kernel(rank: Rank) -> None:
    rank.made(code=b"other" if rank.odd else b"ELF")


def other_rows(rank: Rank) -> None:
    """The odd rank drafts one request with context rows, sampled, the others two without, greedily."""
    drafter = rank.made()
    drafter.program(*((1, 16) if rank.odd else (2, 0)), sampled=rank.odd)


def other_calls(rank: Rank) -> None:
    """The odd rank makes a kernel, the others reset."""
    drafter = rank.made()
    if rank.odd:
        drafter.program(1, 0)
    else:
        drafter.reset()


def absent(rank: Rank) -> None:
    """The odd rank never comes."""
    if rank.odd:
        until = time.monotonic() + 20 * ABSENT_SECONDS
        others = [rank.folder / f"{other}.json" for other in range(rank.size - 1)]
        while not all(path.exists() for path in others) and time.monotonic() < until:
            time.sleep(0.1)
        return
    Ranks(rank.group, ABSENT_SECONDS).agree("the start", None)


SCENARIOS: list[Callable[[Rank], None]] = [
    agreement,
    another_plan,
    another_geometry,
    too_small_a_device,
    another_kernel,
    other_rows,
    other_calls,
    absent,
]


def main(rank: int, size: int, folder: Path) -> None:
    # Longer than the test waits: no bound that is seen here is the group's own.
    store = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=600))
    outcomes: dict[str, tuple[str, str, float]] = {}
    for scenario in SCENARIOS:
        start = time.monotonic()
        try:
            scenario(Rank(folder))
            kind, text = "nothing", ""
        except MonodraftError as error:
            kind, text = "Refused" if isinstance(error, Refused) else type(error).__name__, str(error)
        outcomes[scenario.__name__] = kind, text, time.monotonic() - start
    part = folder / f"{rank}.part"
    part.write_text(json.dumps(outcomes))
    part.rename(folder / f"{rank}.json")
    # The group is broken on purpose: leave without taking it down together.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
