"""Sums over rows (C, P) of float32 in float64 at the speed of memory: loops that numba compiles for this processor.

Only `fedskew.core.vectors` asks for them.

A stripe of columns is one thread's work, and how the columns are cut depends on the shape alone: so does every rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from fedskew.core.compiled.add import add_up
from fedskew.core.compiled.look import BLOCK, look

Floats = NDArray[np.float64]
Rows = NDArray[np.float32]

TURNS = 32
"""Stripes, so that threads can share them evenly."""


def in_turns(act: Callable[[slice], None], columns: int, threads: int) -> None:
    """Let threads share the stripes of columns."""
    size = -(-columns // (TURNS * BLOCK)) * BLOCK
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(act, (slice(start, min(start + size, columns)) for start in range(0, columns, size))))


def in_one_piece(rows: Rows) -> tuple[Rows, int]:
    """The numbers from the first to the last one, and how many lie between the beginnings of two rows."""
    step = rows.strides[0] // rows.itemsize
    return as_strided(rows, ((len(rows) - 1) * step + rows.shape[1],), (rows.itemsize,), writeable=False), step


def weighted_sum(weights: Floats, rows: Rows, total: Rows | Floats, threads: int) -> None:
    """Let ``total`` (P,) be ``weights @ rows``, added up in float64."""
    numbers, step = in_one_piece(rows)
    in_turns(lambda at: add_up(numbers, step, weights, at.start, total[at]), len(total), threads)


def spread(weights: Floats, rows: Rows, total: Rows, threads: int) -> Floats:
    """Let ``total`` (P,) be ``weights @ rows``; (3, C + 1) of each row: square length, square distances to both means.

    The weighted mean's distances come before the plain one's. The last column begins with the square length of the weighted mean.
    """
    numbers, step = in_one_piece(rows)
    found: dict[int, Floats] = {}

    def turn(at: slice) -> None:
        found[at.start] = np.zeros((3, len(rows) + 1))
        look(numbers, step, weights, at.start, total[at], found[at.start])

    in_turns(turn, len(total), threads)
    return sum((found[start] for start in sorted(found)), np.zeros((3, len(rows) + 1)))
