"""A fair random sample of groups of unequal size, also from a stream."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def level(sizes: Ints, most: int) -> int:
    """The greatest number a group so that all groups together keep at most ``most`` rows; at least 1.

    It never rises while groups grow or new ones come, so that rows dropped early would have been dropped in the end.
    """
    if sizes.sum() <= most:
        return int(sizes.max(initial=1))
    ascending = np.sort(sizes)
    # after the i smallest groups, whole, the others share what is left
    left = most - np.concatenate([[0], np.cumsum(ascending)[:-1]])
    shares = left // np.arange(len(ascending), 0, -1)
    return max(1, int(shares[np.argmax(shares < ascending)]))


def fair_sample(groups: Ints, priority: NDArray[np.generic], each: int) -> Ints:
    """Of each group the ``each`` rows of the smallest priority; indices in ascending order."""
    order = np.lexsort((priority, groups))
    sizes = np.bincount(groups)
    starts = np.cumsum(sizes) - sizes
    rank = np.arange(len(groups)) - starts[groups[order]]
    return np.sort(order[rank < each])
