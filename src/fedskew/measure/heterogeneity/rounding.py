"""Round counts so that each is 0 or at least ``fewest``. Rounding is random and unbiased, and keeps the sum of each row."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.measure.heterogeneity.rows import Ints


def rounded(counts: NDArray[Any], fewest: int, rng: np.random.Generator) -> Ints:
    """Round counts (..., bins): each cell becomes 0 or at least ``fewest``. The expected value of each cell is its count.

    Counts of small cells move to other small cells, near ones first. If all small cells together are below ``fewest``, counts
    move to or from a large cell. If the sum of a row is below ``fewest``, all its cells become 0.
    """
    result = np.array(counts, dtype=np.int64, order="C")  # else the rows below would be copies
    if fewest < 2:
        return result
    flat = result.reshape(-1, result.shape[-1])
    small = (flat > 0) & (flat < fewest)
    for at in np.flatnonzero(small.any(1)).tolist():
        flat[at] = rounded_row(flat[at], small[at], fewest, rng)
    return result


def rounded_row(row: Ints, small: NDArray[np.bool_], fewest: int, rng: np.random.Generator) -> Ints:
    """Round one row (bins,), as `rounded` does. ``small`` marks the cells from 1 to ``fewest`` - 1."""
    result, cells = row.copy(), np.flatnonzero(small)
    total = int(row[cells].sum())
    if row.sum() < fewest:
        return np.zeros_like(row)
    result[cells] = 0
    if total < fewest:
        # no small cell can have `fewest` without counts of a large cell; only one of them may get some
        large = int(row.argmax())
        cell = int(rng.choice(cells, p=row[cells] / total))
        both = row[large] + total
        if both < 2 * fewest:
            result[large] = 0
            result[cell if rng.random() * both < total else large] = both
        elif rng.random() * fewest < total:
            result[cell], result[large] = fewest, both - fewest
        else:
            result[large] = both
        return result
    # divide the total into equal parts, in the order of the cells; each part goes to a cell in its range
    parts = total // fewest
    places = (np.arange(parts) + rng.random()) * (total / parts)
    filled = cells[np.searchsorted(np.cumsum(row[cells]), places, side="right")]
    result[filled] = fewest
    # the rest is less than `fewest`; its counts go one by one to the cells in random order
    rest = total - fewest * parts
    np.add.at(result, rng.permutation(filled)[np.arange(rest) % parts], 1)
    return result


def rounded_pairs(hits: Ints, rows: Ints, fewest: int, rng: np.random.Generator) -> Ints:
    """Round ``hits`` of ``rows``, as `rounded` does for pairs (hits, misses), for all pairs at once."""
    if fewest < 2:
        return hits
    few = np.minimum(hits, rows - hits)
    draw = rng.random(hits.shape)
    whole = np.where(draw * rows < hits, rows, 0)
    near = np.where(draw * fewest < few, fewest, 0)
    result = np.where(few == hits, near, rows - near)
    result = np.where(rows < 2 * fewest, whole, result)
    return np.where(rows < fewest, 0, np.where((few == 0) | (few >= fewest), hits, result))


def rounded_alone(counts: NDArray[Any], fewest: int, rng: np.random.Generator) -> Ints:
    """Round each count by itself: to 0 or ``fewest``, if it is smaller. The expected value of each is its count."""
    up = rng.random(counts.shape) * fewest < counts
    return np.where((counts > 0) & (counts < fewest), np.where(up, fewest, 0), counts).astype(np.int64)


def rounded_by_sites(
    tables: NDArray[Any],
    fewest: Ints,
    rng: np.random.Generator,
    rounding: Callable[[NDArray[Any], int, np.random.Generator], Ints] = rounded,
) -> Ints:
    """Round each site's table of ``tables`` (sites, ...) as the site with ``fewest`` (sites,) does it."""
    return np.stack([rounding(table, few, rng) for table, few in zip(tables, fewest.tolist(), strict=True)])
