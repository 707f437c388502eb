"""Which heads, FFN columns and vocabulary rows a tensor-parallel rank owns."""

from __future__ import annotations

from dataclasses import dataclass

from monodraft.checkpoint.config import DraftConfig
from monodraft.errors import Fault, InputError

RANKS = (1, 2, 4, 8)
MX_BLOCK = 32


@dataclass(frozen=True)
class RankSlice:
    """What one rank owns, as index ranges: query heads, K/V heads, FFN columns, vocabulary rows.

    K/V heads repeat on `ranks / num_kv_heads` neighbours where there are more ranks than K/V heads. All else (fc,
    norms, embedding, Markov w1, gate and joint, confidence) is on every rank.
    """

    rank: int
    ranks: int
    heads: range
    kv_heads: range
    ffn: range
    vocab: range


def _share(size: int, rank: int, ranks: int) -> range:
    part = size // ranks
    return range(rank * part, (rank + 1) * part)


def _faults(config: DraftConfig, ranks: int) -> list[Fault]:
    """What keeps `config` from being split over `ranks`."""
    faults = []
    multiples = {"num_heads": ranks, "ffn_size": ranks, "vocab_size": ranks}
    if config.mxfp8_linears:
        # o and down are split along K, where one scale covers 32 columns.
        multiples["ffn_size"] = ranks * MX_BLOCK
        multiples["q_size"] = ranks * MX_BLOCK
    for name, divisor in multiples.items():
        value = getattr(config, name)
        if value % divisor:
            what = f"{ranks} ranks" if divisor == ranks else f"{ranks} ranks in MX blocks of {MX_BLOCK}"
            faults.append(Fault(name, str(value), f"a multiple of {divisor}, for {what}"))
    kv = config.num_kv_heads
    if kv % ranks and ranks % kv:
        faults.append(Fault("num_kv_heads", str(kv), f"a multiple or a divisor of {ranks} ranks"))
    return faults


def rank_slice(config: DraftConfig, rank: int, ranks: int) -> RankSlice:
    """What `rank` of `ranks` owns. Raises InputError for a rank count other than 1, 2, 4, 8, a rank outside it, or a
    config that does not divide (field, value and divisor named)."""
    if ranks not in RANKS:
        raise InputError("this number of ranks is not supported", [Fault("ranks", str(ranks), f"one of {RANKS}")])
    if rank not in range(ranks):
        raise InputError("no such rank", [Fault("rank", str(rank), f"0 .. {ranks - 1}")])
    faults = _faults(config, ranks)
    if faults:
        raise InputError(f"this drafter does not divide over {ranks} ranks", faults)
    kv = config.num_kv_heads
    first = rank * kv // ranks
    kv_heads = _share(kv, rank, ranks) if kv >= ranks else range(first, first + 1)
    return RankSlice(
        rank,
        ranks,
        _share(config.num_heads, rank, ranks),
        kv_heads,
        _share(config.ffn_size, rank, ranks),
        _share(config.vocab_size, rank, ranks),
    )
