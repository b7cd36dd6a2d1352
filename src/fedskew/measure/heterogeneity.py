"""How different the clients' data are, before any training."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def label_distance(counts: NDArray[np.int64]) -> float:
    """Total variation between each client's label frequencies and everybody's, averaged with the clients' sizes; in 0..1.

    ``counts`` is (clients, classes). 0: identical; one class a client, balanced: 1 - 1/classes.
    """
    sizes = counts.sum(1)
    p_k = counts / np.maximum(sizes, 1)[:, None]
    p = counts.sum(0) / counts.sum()
    return float((sizes / sizes.sum()) @ (np.abs(p_k - p).sum(1) / 2))


def label_distance_by_chance(counts: NDArray[np.int64]) -> float:
    """What `label_distance` is expected to be if rows were dealt at random to clients of these sizes.

    E[TV_k] ~ sqrt(1 - n_k/n) sum_c sqrt(p (1 - p) / (2 pi n_k)): clients are cut without replacement from the pool.
    """
    sizes = counts.sum(1).astype(float)
    n = sizes.sum()
    p = counts.sum(0) / n
    spread = np.sqrt(p * (1 - p)).sum()
    held = sizes > 0
    expected = np.zeros(len(sizes))
    expected[held] = np.sqrt(1 - sizes[held] / n) * spread / np.sqrt(2 * np.pi * sizes[held])
    return float((sizes / n) @ expected)
