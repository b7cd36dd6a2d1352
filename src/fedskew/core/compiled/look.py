"""Looks at rows of float32: their weighted sum, square lengths and square distances to the mean.

Only `fedskew.core.compiled.sums` asks for them.

Distances need the mean, and so a second look at a block of columns, which finds it in cache. Three things take the time, and all
are done by hand here, in the instructions that numba's compiler gets. Eight rows are looked at side by side, so that what belongs
to a column is read and written once for all of them. Memory is asked for the numbers of each row well before their turn: by
itself, a processor follows few rows. And the second look at a block goes along with the first look at the next one, so that there
is arithmetic to do while memory is waited for (`benchmarks/aggregation.py`).

Means and lengths are added up in float64. The second look is in float32, since numbers of float64 take longer to make than to use:
a distance from the mean is small, and loses no digits, where the mean is told as the nearest number of float32 and what is left
of it. A square distance then has the digits of float32 within a block, and what it cannot tell there is looked at in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from fedskew.core.compiled.instructions import (
    DOUBLES,
    LINE,
    ROWS,
    SINGLES,
    Arrays,
    in_order,
    kernel,
    native,
    padded,
    room,
    rows_of,
)

BLOCK = 1024
"""Columns between two looks at the same rows: of 100 clients 0.4 megabytes, so that two blocks stay in the second cache."""
FEWER = 4
"""Rows that are looked at together of those that are left."""
TINY = 1e-28
"""Square distances of a block below which float32 may have lost some as too small to be told from 0."""
FEW_DIGITS = 0.01
"""A square distance to the plain mean, of that to the weighted one, below which too few digits of float32 are left of it."""


def first_look(rows: int) -> Any:
    """How so many rows are looked at: ``(numbers, at, step, weights, c, equal, width, sums, squares)``.

    As in `add.sum_of`, which this does besides; ``sums`` (2, BLOCK) are the weighted one and one with weights that are
    all ``equal`` (1,). The rows' squares are added to ``squares`` (C,) from ``squares[c]``.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def looked(
        typing: Any,
        numbers: Any,
        at: Any,
        step: Any,
        weights: Any,
        c: Any,
        equal: Any,
        width: Any,
        sums: Any,
        squares: Any,
    ) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            with kernel(context, builder, signature.args, arguments) as (inside, given):
                data, at, step, weights, c, equal, width, sums, squares = given
                go, x = Arrays(inside), rows_of(inside, data, at, step, rows)
                w = rows_of(inside, weights, c, c.type(1), rows)
                weighted, plain = rows_of(inside, sums, at.type(0), at.type(BLOCK), 2)
                found = [go.room(DOUBLES) for _ in range(rows)]
                with go.lines(width, x) as places:
                    for i in places:
                        one, other = go.load(weighted, i), go.load(plain, i)
                        for k in range(rows):
                            a = go.load(x[k], i)
                            one = inside.fadd(one, inside.fmul(go.everywhere(w[k]), a))
                            # an addition, too, as a product: some processors add less at once, and convert where they add
                            other = inside.fadd(other, inside.fmul(go.everywhere(equal), a))
                            go.add_product(found[k], a, a)
                        go.store(weighted, i, one)
                        go.store(plain, i, other)
                for k, of_row in enumerate(rows_of(inside, squares, c, c.type(1), rows)):
                    inside.store(inside.fadd(inside.load(of_row), go.sum(found[k])), of_row)
            return context.get_dummy_value()

        place = types.intp
        return types.void(numbers, place, place, weights, place, equal, place, sums, squares), emit

    return looked


def second_look(rows: int) -> Any:
    """How so many rows are looked at again: ``(numbers, at, step, width, means, found)``.

    ``means`` (3, BLOCK) are the weighted mean, what float32 leaves of it, and how far from it the plain one lies. ``found``
    (ROWS, 2) become the squares of the rows' ways from the mean, and these ways' products with that to the plain one.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def looked(typing: Any, numbers: Any, at: Any, step: Any, width: Any, means: Any, found: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            with kernel(context, builder, signature.args, arguments) as (inside, given):
                data, at, step, width, means, found = given
                go, x = Arrays(inside), rows_of(inside, data, at, step, rows)
                told = rows_of(inside, means, at.type(0), at.type(BLOCK), 3)
                sums = [go.room(SINGLES) for _ in range(2 * rows)]
                # a line at a time; it is in cache, and needs not be asked for
                with go.lines(width, []) as (i, _):
                    mean, rest, between = (go.vector(row, i, SINGLES) for row in told)
                    for k in range(rows):
                        away = inside.fsub(inside.fsub(go.vector(x[k], i, SINGLES), mean), rest)
                        go.add_product(sums[2 * k], away, away)
                        go.add_product(sums[2 * k + 1], away, between)
                for k, of_row in enumerate(rows_of(inside, found, at.type(0), at.type(1), 2 * rows)):
                    inside.store(go.sum(sums[k]), of_row)
            return context.get_dummy_value()

        place = types.intp
        return types.void(numbers, place, place, place, means, found), emit

    return looked


look_at_many, look_at_fewer, look_at_one = first_look(ROWS), first_look(FEWER), first_look(1)
look_again_at_many, look_again_at_fewer, look_again_at_one = second_look(ROWS), second_look(FEWER), second_look(1)


@native
def distances_of(row: Any, means: Any) -> tuple[float, float]:
    """Square distances of a row (W,) to the weighted and to the plain mean (2, BLOCK) in float64."""
    to_weighted, to_plain = 0.0, 0.0
    for i in range(len(row)):
        to_weighted += (row[i] - means[0, i]) ** 2
        to_plain += (row[i] - means[1, i]) ** 2
    return to_weighted, to_plain


@in_order
def look_at_block(
    numbers: Any,
    at: int,
    before: int,
    step: int,
    weights: Any,
    width: int,
    sums: Any,
    means: Any,
    told: Any,
    apart: float,
    squares: Any,
    distances: Any,
) -> None:
    """The first look at a block of all rows, that begins at ``numbers[at]``, and the second at that from ``before``.

    Both are ``width`` wide, which divides into lines. ``sums`` (2, BLOCK) become the first one's sums. ``means`` (2, BLOCK) are
    those of the block before, ``apart`` their square distance, and ``told`` (3, BLOCK) what `second_look` is told of them. Adds
    to ``squares`` (C,), and to ``distances`` (2, C) to the weighted and to the plain mean.
    """
    c, equal, ways = 0, np.full(1, 1 / len(weights)), np.empty((ROWS, 2))
    sums[:] = 0
    while c < len(weights):
        here, there = at + c * step, before + c * step
        if len(weights) - c >= ROWS:
            rows = ROWS
            look_at_many(numbers, here, step, weights, c, equal, width, sums, squares)
            look_again_at_many(numbers, there, step, width, told, ways)
        elif len(weights) - c >= FEWER:
            rows = FEWER
            look_at_fewer(numbers, here, step, weights, c, equal, width, sums, squares)
            look_again_at_fewer(numbers, there, step, width, told, ways)
        else:
            rows = 1
            look_at_one(numbers, here, step, weights, c, equal, width, sums, squares)
            look_again_at_one(numbers, there, step, width, told, ways)
        for k in range(rows):
            to_weighted = ways[k, 0]
            to_plain = to_weighted - 2 * ways[k, 1] + apart
            # what is too large for float32 or not a number fails here, too
            if not (to_weighted > TINY and FEW_DIGITS * to_weighted < to_plain < np.inf):
                row = there + k * step
                to_weighted, to_plain = distances_of(numbers[row : row + width], means)
            distances[0, c + k] += to_weighted
            distances[1, c + k] += to_plain
        c += rows


@native
def look_at_blocks(numbers: Any, step: int, weights: Any, first: int, width: int, total: Any, found: Any) -> None:
    """`look` at columns that divide into blocks of a width that divides into lines."""
    clients, each, apart = len(weights), 1 / weights.sum(), 0.0
    squares, distances, nowhere = found[0], found[1:], np.empty((2, clients))
    sums, means, told = room(2 * BLOCK).reshape((2, BLOCK)), np.zeros((2, BLOCK)), np.zeros((3, BLOCK), np.float32)
    before = first
    for at in range(first, first + len(total), width):
        # there is no block before the first one
        into = distances if at > first else nowhere
        look_at_block(numbers, at, before, step, weights, width, sums, means, told, apart, squares, into)
        apart, length = 0.0, 0.0
        for i in range(width):
            total[at - first + i] = sums[0, i]
            mean, plain = sums[0, i] * each, sums[1, i]
            length += mean**2
            apart += (plain - mean) ** 2
            means[0, i], means[1, i] = mean, plain
            told[0, i], told[2, i] = mean, plain - mean
            told[1, i] = mean - told[0, i]
        squares[clients] += length
        before = at
    # and none behind the last
    look_at_block(numbers, before, before, step, weights, width, sums, means, told, apart, nowhere[0], distances)


@native
def look(numbers: Any, step: int, weights: Any, first: int, total: Any, found: Any) -> None:
    """The weighted sum of the columns from ``first``, and adds to ``found`` (3, C + 1) what they add to a `Spread`.

    Row ``c`` begins at ``numbers[c * step]``. ``found`` tells each row's square length and its square distances to the weighted
    and the plain mean; its last column begins with the square length of the weighted mean.
    """
    blocks, lines = len(total) // BLOCK * BLOCK, len(total) // LINE * LINE
    if blocks:
        look_at_blocks(numbers, step, weights, first, BLOCK, total[:blocks], found)
    if lines > blocks:
        look_at_blocks(numbers, step, weights, first + blocks, lines - blocks, total[blocks:lines], found)
    if len(total) > lines:
        rest, sums = padded(numbers, step, len(weights), first + lines, len(total) - lines), np.empty(LINE, total.dtype)
        look_at_blocks(rest, LINE, weights, 0, LINE, sums, found)
        total[lines:] = sums[: len(total) - lines]
