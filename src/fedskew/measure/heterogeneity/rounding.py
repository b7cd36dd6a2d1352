"""Counts of at least ``fewest`` rows, or none: smaller ones are rounded at random, without bias, and each row's sum stays."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.measure.heterogeneity.rows import Ints


def rounded(counts: NDArray[Any], fewest: int, rng: np.random.Generator) -> Ints:
    """Return counts (..., bins) whose cells are 0 or at least ``fewest``, with the given ones as expected values.

    Rows of small cells move among them, near neighbours first, or to and from a large cell if they are too few. A row whose sum is
    below ``fewest`` becomes 0.
    """
    made = np.array(counts, dtype=np.int64)
    if fewest < 2:
        return made
    flat = made.reshape(-1, made.shape[-1])
    small = (flat > 0) & (flat < fewest)
    for at in np.flatnonzero(small.any(1)).tolist():
        flat[at] = rounded_row(flat[at], small[at], fewest, rng)
    return made


def rounded_row(row: Ints, small: NDArray[np.bool_], fewest: int, rng: np.random.Generator) -> Ints:
    """Return one row of counts with some small cells."""
    made, cells = row.copy(), np.flatnonzero(small)
    total = int(row[cells].sum())
    if row.sum() < fewest:
        return np.zeros_like(row)
    made[cells] = 0
    if total < fewest:
        large = int(row.argmax())
        chosen = int(rng.choice(cells, p=row[cells] / total))
        if row[large] + total < 2 * fewest:
            # all rows go to one of the two cells
            made[large] = 0
            made[chosen if rng.random() * (row[large] + total) < total else large] = row[large] + total
        elif rng.random() * fewest < total:
            made[chosen], made[large] = fewest, row[large] + total - fewest
        else:
            made[large] += total
        return made
    number = total // fewest
    # one cell for each equal share of the rows, in the order of the cells
    places = (np.arange(number) + rng.random()) * (total / number)
    chosen_cells = cells[np.searchsorted(np.cumsum(row[cells]), places, side="right")]
    made[chosen_cells] = fewest
    np.add.at(made, rng.permutation(chosen_cells)[np.arange(total - fewest * number) % number], 1)
    return made


def rounded_pairs(hits: Ints, rows: Ints, fewest: int, rng: np.random.Generator) -> Ints:
    """Return ``hits`` of ``rows`` as `rounded` gives them for pairs of hits and misses, all at once."""
    if fewest < 2:
        return hits
    few = np.minimum(hits, rows - hits)
    draw = rng.random(hits.shape)
    whole = np.where(draw * rows < hits, rows, 0)
    near = np.where(draw * fewest < few, fewest, 0)
    made = np.where(few == hits, near, rows - near)
    made = np.where(rows < 2 * fewest, whole, made)
    return np.where(rows < fewest, 0, np.where((few == 0) | (few >= fewest), hits, made))
