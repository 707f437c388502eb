"""Native runtime: exact sums of doubles, rounded once to f32. The slow path of the matrix operations."""

from __future__ import annotations

from monodraft.executor.fast.words import (
    add_f64,
    f32_of_f64,
    f64_of_f32,
    fill_bytes,
    load32,
    load64,
    lowest_bit,
    multiply_f64,
    store32,
    store64,
)

SIGN = 1 << 63
MAGNITUDE = SIGN - 1
INFINITE = 0x7FF << 52


def grow(partials: int, count: int, x: int) -> int:
    """Add x to an expansion (doubles that do not overlap, the smallest first), exactly. The new count."""
    kept = 0
    for i in range(count):
        y = load64(partials + 8 * i)
        total = add_f64(x, y)
        part = add_f64(total, x ^ SIGN)
        rest = add_f64(add_f64(x, add_f64(total, part ^ SIGN) ^ SIGN), add_f64(y, part ^ SIGN))
        if rest & MAGNITUDE:
            store64(partials + 8 * kept, rest)
            kept += 1
        x = total
    store64(partials + 8 * kept, x)
    return kept + 1


def rounded(partials: int, count: int) -> int:
    """An expansion as f32: to odd in double, then to nearest even."""
    if count == 0:
        return 0
    total = load64(partials + 8 * (count - 1))
    i = count - 2
    rest = 0
    while i >= 0 and (rest & MAGNITUDE) == 0:
        y = load64(partials + 8 * i)
        x = total
        total = add_f64(x, y)
        rest = add_f64(y, add_f64(total, x ^ SIGN) ^ SIGN)
        i -= 1
    if rest & MAGNITUDE and (total & 1) == 0:
        total = total + 1 if ((total ^ rest) & SIGN) == 0 else total - 1
    return f32_of_f64(total)


def round_terms(terms: int, stride: int, count: int, c: int, out: int, lanes: int, partials: int) -> None:
    """The outputs in `lanes` of a row: exact sums of `count` terms, `stride` bytes apart, and C."""
    while lanes:
        lane = lowest_bit(lanes)
        lanes = lanes & (lanes - 1)
        n = 0
        for i in range(count):
            n = grow(partials, n, load64(terms + stride * i + 8 * lane))
        n = grow(partials, n, f64_of_f32(load32(c + 4 * lane)))
        store32(out + 4 * lane, rounded(partials, n))


def is_finite(x: int) -> int:
    """Neither Inf nor NaN."""
    return (x & INFINITE) != INFINITE


def exact_output(a: int, b: int, c: int, size: int, depth: int, partials: int) -> int:
    """One output: the sum of `depth` products, `size` columns apart, and c. As f32 bits."""
    plain = add_f64(0, c)
    n = grow(partials, 0, c)
    finite = is_finite(c)
    for k in range(depth):
        product = multiply_f64(load64(a + 8 * size * k), load64(b + 8 * size * k))
        plain = add_f64(plain, product)
        if finite and is_finite(product):
            if product & MAGNITUDE:
                n = grow(partials, n, product)
        else:
            finite = 0
    return rounded(partials, n) if finite else f32_of_f64(plain)


def exact_matrix(a: int, b: int, c: int, out: int, size: int, depth: int, partials: int) -> None:
    """Every output exactly. `a` [depth][size] and `b` [depth][size] doubles, C and D registers as lanes hold them."""
    fill_bytes(partials, 0, 512)
    for place in range(size):
        row = 8 * (place >> 3) + 4 * (place & 1) + ((place >> 1) & 3)
        if size == 16:
            row = 4 * (place & 3) + (place >> 2)
        for column in range(size):
            at = 4 * (place * size + column)
            value = exact_output(a + 8 * row, b + 8 * column, f64_of_f32(load32(c + at)), size, depth, partials)
            store32(out + at, value)
