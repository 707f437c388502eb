"""Arithmetic of the stages, sabotaged one line at a time, and the stage whose bound must notice."""

from __future__ import annotations

from step_sabotages import Sabotage

TRUNCATED = "(({0}).bitcast(fx.Int32) & -0x10000).bitcast(fx.Float32)"
"""A Float32 cut to bf16 instead of rounded."""


def truncated(value: str) -> str:
    """Text of `value` cut off."""
    return TRUNCATED.format(value)


def sabotage(stage: str, name: str, file: str, old: str, new: str) -> tuple[str, Sabotage]:
    return stage, Sabotage(name, file, old, new)


CHAIN = "        dw.red_store(step.geo, step.lds.red, t, dw.mma_chain(pairs[t * chunks : (t + 1) * chunks], tokens))\n"
NO_WAVE_1 = """        acc = dw.mma_chain(pairs[t * chunks : (t + 1) * chunks], tokens)
        kept = [(dw.wave() == 1).select(fx.Float32(0.0), acc[i]) for i in range(4)]
        dw.red_store(step.geo, step.lds.red, t, fx.Vector.from_elements(kept, fx.Float32))
"""
TILE_WORD = "    return dw.bfpair(change(low), change(high)), token, pair\n"
GATE_SUMS = "[bf16r(dw.red_sum(step.geo, step.lds.red, t, r, token % TILE)) for r in row]"
TURNED = "return rotated(step, [x * rstd * weight for x, weight in zip(values, weights, strict=True)], position)"
QUOTIENTS = "pack_pairs([acc[i] / total for i in range(4)])"
BASE = "    value = bf16r(dw.red_sum(step.geo, step.lds.red, 0, place % TILE, place // TILE))\n"

SABOTAGES = [
    sabotage("fc", "tiles-cut-to-bf16", "linear.py", TILE_WORD,
             f"    return dw.bfpair({truncated('change(low)')}, {truncated('change(high)')}), token, pair\n"),
    sabotage("fc", "no-last-32-of-k", "linear.py", "(first + index < units)", "(first + index < units - 1)"),
    sabotage("context_norm", "no-hidden-norm-offset", "rows.py", "unit_offset=shape.config.norm is Norm.GEMMA",
             "unit_offset=False"),
    sabotage("context_kv", "values-for-keys", "context.py", "    first = shape.q_size * k ",
             "    first = (shape.q_size - TILE) * k "),
    sabotage("pool", "key-rounded-after-its-norm-too", "heads.py", TURNED,
             TURNED.replace("x * rstd * weight", "(x * rstd * weight).to(fx.BFloat16).to(fx.Float32)")),
    sabotage("pool", "sine-off-by-a-thousandth", "heads.py", "high = [b * c + a * s for",
             "high = [b * c + a * s * fx.Float32(1.001) for"),
    sabotage("qkv", "no-chunk-of-wave-1", "linear.py", CHAIN, NO_WAVE_1),
    sabotage("attention", "window-one-wider", "attention.py", "(task.start + row - position < window)",
             "(task.start + row - position <= window)"),
    sabotage("attention", "scores-off-by-a-thousandth", "attention.py", "fx.Float32(scale)",
             "fx.Float32(scale * 1.001)"),
    sabotage("attention", "weights-relative-to-another-score", "attention.py", "dw.exp(score - best)",
             "dw.exp(score - best - fx.Float32(0.3))"),
    sabotage("attention", "weights-cut-to-bf16", "attention.py", "from_elements(pack_pairs(weights),",
             f"from_elements(pack_pairs([{truncated('w')} for w in weights]),"),
    sabotage("attention", "sum-of-rounded-weights", "attention.py",
             "        total = total + plain_sum(weights)\n",
             "        total = total + plain_sum([w.to(fx.BFloat16).to(fx.Float32) for w in weights])\n"),
    sabotage("attention", "quotients-cut-to-bf16", "attention.py", QUOTIENTS,
             f"pack_pairs([{truncated('acc[i] / total')} for i in range(4)])"),
    sabotage("qkv", "rank-0-twice", "exchange.py", "first + part * rank for rank",
             "first + part * (rank // 2) for rank"),
    sabotage("gate_up", "gate-and-up-not-rounded", "layer.py", GATE_SUMS, GATE_SUMS.replace("bf16r(dw", "(dw")),
    sabotage("gate_up", "another-alpha", "layer.py", "fx.Float32(swiglu.alpha)", "fx.Float32(1.7)"),
    sabotage("gate_up", "up-not-clamped-below", "layer.py", "up = (up < -limit).select(-limit, up)", "up = up + 0.0"),
    sabotage("o", "weights-of-layer-0", "layer.py", "[matrix(step, stage, layer)]",
             "[matrix(step, stage, fx.Int32(0) * layer)]"),
    sabotage("lm_head", "base-not-rounded", "markov.py", BASE, BASE.replace("bf16r(dw", "(dw")),
    sabotage("markov", "bias-not-rounded", "markov.py", "+ bf16r(acc[i])", "+ acc[i]"),
    sabotage("markov", "anchor-in-every-slot", "markov.py",
             "    previous = fx.ptr_load(step.lds.chosen + slot * TILE + request)\n    e =",
             "    previous = fx.ptr_load(step.lds.chosen + request)\n    e ="),
    sabotage("choice", "lowest-score-of-a-lane", "markov.py", "better = score > best", "better = score < best"),
    sabotage("confidence", "confidence-off-by-a-thousandth", "markov.py", "    total = x[0] * w[0]\n",
             "    total = x[0] * w[0] * fx.Float32(1.001)\n"),
]  # fmt: skip
