"""Random samples of rows: equally many of each group if possible, for arrays and streams, or whole units such as persons."""

from collections import Counter
from collections.abc import Sequence

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


def whole_units(
    unit: Ints, client: Ints, chance: NDArray[np.generic], quotas: Sequence[tuple[Ints, Ints]]
) -> NDArray[np.bool_]:
    """Return True for the rows (n,) of some units, such as persons. A unit gives all of its rows or none.

    ``quotas`` holds divisions of the rows into parts, the finest first: the part (n,) of each row, and how many rows each part
    should give. For each division, the units come in the order of their first row's ``chance`` (n,). A unit is taken if this
    brings the division nearer to its numbers of rows, and no coarser one farther away. If each unit has one row, the first rows
    of each part are taken. A unit below 0 is never taken, nor one without which a ``client`` (n,) has no rows left.
    """
    order = np.argsort(unit, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(unit[order])) + 1)
    members = sorted((rows for rows in members if unit[rows[0]] >= 0), key=lambda rows: chance[rows[0]])
    counts = [[Counter(part[rows].tolist()) for part in (client, *(of for of, _ in quotas))] for rows in members]
    left, *short = (numbers.tolist() for numbers in (np.bincount(client), *(wanted for _, wanted in quotas)))
    taken = np.zeros(len(unit), dtype=np.bool_)
    for level in range(len(quotas)):
        for rows, (own, *parts) in zip(members, counts, strict=True):
            if taken[rows[0]] or any(left[k] <= n for k, n in own.items()):
                continue
            coarser = zip(short[level:], parts[level:], strict=True)
            nearer = [sum(abs(need[k]) - abs(need[k] - n) for k, n in part.items()) for need, part in coarser]
            if nearer[0] > 0 and min(nearer) >= 0:
                taken[rows] = True
                for need, part in zip((left, *short), (own, *parts), strict=True):
                    for k, n in part.items():
                        need[k] -= n
    return taken
