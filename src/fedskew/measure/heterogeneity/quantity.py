"""Inequality of the clients' numbers of rows."""

import numpy as np
from numpy.typing import NDArray


def size_distance(sizes: NDArray[np.int64]) -> float:
    """Return Hoover's index, in 0..1 - 1/clients: the share of all rows that must move until all clients hold equally many.

    It is the total variation between the clients' shares of the rows and equal shares.
    """
    return float(np.abs(sizes / sizes.sum() - 1 / len(sizes)).sum() / 2)


def size_measures(sizes: NDArray[np.int64]) -> dict[str, float]:
    """Return ``Gini`` (0..1 - 1/clients), ``variation`` (standard deviation over mean), ``effective clients`` n^2 / sum n_k^2,
    and ``ratio``: largest over smallest client, infinite if a client is empty.
    """
    n = np.sort(sizes.astype(float))
    count, total = len(n), n.sum()
    return {
        "Gini": float(2 * ((2 * np.arange(1, count + 1) - count - 1) @ n) / (2 * count * total)),
        "variation": float(n.std() / n.mean()),
        "effective clients": float(total**2 / (n**2).sum()),
        "ratio": float(n[-1] / n[0]) if n[0] else float("inf"),
    }
