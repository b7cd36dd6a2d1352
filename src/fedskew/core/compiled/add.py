"""The weighted sum of rows of float32, added up in float64 and nothing else. Only `fedskew.core.compiled.sums` asks for it."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic

from fedskew.core.compiled.instructions import LINE, ROWS, Arrays, kernel, native, padded, room, rows_of

WIDE = 4096
"""Columns at a time, whose sums of float64 stay in the first cache."""


def sum_of(rows: int) -> Any:
    """How so many rows are added up: ``(numbers, at, step, weights, c, width, sums)``.

    The first row begins at ``numbers[at]``, the next one ``step`` behind; the first one's weight is ``weights[c]``. Their
    weighted sum is added to ``sums`` (W,). The width divides into lines.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def added(typing: Any, numbers: Any, at: Any, step: Any, weights: Any, c: Any, width: Any, sums: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            with kernel(context, builder, signature.args, arguments) as (inside, given):
                data, at, step, weights, c, width, sums = given
                go, x = Arrays(inside), rows_of(inside, data, at, step, rows)
                w = rows_of(inside, weights, c, c.type(1), rows)
                with go.lines(width, x) as places:
                    for i in places:
                        total = go.load(sums, i)
                        for k in range(rows):
                            total = inside.fadd(total, inside.fmul(go.everywhere(w[k]), go.load(x[k], i)))
                        go.store(sums, i, total)
            return context.get_dummy_value()

        place = types.intp
        return types.void(numbers, place, place, weights, place, place, sums), emit

    return added


add_many, add_one = sum_of(ROWS), sum_of(1)


@native
def add_block(numbers: Any, at: int, step: int, weights: Any, width: int, sums: Any) -> None:
    """Add to ``sums`` (W,) the weighted sum of a block of all rows, whose width divides into lines."""
    c = 0
    while c < len(weights):
        if len(weights) - c >= ROWS:
            add_many(numbers, at + c * step, step, weights, c, width, sums)
            c += ROWS
        else:
            add_one(numbers, at + c * step, step, weights, c, width, sums)
            c += 1


@native
def add_up(numbers: Any, step: int, weights: Any, first: int, total: Any) -> None:
    """The weighted sum of the columns from ``first``."""
    sums, lines = room(WIDE), len(total) // LINE * LINE
    for start in range(0, lines, WIDE):
        width = min(WIDE, lines - start)
        sums[:] = 0
        add_block(numbers, first + start, step, weights, width, sums)
        total[start : start + width] = sums[:width]
    if len(total) > lines:
        sums[:] = 0
        add_block(padded(numbers, step, len(weights), first + lines, len(total) - lines), 0, LINE, weights, LINE, sums)
        total[lines:] = sums[: len(total) - lines]
