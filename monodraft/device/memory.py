"""Loads and stores.

A *base* is a wave-uniform Int64 address, used through a buffer resource. Offsets are per lane and count elements of the
access. `cm` is the cache policy of the access: `CM_DEV` for data that another CTA of this GPU reads, `CM_SYS` for data
that a peer GPU reads, 0 for data that nobody writes while the kernel runs. A reader uses the policy of the writer.
"""

from __future__ import annotations

from typing import Any

import flydsl.expr as fx
from flydsl.expr import rocdl

from monodraft.device import flydsl_names as fly
from monodraft.device.checks import refuse, require_among, require_type, require_uniform
from monodraft.device.geometry import BUFFER_LIMIT

CM_DEV = 16
"""Cache policy sc1: coherent over the XCDs of one GPU."""
CM_SYS = 17
"""Cache policy sc0 sc1: coherent over GPUs."""
PIECE = 16
"""Most bytes that one load or store instruction moves in a lane."""

_WIDTHS = {fx.Int8: 1, fx.Uint8: 1, fx.Int16: 2, fx.Uint16: 2, fx.BFloat16: 2, fx.Int32: 4, fx.Uint32: 4, fx.Float32: 4}


def resource(base: Any, nbytes: Any = None) -> Any:
    """Buffer resource over a uniform Int64 address; accesses past `nbytes` read 0 and store nothing."""
    pointer = fx.inttoptr(fx.PointerType.get(fx.Int32.ir_type, fx.AddressSpace.Global), base)
    return rocdl.get_buffer_rsrc(rocdl.make_buffer_ptr(pointer, num_records_bytes=nbytes))


def ld(base: Any, idx: Any, n: int = 1, dtype: Any = fx.Int32, cm: int = 0) -> Any:
    """Load `n` consecutive elements of `dtype` from element `idx` of `base`.

    1, 2, 4, 8 or 16 bytes are one instruction, more are split into 16-byte loads. The address must be aligned to the
    access (at most 16 bytes). Returns a `dtype` for n = 1, else a Vector of n. Refuses a base that is not uniform, an
    unknown `dtype`, an `n` whose bytes are none of 1, 2, 4, 8 or a multiple of 16, an unknown `cm`.
    """
    return _load("ld", base, None, idx, n, dtype, cm)


def ldn(base: Any, nbytes: Any, idx: Any, n: int = 1, dtype: Any = fx.Int32, cm: int = 0) -> Any:
    """`ld` through a resource of `nbytes` (int or uniform Int32): elements past it read 0 without a branch.

    `nbytes` must be a multiple of the bytes of one instruction (at most 16), so that an instruction is in or out whole.
    """
    require_bound("ldn", nbytes, min(PIECE, _width("ldn", dtype) * n))
    return _load("ldn", base, nbytes, idx, n, dtype, cm)


def ld8(base: Any, idx: Any, nbytes: Any = None, cm: int = 0) -> Any:
    """Byte `idx` of `base`, zero-extended to Int32 (`buffer_load_ubyte`); 0 past `nbytes` where that is given."""
    require_uniform("ld8", "base", base)
    require_policy("ld8", cm)
    byte = fly.buffer_load(resource(base, nbytes), idx, fx.Uint8.ir_type, cm)
    return fx.Int32(fx.Uint8(byte))


def st(base: Any, idx: Any, v: Any, cm: int = 0, nbytes: Any = None) -> None:
    """Store `v` (a Numeric, or a Vector of consecutive elements) at element `idx` of `base`.

    1, 2, 4, 8 or 16 bytes are one instruction (8 bytes arrive whole, more need not); wider vectors are split into
    16-byte stores. With `nbytes`, what lies past it is not stored. Refuses what `ld` refuses.
    """
    require_uniform("st", "base", base)
    require_policy("st", cm)
    n = v.numel if isinstance(v, fx.Vector) else 1
    dtype = v.dtype if isinstance(v, fx.Vector) else type(v)
    width = _width("st", dtype)
    words = _words_of(v, width * n, "st")
    where = resource(base, nbytes)
    for piece in range(max(1, width * n // PIECE)):
        part = words if not isinstance(words, list) else _vector(words[4 * piece : 4 * piece + 4])
        fly.buffer_store(part, where, idx * width + PIECE * piece, cm)


def gst32(addr: Any, v: Any, cm: int = CM_SYS) -> None:
    """Store 32-bit `v` at the per-lane 64-bit address `addr` (lanes may go to several peers): `global_store_dword`."""
    require_type("gst32", "addr", addr, fx.Int64)
    require_type("gst32", "v", v, (fx.Int32, fx.Uint32, fx.Float32))
    require_policy("gst32", cm)
    pointer = fx.inttoptr(fx.PointerType.get(fx.Int32.ir_type, fx.AddressSpace.Global), addr)
    word = v.bitcast(fx.Int32)
    if cm == 0:
        fx.generic_store(pointer, word)
        return
    scope = {} if cm == CM_SYS else {"syncscope": rocdl.SyncScope.Agent}
    fx.generic_store(pointer, word, memory_order=fx.AtomicOrdering.Monotonic, **scope)


def require_policy(helper: str, cm: object) -> None:
    """Refuse a cache policy other than 0, `CM_DEV`, `CM_SYS`."""
    require_among(helper, "cm", cm, (0, CM_DEV, CM_SYS))


def require_coherent(helper: str, cm: object) -> None:
    """Refuse a cache policy that is not coherent, in a hand-off."""
    require_among(helper, "cm", cm, (CM_DEV, CM_SYS))


def require_bound(helper: str, nbytes: object, piece: int) -> None:
    """Refuse a compile-time resource size that cuts an instruction of `piece` bytes or exceeds a resource."""
    if isinstance(nbytes, int) and (nbytes <= 0 or nbytes % piece or nbytes > BUFFER_LIMIT):
        raise refuse(helper, "nbytes", nbytes, f"a multiple of {piece} in 1 .. {BUFFER_LIMIT}")


def load_words(where: Any, offset: Any, nbytes: int, cm: int) -> list[Any]:
    """Int32 words of `nbytes` (4, 8 or a multiple of 16) from byte `offset` of a resource, in 16-byte instructions."""
    if nbytes == 4:
        return [fx.Int32(fly.buffer_load(where, offset, fx.Int32.ir_type, cm))]
    kind = fx.Int32x2 if nbytes == 8 else fx.Int32x4
    pieces = range(max(1, nbytes // PIECE))
    loaded = [kind(fly.buffer_load(where, offset + PIECE * p, kind.ir_type, cm)) for p in pieces]
    return [word for vector in loaded for word in vector]


def _load(helper: str, base: Any, nbytes: Any, idx: Any, n: int, dtype: Any, cm: int) -> Any:
    require_uniform(helper, "base", base)
    require_policy(helper, cm)
    width = _width(helper, dtype)
    total = _access_bytes(helper, n, width)
    where = resource(base, nbytes)
    offset = idx * width
    if total < 4:
        small = fly.buffer_load(where, offset, (fx.Int8 if total == 1 else fx.Int16).ir_type, cm)
        value = (fx.Int8 if total == 1 else fx.Int16)(small)
        return value.bitcast(dtype) if n == 1 else fx.Vector.from_elements([value], type(value)).bitcast(dtype)
    words = load_words(where, offset, total, cm)
    if n == 1:
        return words[0].bitcast(dtype)
    return _vector(words).bitcast(dtype)


def _vector(words: list[Any]) -> Any:
    return fx.Vector.from_elements(words, fx.Int32)


def _width(helper: str, dtype: Any) -> int:
    if dtype not in _WIDTHS:
        names = ", ".join(kind.__name__ for kind in _WIDTHS)
        raise refuse(helper, "dtype", getattr(dtype, "__name__", dtype), f"one of {names}")
    return _WIDTHS[dtype]


def _access_bytes(helper: str, n: object, width: int) -> int:
    total = n * width if isinstance(n, int) and not isinstance(n, bool) else 0
    if total in (1, 2, 4, 8) or (total > 0 and total % PIECE == 0):
        return total
    raise refuse(helper, "n", f"{n} elements of {width} bytes", "1, 2, 4, 8 or a multiple of 16 bytes in all")


def _words_of(v: Any, total: int, helper: str) -> Any:
    """What to store: a small value as it is, else a value or list of Int32 words."""
    _access_bytes(helper, total, 1)
    if not isinstance(v, fx.Vector):
        return v.bitcast(fx.Int32) if total == 4 else v
    if total < 4:
        return v.bitcast(fx.Int16)[0] if total == 2 else v[0]
    words = list(v.bitcast(fx.Int32))
    if total == 4:
        return words[0]
    return _vector(words) if total < PIECE else words
