"""Inequality of the clients' numbers of rows."""

import numpy as np
from numpy.typing import NDArray


def size_distance(sizes: NDArray[np.int64]) -> float:
    """Return the total variation between the clients' shares of the rows and equal shares, in 0..1 - 1/clients (Hoover's index).

    It is the share of all rows to move until all clients hold equally many.
    """
    return float(np.abs(sizes / sizes.sum() - 1 / len(sizes)).sum() / 2)


def size_measures(sizes: NDArray[np.int64]) -> dict[str, float]:
    """Return ``Gini`` in 0..1 - 1/clients, ``variation`` (standard deviation over mean), ``effective clients`` n^2 / sum n_k^2,
    and ``ratio`` of the largest to the smallest, infinite with an empty client.
    """
    n = np.sort(sizes.astype(float))
    count, total = len(n), n.sum()
    return {
        "Gini": float(2 * ((2 * np.arange(1, count + 1) - count - 1) @ n) / (2 * count * total)),
        "variation": float(n.std() / n.mean()),
        "effective clients": float(total**2 / (n**2).sum()),
        "ratio": float(n[-1] / n[0]) if n[0] else float("inf"),
    }
