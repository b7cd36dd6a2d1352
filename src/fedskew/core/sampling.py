"""A fair random sample of groups of unequal size, for an array or a stream."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def level(sizes: Ints, most: int) -> int:
    """The largest number of rows per group with which all groups together keep at most ``most`` rows; at least 1.

    It never rises while groups grow or new groups arrive. So a row that is dropped early would also be dropped at the end.
    """
    if sizes.sum() <= most:
        return int(sizes.max(initial=1))
    ascending = np.sort(sizes)
    # the i smallest groups keep all rows; the other groups share the rest
    left = most - np.concatenate([[0], np.cumsum(ascending)[:-1]])
    shares = left // np.arange(len(ascending), 0, -1)
    return max(1, int(shares[np.argmax(shares < ascending)]))


def fair_sample(groups: Ints, priority: NDArray[np.generic], each: int) -> Ints:
    """Indices, ascending, of the ``each`` rows with the smallest priority in each group."""
    order = np.lexsort((priority, groups))
    sizes = np.bincount(groups)
    starts = np.cumsum(sizes) - sizes
    rank = np.arange(len(groups)) - starts[groups[order]]
    return np.sort(order[rank < each])
