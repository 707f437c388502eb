"""Stages that own whole rows of the hidden state: CTA c owns rows c, c + ctas, ... and their residuals in its LDS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import flydsl.expr as fx

from monodraft.checkpoint.config import Norm
from monodraft.device import words as dw
from monodraft.device.gemv import row_base
from monodraft.device.numbers import pack_pairs
from monodraft.plan.lds import LANES, RESIDUAL_WORDS
from monodraft.stages.scope import Step

Values = Sequence[Any]


@dw.traced
def normed_rows(
    step: Step,
    count: Any,
    source: Callable[[Any], Values],
    weights: Sequence[Any],
    store: Callable[[Any, Values], None],
    add: bool,
) -> None:
    """`store(t, values)` of every own row t below `count`: its norm with `weights`, `dw.norm_w` of them, which the
    caller requests before it waits for anything.

    `source(t)` gives a thread's 16 values, added to the residual with `add`; the sum becomes the new residual.
    """
    shape = step.shape
    for row in range(step.cta, count, shape.ctas):
        t = fx.Int32(row)
        residual = step.lds.residual + t // shape.ctas * (step.geo.waves * LANES * RESIDUAL_WORDS)
        values = dw.norm_row(
            step.geo,
            source(t),
            weights,
            residual,
            step.lds.norm,
            shape.config.rms_norm_eps,
            add=add,
            unit_offset=shape.config.norm is Norm.GEMMA,
        )
        store(t, values)


def quantised(step: Step, name: str) -> Callable[[Any, Values], None]:
    """Stores a row as MXFP8 in local arrays `name` and `name.scales`."""
    x8, e8 = step.local.at(name), step.local.at(f"{name}.scales")

    def store(t: Any, values: Values) -> None:
        dw.quant_store(step.geo, values, x8, e8, t)

    return store


def plain(step: Step, name: str) -> Callable[[Any, Values], None]:
    """Stores a row as bf16 in local array `name`."""
    base, nbytes = step.local.at(name), 2 * step.shape.hidden

    def store(t: Any, values: Values) -> None:
        words = fx.Vector.from_elements(pack_pairs(values), fx.Int32)
        dw.st(row_base(base, t, nbytes), fx.thread_idx.x * 8, words, cm=dw.CM_DEV, nbytes=nbytes)

    return store


def embedded(step: Step) -> Callable[[Any], Values]:
    """Values of query row t: the anchor's embedding in a request's first row, the mask token's in the others."""
    shape = step.shape
    anchors, table = step.local.at("anchors"), step.weights.at("embed")

    def source(t: Any) -> Values:
        request, slot = t // shape.block, t % shape.block
        anchor = dw.first_lane(dw.ld(anchors, request))
        token = (slot == 0).select(anchor, fx.Int32(shape.config.mask_token_id))
        return dw.row_x(step.geo, table, token)

    return source


def stored(step: Step, name: str) -> Callable[[Any], Values]:
    """Values of row t of bf16 local array `name`, which other CTAs wrote."""
    base = step.local.at(name)

    def source(t: Any) -> Values:
        return dw.row_x(step.geo, base, t, cm=dw.CM_DEV)

    return source
