"""Fair random samples: equally many rows of each group if possible. They work for arrays and streams."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def level(sizes: Ints, most: int) -> int:
    """Return the largest limit of rows per group for which all groups together have at most ``most`` rows; at least 1.

    In a stream the limit never rises, because groups only grow. A row that is dropped early would thus also be dropped at the end.
    """
    if sizes.sum() <= most:
        return int(sizes.max(initial=1))
    ascending = np.sort(sizes)
    # if the i smallest groups keep all rows, the other groups share the rest
    left = most - np.concatenate([[0], np.cumsum(ascending)[:-1]])
    shares = left // np.arange(len(ascending), 0, -1)
    return max(1, int(shares[np.argmax(shares < ascending)]))


def fair_sample(groups: Ints, priority: NDArray[np.generic], each: int) -> Ints:
    """Return the indices, ascending, of the ``each`` rows with the smallest priority in each group."""
    order = np.lexsort((priority, groups))
    sizes = np.bincount(groups)
    starts = np.cumsum(sizes) - sizes
    rank = np.arange(len(groups)) - starts[groups[order]]
    return np.sort(order[rank < each])
