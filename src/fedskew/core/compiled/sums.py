"""Sums over rows (C, P) of float32 in float64 at the speed of memory: loops that numba compiles for this processor.

Only `fedskew.core.vectors` asks for them.

A stripe of columns is one thread's work, and how the columns are cut depends on the shape alone: so does every rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rows = NDArray[np.float32]
F = TypeVar("F", bound=Callable[..., Any])

BLOCK = 512
"""Columns between two looks at the same rows: of 100 clients a fifth of a megabyte, which stays in the second cache."""
STRIPE = 1 << 16
"""Columns of one thread's turn at most; so many sums of float64 still stay in cache."""
TURNS = 16
"""Stripes at least, so that threads can share them evenly."""
LINE = 16
"""Numbers of float32 that memory hands over at once."""

# additions in another order, so that they go side by side; what is not finite is kept
native: Callable[[F], F] = njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})


@native
def row(numbers: Any, step: int, c: int, first: int, width: int) -> Any:
    return numbers[c * step + first : c * step + first + width]


@intrinsic  # type: ignore[untyped-decorator]
def fetch(context: Any, numbers: Any, place: Any) -> Any:
    """Ask memory for the line that holds ``numbers[place]``, without waiting for it."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        address = builder.bitcast(builder.gep(array.data, [arguments[1]]), cgutils.voidptr_t)
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        call = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # to read; to be kept in all caches; data
        builder.call(call, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(numbers, types.intp), emit


@native
def add_up(numbers: Any, step: int, weights: Any, first: int, total: Any) -> None:
    """The weighted sum of the columns from ``first``. Four rows at a time: the sums are read and written a quarter as often."""
    sums, fours = np.zeros(len(total)), len(weights) // 4 * 4
    for c in range(0, fours, 4):
        p, q, r, s = weights[c], weights[c + 1], weights[c + 2], weights[c + 3]
        a, b = row(numbers, step, c, first, len(sums)), row(numbers, step, c + 1, first, len(sums))
        d, e = row(numbers, step, c + 2, first, len(sums)), row(numbers, step, c + 3, first, len(sums))
        for j in range(len(sums)):
            sums[j] += p * np.float64(a[j]) + q * np.float64(b[j]) + r * np.float64(d[j]) + s * np.float64(e[j])
    for c in range(fours, len(weights)):
        p, a = weights[c], row(numbers, step, c, first, len(sums))
        for j in range(len(sums)):
            sums[j] += p * np.float64(a[j])
    for j in range(len(sums)):
        total[j] = sums[j]


@native
def look(numbers: Any, step: int, weights: Any, first: int, total: Any, found: Any) -> None:
    """The same sum, and adds to ``found`` (3, C + 1) these columns' part of the squares and square distances of a `Spread`.

    A block of columns is looked at twice, the second time from cache, while the next one is on its way.
    """
    mean_room, between_room, whole = np.empty(BLOCK), np.empty(BLOCK), weights.sum()
    fours = len(weights) // 4 * 4
    for start in range(0, len(total), BLOCK):
        width = min(BLOCK, len(total) - start)
        mean, between = mean_room[:width], between_room[:width]
        mean[:] = 0
        between[:] = 0
        for c in range(0, fours, 4):
            p, q, r, s = weights[c], weights[c + 1], weights[c + 2], weights[c + 3]
            a, b = row(numbers, step, c, first + start, width), row(numbers, step, c + 1, first + start, width)
            d, e = row(numbers, step, c + 2, first + start, width), row(numbers, step, c + 3, first + start, width)
            a2, b2, d2, e2 = 0.0, 0.0, 0.0, 0.0
            for j in range(width):
                w, x, y, z = np.float64(a[j]), np.float64(b[j]), np.float64(d[j]), np.float64(e[j])
                mean[j] += p * w + q * x + r * y + s * z
                between[j] += w + x + y + z
                a2, b2, d2, e2 = a2 + w * w, b2 + x * x, d2 + y * y, e2 + z * z
            found[0, c] += a2
            found[0, c + 1] += b2
            found[0, c + 2] += d2
            found[0, c + 3] += e2
        for c in range(fours, len(weights)):
            p, part, square = weights[c], row(numbers, step, c, first + start, width), 0.0
            for j in range(width):
                x = np.float64(part[j])
                mean[j] += p * x
                between[j] += x
                square += x * x
            found[0, c] += square
        apart, length = 0.0, 0.0
        for j in range(width):
            total[start + j] = mean[j]
            mean[j] /= whole
            length += mean[j] * mean[j]
            between[j] = between[j] / len(weights) - mean[j]
            apart += between[j] * between[j]
        found[0, len(weights)] += length
        for c in range(len(weights)):
            part, square, along = row(numbers, step, c, first + start, width), 0.0, 0.0
            for j in range(start + width, min(start + width + BLOCK, len(total)), LINE):
                fetch(numbers, c * step + first + j)
            for j in range(width):
                x = np.float64(part[j]) - mean[j]
                square += x * x
                along += x * between[j]
            found[1, c] += square
            found[2, c] += square - 2 * along + apart


def in_turns(act: Callable[[slice], None], columns: int, threads: int) -> None:
    """Let threads share the stripes of columns."""
    size = min(STRIPE, -(-columns // (TURNS * BLOCK)) * BLOCK)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(act, (slice(start, min(start + size, columns)) for start in range(0, columns, size))))


def in_one_piece(rows: Rows) -> tuple[Rows, int]:
    """The numbers from the first to the last one, and how many lie between the beginnings of two rows."""
    step = rows.strides[0] // rows.itemsize
    return as_strided(rows, ((len(rows) - 1) * step + rows.shape[1],), (rows.itemsize,), writeable=False), step


def weighted_sum(weights: Floats, rows: Rows, threads: int) -> Rows:
    """``weights @ rows`` (P,), added up in float64."""
    total = np.empty(rows.shape[1], dtype=np.float32)
    numbers, step = in_one_piece(rows)
    in_turns(lambda at: add_up(numbers, step, weights, at.start, total[at]), len(total), threads)
    return total


def spread(weights: Floats, rows: Rows, threads: int) -> tuple[Rows, Floats]:
    """``weights @ rows`` (P,), and (3, C + 1) of each row: square length, square distances to the weighted and the plain mean.

    The last column begins with the square length of the weighted mean.
    """
    total = np.empty(rows.shape[1], dtype=np.float32)
    numbers, step = in_one_piece(rows)
    found: dict[int, Floats] = {}

    def turn(at: slice) -> None:
        found[at.start] = np.zeros((3, len(rows) + 1))
        look(numbers, step, weights, at.start, total[at], found[at.start])

    in_turns(turn, len(total), threads)
    return total, sum((found[start] for start in sorted(found)), np.zeros((3, len(rows) + 1)))
