"""The hand-offs of the vanilla step's stages, sabotaged one at a time: waits, flags, puts, the counter."""

from __future__ import annotations

from sabotage import Sabotage, mutant, no_publish, no_wait

__all__ = ["SABOTAGES", "Sabotage", "mutant"]

OWNER_PUT = "    dw.st(base + fx.Int64(step.rank) * nbytes, index * 2, pair, cm=dw.CM_SYS, nbytes=nbytes)\n"
SUM_PUT = "fx.Vector.from_elements(pairs, fx.Int32), cm=dw.CM_SYS, nbytes=row_bytes)"
OFFER = "stores, words, cm=dw.CM_SYS, nbytes=nbytes)"
SABOTAGES = [
    no_wait("context_norm", "fc"),
    no_wait("context_kv", "context_norm"),
    no_wait("pool", "context_kv"),
    no_wait(
        "context_ready",
        "pool",
        survives="every owner of pool owns qkv tiles too, whose flags attention waits for, and their publish drains "
        "what that CTA stored before",
    ),
    no_wait("qkv", "input"),
    no_wait("attention", "qkv"),
    no_wait("o", "attention"),
    no_wait("gate_up", "post"),
    no_wait("down", "gate_up"),
    no_wait("lm_head", "input"),
    *(
        no_publish(stage)
        for stage in (
            "fc",
            "context_norm",
            "context_kv",
            "pool",
            "embed",
            "qkv",
            "attention",
            "post",
            "gate_up",
            "input",
        )
    ),
    Sabotage(
        "lm-head-waits-for-layer-0",
        "markov.py",
        'wait_stage(step, "lm_head", "input", 0, of=step.shape.layers)',
        'wait_stage(step, "lm_head", "input", 0, of=0)',
    ),
    Sabotage("partials-at-device-scope", "exchange.py", OWNER_PUT, OWNER_PUT.replace("CM_SYS", "CM_DEV")),
    Sabotage("partials-to-rank-0-only", "exchange.py", "(owner == rank).select(", "(owner == rank + 1).select("),
    Sabotage("sums-at-device-scope", "exchange.py", SUM_PUT, SUM_PUT.replace("CM_SYS", "CM_DEV")),
    Sabotage(
        "sums-of-another-tag", "exchange.py", "for word in (value, step.tag)]", "for word in (value, step.tag - 1)]"
    ),
    Sabotage(
        "sums-to-the-wrong-slice", "exchange.py", "fx.Int64(step.rank) * row_bytes\n", "fx.Int64(0) * row_bytes\n"
    ),
    Sabotage("offers-at-device-scope", "markov.py", OFFER, OFFER.replace("CM_SYS", "CM_DEV")),
    Sabotage(
        "offers-in-one-entry",
        "markov.py",
        "entry = step.rank * step.shape.ctas + step.cta",
        "entry = step.rank * step.shape.ctas",
    ),
    Sabotage(
        "epoch-stands-still",
        "step.py",
        "dw.st(epoch, place, step.epoch, nbytes=4)",
        "dw.st(epoch, place, step.epoch - 1, nbytes=4)",
    ),
]
