"""The sizes that every device helper reads: one frozen object, checked before anything is traced.

Plain Python: planning code and hosts use it without FlyDSL.
"""

from __future__ import annotations

from dataclasses import dataclass

from monodraft.errors import Fault, KernelError

LANES = 64
"""Lanes of a wave on gfx950."""
TILE_ROWS = 16
"""Weight rows, and token columns, of one 16x16x128 matrix tile."""
CHUNK = 128
"""Values along K that one matrix instruction consumes."""
BLOCK = 32
"""Values along K that share one e8m0 scale (MXFP8)."""
ROW_VALUES = 16
"""Values of a row that one thread holds in the row and norm helpers."""
FLAG_LIMIT = 512
"""Most flags that one `wait_flags` can watch: one a thread."""
LDS_BYTES = 160 * 1024
"""LDS of a compute unit of gfx950."""
BUFFER_LIMIT = 2**31
"""Most bytes behind one base: offsets inside a buffer resource are 32 bits wide."""


@dataclass(frozen=True)
class Geometry:
    """Sizes of one kernel. The defaults are MiniMax-M3.1 at tensor-parallel 4.

    `hidden`: values of a hidden row, a multiple of `CHUNK`, at most `ROW_VALUES` a thread. `ranks`: tensor-parallel
    ranks (1, 2, 4, 8). `waves`: waves of a CTA (1, 2, 4, 8, 16). `columns`: token columns of a tile, 1 .. 16.

    Raises `KernelError` naming every field that does not fit.
    """

    hidden: int = 6144
    ranks: int = 4
    waves: int = 8
    columns: int = TILE_ROWS

    def __post_init__(self) -> None:
        faults = [
            *_faults_among("ranks", self.ranks, (1, 2, 4, 8)),
            *_faults_among("waves", self.waves, (1, 2, 4, 8, 16)),
            *_faults_between("columns", self.columns, 1, TILE_ROWS),
        ]
        if not _is_count(self.hidden) or self.hidden % CHUNK:
            faults.append(Fault("Geometry.hidden", repr(self.hidden), f"a positive multiple of {CHUNK}"))
        elif not faults and self.hidden > ROW_VALUES * self.threads:
            limit = ROW_VALUES * self.threads
            faults.append(
                Fault("Geometry.hidden", str(self.hidden), f"at most {limit}: {ROW_VALUES} x {self.threads} threads")
            )
        if faults:
            raise KernelError("this geometry does not fit the device helpers", faults)

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.waves * LANES

    @property
    def row_threads(self) -> int:
        """Threads that hold values of a hidden row; the others read zeros and store nothing."""
        return self.hidden // ROW_VALUES

    @property
    def flag_limit(self) -> int:
        """Most flags of one `wait_flags`."""
        return min(FLAG_LIMIT, self.threads)

    def chunks(self, k: int) -> int:
        """Chunks that each wave walks in a row of `k` values; chunk c of wave w is number `waves * c + w` of it."""
        check_depth(k)
        return -(-(k // CHUNK) // self.waves)

    def residual_words(self) -> int:
        """LDS words (Int32) of the residual row of `norm_row`: 8 bf16 pairs for every thread of the CTA."""
        return self.threads * ROW_VALUES // 2

    def partial_words(self, tiles: int) -> int:
        """LDS words (Float32) of `red` for `tiles` tiles: one 16x16 partial a wave and tile."""
        words = tiles * self.waves * TILE_ROWS * TILE_ROWS
        if tiles < 1 or 4 * words > LDS_BYTES:
            most = LDS_BYTES // (4 * self.waves * TILE_ROWS * TILE_ROWS)
            raise KernelError("partials do not fit LDS", [Fault("tiles", str(tiles), f"1 .. {most}")])
        return words


def check_depth(k: int) -> None:
    """Refuse a GEMV depth that is not a positive multiple of `CHUNK`."""
    if not _is_count(k) or k % CHUNK:
        raise KernelError("a GEMV of this depth does not fit", [Fault("k", repr(k), f"a positive multiple of {CHUNK}")])


def check_address(name: str, address: int, align: int) -> None:
    """Refuse, on the host, a launch argument `name` whose `address` is null or not a multiple of `align` bytes."""
    if address <= 0 or address % align or address >= 2**48:
        raise KernelError(
            f"launch argument {name} cannot be used",
            [Fault(name, hex(address), f"an address below 2^48, not null, aligned to {align} bytes")],
        )


def check_array(name: str, nbytes: int, wanted: int, one_base: bool = True) -> None:
    """Refuse, on the host, an array `name` of `nbytes` where the grid will touch `wanted` bytes.

    With `one_base` also one that 32-bit offsets from its start do not cover.
    """
    if nbytes < wanted:
        raise KernelError(
            f"array {name} is too small for its grid", [Fault(name, f"{nbytes} bytes", f"{wanted} bytes")]
        )
    if one_base and wanted > BUFFER_LIMIT:
        raise KernelError(
            f"array {name} is too large for one base", [Fault(name, f"{wanted} bytes", f"at most {BUFFER_LIMIT}")]
        )


def check_dtype(name: str, found: object, wanted: object) -> None:
    """Refuse, on the host, an array `name` whose element type is not the one that the kernel reads."""
    if str(found) != str(wanted):
        raise KernelError(f"array {name} has the wrong type", [Fault(name, str(found), str(wanted))])


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _faults_among(field: str, value: object, allowed: tuple[int, ...]) -> list[Fault]:
    if _is_count(value) and value in allowed:
        return []
    return [Fault(f"Geometry.{field}", repr(value), "one of " + ", ".join(map(str, allowed)))]


def _faults_between(field: str, value: object, least: int, most: int) -> list[Fault]:
    if _is_count(value) and least <= value <= most:  # type: ignore[operator]
        return []
    return [Fault(f"Geometry.{field}", repr(value), f"{least} .. {most}")]
