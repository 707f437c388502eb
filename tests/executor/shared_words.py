"""LDS layouts; FlyDSL reads struct annotations as objects, so this file must not postpone them."""

import flydsl.expr as fx


@fx.struct
class Shared:
    """128 words."""

    words: fx.Array[fx.Int32, 128, 16]
