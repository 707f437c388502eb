"""Sabotages of the polls, of the one-shot all-reduce, of attention with split keys and of the gated and rnn heads."""

from __future__ import annotations

from faulty import Setting
from sabotage import Sabotage, no_publish, no_wait

from monodraft.checkpoint.config import MarkovKind
from monodraft.plan.shape import AllReduce

ONE_SHOT = Setting(AllReduce.ONE_SHOT)
SPLIT = Setting(splits=2)
GATED = Setting(markov=MarkovKind.GATED)
RNN = Setting(markov=MarkovKind.RNN)


def pairs(base: str, nbytes: str, first: str, count: int) -> str:
    """Source of `count` value words of the pairs from word `first` of `base` on, whatever their tags."""
    return f"list(dw.ldn({base}, {nbytes}, {first}, {2 * count}, cm=dw.CM_SYS))[0::2]"


SLICE_POLL = "words = dw.poll_rows(bases, fx.thread_idx.x * 8, 8, step.tag, *limits, nbytes=row_bytes)"
SLICE_HALF = "dw.poll_rows(bases, fx.thread_idx.x * 8, 4, step.tag, *limits, nbytes=row_bytes)"
SLICE_LAST = f"[{pairs('bases[-1]', 'row_bytes', 'fx.thread_idx.x * 16', 8)}]"
SLICE_NONE = f"[{pairs('base', 'row_bytes', 'fx.thread_idx.x * 16', 8)} for base in bases]"
SLICE_REST = pairs("base", "row_bytes", "fx.thread_idx.x * 16 + 8", 4)
SUM_POLL = "return dw.row_sum4(whole, [first], t, step.tag, *limits)"
SUM_ROW, SUM_BYTES = "first + fx.Int64(t) * (4 * step.shape.hidden)", "4 * step.shape.hidden"
SUM_HALF = f"dw.poll_rows([{SUM_ROW}], fx.thread_idx.x * 8, 4, step.tag, *limits, nbytes={SUM_BYTES})[0]"
PARTIALS_POLL = "return dw.row_sum4(step.geo, partials, t, step.tag, *limits)"
PART_ROW = "part + fx.Int64(t) * (4 * step.shape.hidden)"
ADDED = "[bf16r(a + b) for a, b in zip(*(unpack_pairs({}) for part in partials), strict=True)]"
TAKE_CALL = "[base], fx.thread_idx.x * 2 * each, 2 * each, step.tag, *limits, nbytes=candidate_bytes(step)"
TAKE_POLL = f"words = dw.poll_rows(\n            {TAKE_CALL}\n        )[0]\n"
TAKE_NONE = f"words = {pairs('base', 'candidate_bytes(step)', 'fx.thread_idx.x * 4', 2)}\n"
TAKE_SCORE = (
    "score = dw.poll_rows([base], fx.thread_idx.x * 2, 1, step.tag, *limits, nbytes=candidate_bytes(step))[0][0]\n"
    "        chosen = dw.ldn(base, candidate_bytes(step), fx.thread_idx.x * 4 + 2, cm=dw.CM_SYS)\n"
    "        words = [score, chosen]\n"
)

POLLS = [
    Sabotage("slice-polls-another-tag", "exchange.py", SLICE_POLL, SLICE_POLL.replace("step.tag", "step.tag - 1")),
    Sabotage("slice-polls-nothing", "exchange.py", SLICE_POLL, f"words = {SLICE_NONE}"),
    Sabotage(
        "slice-polls-one-rank-short",
        "exchange.py",
        SLICE_POLL,
        SLICE_POLL.replace("(bases,", "(bases[:-1],") + f" + {SLICE_LAST}",
    ),
    Sabotage(
        "slice-polls-every-other-four-pairs",
        "exchange.py",
        SLICE_POLL,
        f"words = [half + {SLICE_REST} for half, base in zip({SLICE_HALF}, bases, strict=True)]",
        survives="not equivalent: a thread's 8 pairs are lanes of one store, which arrives in pieces so close together "
        "that no load was seen to come between",
    ),
    Sabotage(
        "slice-polls-one-thread-short", "exchange.py", SLICE_POLL, SLICE_POLL.replace("=row_bytes", "=row_bytes - 64")
    ),
    Sabotage(
        "slice-one-row-short",
        "layer.py",
        "for t in range(step.cta, step.shape.rows, step.shape.ctas):",
        "for t in range(step.cta, step.shape.rows - 1, step.shape.ctas):",
    ),
    Sabotage("sums-poll-another-tag", "exchange.py", SUM_POLL, SUM_POLL.replace("step.tag", "step.tag - 1")),
    Sabotage(
        "sums-poll-nothing",
        "exchange.py",
        SUM_POLL,
        f"return unpack_pairs({pairs(SUM_ROW, SUM_BYTES, 'fx.thread_idx.x * 16', 8)})",
    ),
    Sabotage(
        "sums-poll-every-other-four-pairs",
        "exchange.py",
        SUM_POLL,
        f"return unpack_pairs({SUM_HALF} + {pairs(SUM_ROW, SUM_BYTES, 'fx.thread_idx.x * 16 + 8', 4)})",
    ),
    Sabotage("sums-poll-another-row", "exchange.py", SUM_POLL, SUM_POLL.replace(" t,", " t ^ 1,")),
    Sabotage(
        "rows-one-short",
        "rows.py",
        "for row in range(step.cta, count, shape.ctas):",
        "for row in range(step.cta, count - 1, shape.ctas):",
    ),
    Sabotage("take-polls-another-tag", "markov.py", TAKE_CALL, TAKE_CALL.replace("step.tag", "step.tag - 1")),
    Sabotage("take-polls-nothing", "markov.py", TAKE_POLL, TAKE_NONE),
    Sabotage(
        "take-polls-scores-alone",
        "markov.py",
        TAKE_POLL,
        TAKE_SCORE,
        survives="not equivalent: score and id are one 16-byte store, which arrives in pieces so close together that "
        "no load was seen to come between",
    ),
    Sabotage("take-polls-one-entry-short", "markov.py", TAKE_CALL, f"{TAKE_CALL} - 16"),
    Sabotage(
        "take-polls-slot-0",
        "markov.py",
        "base = candidates(step, step.own, slot, fx.Int32(request))",
        "base = candidates(step, step.own, fx.Int32(0), fx.Int32(request))",
    ),
]

PUT = "        part = peer.at(region, layer) + fx.Int64(step.rank) * nbytes\n        dw.st(part, index * 2, pair,"
PUT_POLICY = "dw.st(part, index * 2, pair, cm=dw.CM_SYS, nbytes=nbytes)"
PUT_PAIR = (
    '    step.note("put", stage, region)\n    pair = fx.Vector.from_elements([word, step.tag], fx.Int32)\n'
    "    for peer in step.peers:\n"
)


def one_shot(name: str, old: str, new: str) -> Sabotage:
    return Sabotage(f"one-shot-{name}", "exchange.py", old, new, ONE_SHOT)


ONE_SHOTS = [
    one_shot("put-at-device-scope", PUT_POLICY, PUT_POLICY.replace("CM_SYS", "CM_DEV")),
    one_shot("put-of-another-tag", PUT_PAIR, PUT_PAIR.replace("step.tag]", "step.tag - 1]")),
    one_shot("put-to-all-but-the-last-rank", PUT_PAIR, PUT_PAIR.replace("step.peers:", "step.peers[:-1]:")),
    one_shot("put-to-one-part", PUT, PUT.replace("step.rank", "0")),
    one_shot("put-one-pair-further", PUT, PUT.replace("index * 2,", "index * 2 + 2,")),
    one_shot("put-in-layer-0", PUT, PUT.replace("peer.at(region, layer)", "peer.at(region, 0)")),
    one_shot("polls-another-tag", PARTIALS_POLL, PARTIALS_POLL.replace("step.tag", "step.tag - 1")),
    one_shot(
        "polls-nothing",
        PARTIALS_POLL,
        f"from monodraft.device.numbers import bf16r\n    return "
        f"{ADDED.format(pairs(PART_ROW, SUM_BYTES, 'fx.thread_idx.x * 16', 8))}",
    ),
    one_shot(
        "polls-one-rank-short",
        PARTIALS_POLL,
        "from monodraft.device.numbers import bf16r\n"
        f"    own = dw.poll_rows([{PART_ROW} for part in partials[:1]], fx.thread_idx.x * 8, 8, step.tag, *limits,"
        f" nbytes={SUM_BYTES})\n    own += [{pairs(PART_ROW, SUM_BYTES, 'fx.thread_idx.x * 16', 8)}"
        " for part in partials[1:]]\n"
        "    return [bf16r(a + b) for a, b in zip(*map(unpack_pairs, own), strict=True)]",
    ),
]

MAXIMA_PUT = "    dw.st(base, place, words, cm=dw.CM_DEV, nbytes=nbytes)\n    step.note("
MAXIMA_TAG = "[best.bitcast(fx.Int32), step.tag]"
MAXIMA_PLACE = "((first + task.split) * 2, fx.Int32(nbytes // 4))"
MAXIMA_POLL = "rows = dw.poll_rows(bases, first, min(splits, 8), step.tag, *limits, cm=dw.CM_DEV)"
MAXIMA_SET = 'base = step.local.at("pairs.maxima", task.layer)'
MAXIMA_NONE = "rows = [list(dw.ld(base, first * 2, 4, cm=dw.CM_DEV))[0::2]]"
MAXIMA_OWN = (
    "rows = dw.poll_rows(bases, first + task.split, 1, step.tag, *limits, cm=dw.CM_DEV)\n"
    "    rows += [list(dw.ld(base, first * 2, 4, cm=dw.CM_DEV))[0::2]]"
)
PARTIAL = "dw.st(base, place, acc, cm=dw.CM_DEV, nbytes=nbytes)"
TOTAL = "total, cm=dw.CM_DEV, nbytes=vectors * 4)"
JOINED = 'dw.st(step.local.at("attention"), place, words, cm=dw.CM_DEV, nbytes=nbytes)'
READ_PARTIAL = "load_words(partials, (place * shape.head + dim) * 4, 16, dw.CM_DEV)"
READ_TOTAL = "load_words(totals, place * 4, 4, dw.CM_DEV)"


def shared(name: str, old: str, new: str, survives: str = "") -> Sabotage:
    return Sabotage(f"shares-{name}", "attention_shares.py", old, new, SPLIT, survives)


SHARES = [
    no_wait("attention_join", "attention", SPLIT),
    no_wait("o", "attention_join", SPLIT),
    no_publish("attention_join", SPLIT),
    shared("maxima-in-own-cache", MAXIMA_PUT, MAXIMA_PUT.replace("cm=dw.CM_DEV", "cm=0")),
    shared("maxima-of-another-tag", MAXIMA_TAG, MAXIMA_TAG.replace("step.tag", "step.tag - 1")),
    shared("maxima-in-one-place", MAXIMA_PLACE, MAXIMA_PLACE.replace("task.split", "0")),
    shared("maxima-in-layer-0", MAXIMA_SET, MAXIMA_SET.replace("task.layer", "0")),
    shared("maxima-poll-another-tag", MAXIMA_POLL, MAXIMA_POLL.replace("step.tag", "step.tag - 1")),
    shared("maxima-poll-nothing", MAXIMA_POLL, MAXIMA_NONE),
    shared("maxima-poll-own-alone", MAXIMA_POLL, MAXIMA_OWN),
    shared("partials-in-own-cache", PARTIAL, PARTIAL.replace("cm=dw.CM_DEV", "cm=0")),
    shared("totals-in-own-cache", TOTAL, TOTAL.replace("cm=dw.CM_DEV", "cm=0")),
    shared("joined-in-own-cache", JOINED, JOINED.replace("cm=dw.CM_DEV", "cm=0")),
    shared("partials-read-from-own-cache", READ_PARTIAL, READ_PARTIAL.replace("dw.CM_DEV", "0")),
    shared("totals-read-from-own-cache", READ_TOTAL, READ_TOTAL.replace("dw.CM_DEV", "0")),
]

INNER_STORE = "dw.st(base, fx.thread_idx.x, value, cm=dw.CM_DEV, nbytes=tile_bytes)"
INNER_LOAD = "hidden = load_words(base, (token * TILE + 4 * part) * 4, 16, dw.CM_DEV)"


def inner(name: str, old: str, new: str, setting: Setting = RNN, survives: str = "") -> Sabotage:
    return Sabotage(f"inner-{name}", "markov_inner.py", old, new, setting, survives)


def no_barrier(name: str, before: str, survives: str = "") -> Sabotage:
    """No CTA barrier after the line `before`."""
    return inner(f"no-barrier-after-{name}", f"{before}    gpu.barrier()\n", before, RNN, survives)


INNERS = [
    *(no_wait("inner_ready", "inner", setting) for setting in (GATED, RNN)),
    *(no_publish("inner", setting) for setting in (GATED, RNN)),
    inner("stored-in-own-cache", INNER_STORE, INNER_STORE.replace("cm=dw.CM_DEV", "cm=0")),
    inner(
        "read-from-own-cache",
        INNER_LOAD,
        INNER_LOAD.replace("dw.CM_DEV", "0"),
        survives="nobody reads a tile in a launch before its flags, and caches are clean when a launch starts",
    ),
    no_barrier("fetch", "    fetch_embedding(step, slot)\n"),
    no_barrier("tiles", "    inner_tiles(step, slot, held)\n"),
    no_barrier("gate", "    gate(step)\n"),
    no_barrier("partials", "    dw.red_store(step.geo, step.lds.red, 0, acc)\n"),
    no_barrier("tile", f"    {INNER_STORE}\n"),
    no_barrier(
        "clear",
        "        fx.ptr_store(fx.Int32(0), step.lds.serial + fx.Int32(place))\n",
        "`chain` has a barrier before the first slot",
    ),
]

SABOTAGES = [*POLLS, *ONE_SHOTS, *SHARES, *INNERS]
