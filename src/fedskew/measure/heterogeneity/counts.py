"""Tables of counts: how far clients' label frequencies, (clients, classes), and numbers of rows differ."""

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


def label_distance(counts: NDArray[np.int64]) -> float:
    """Return the mean over clients, weighted by rows, of the total variation from the pooled label frequencies (0..1).

    It is 0 if all clients have equal frequencies, and 1 - 1/classes if each client has one class and classes are balanced.
    """
    sizes = counts.sum(1)
    p_k = counts / np.maximum(sizes, 1)[:, None]
    p = counts.sum(0) / counts.sum()
    return float((sizes / sizes.sum()) @ (np.abs(p_k - p).sum(1) / 2))


def label_distance_by_chance(counts: NDArray[np.int64]) -> float:
    """Return the expected `label_distance` if rows are dealt at random to clients of these sizes.

    E[TV_k] ~ sqrt(1 - n_k/n) sum_c sqrt(p (1 - p) / (2 pi n_k)), for draws without replacement.
    """
    sizes = counts.sum(1).astype(float)
    n = sizes.sum()
    p = counts.sum(0) / n
    deviation = np.sqrt(p * (1 - p)).sum()
    held = sizes > 0
    expected = np.zeros(len(sizes))
    expected[held] = np.sqrt(1 - sizes[held] / n) * deviation / np.sqrt(2 * np.pi * sizes[held])
    return float((sizes / n) @ expected)


def label_measures(counts: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    """Compare each client's frequencies with the pooled ones; each result is (clients,). A client without rows has distance 0.

    ``total variation`` in 0..1; ``L1`` twice that, the earth mover's distance of Zhao et al. 2018; ``Jensen-Shannon`` divergence
    and ``Hellinger`` distance in 0..1; ``Kullback-Leibler`` divergence in bits, whose weighted mean is the mutual information of
    label and client, at most log2(classes); ``effective classes`` 2^entropy and ``classes held``, both in 1..classes.
    """
    sizes = counts.sum(1, keepdims=True)
    held = sizes[:, 0] > 0
    pooled = counts.sum(0) / counts.sum()
    own = np.where(sizes > 0, counts / np.maximum(sizes, 1), pooled)
    variation = np.abs(own - pooled).sum(1) / 2
    return {
        "total variation": variation,
        "L1": 2 * variation,
        "Jensen-Shannon": np.clip(entropy((own + pooled) / 2) - entropy(own) / 2 - entropy(pooled) / 2, 0, 1),
        "Hellinger": np.sqrt(np.clip(1 - np.sqrt(own * pooled).sum(1), 0, 1)),
        "Kullback-Leibler": np.maximum(relative_entropy(own, pooled), 0),
        "effective classes": np.where(held, 2 ** entropy(own), 0),
        "classes held": (counts > 0).sum(1).astype(float),
    }


def entropy(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the entropy of the last axis, in bits."""
    return -np.where(p > 0, p * np.log2(np.where(p > 0, p, 1)), 0).sum(-1)


def relative_entropy(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the relative entropy of ``p`` to ``q`` over the last axis, in bits; ``q`` is positive wherever ``p`` is."""
    both = p > 0
    return np.where(both, p * np.log2(np.where(both, p, 1) / np.where(both, np.broadcast_to(q, p.shape), 1)), 0).sum(-1)


def pairwise_variation(counts: NDArray[np.int64]) -> float:
    """Return the mean total variation over pairs of clients with rows, in 0..1; 0 for fewer than two clients."""
    sizes = counts.sum(1)
    own = counts[sizes > 0] / sizes[sizes > 0, None]
    if len(own) < 2:
        return 0.0
    # the sum of |a - b| over all pairs follows from sorted values, without a table (clients, clients)
    ranked = np.sort(own, axis=0)
    factors = 2 * np.arange(len(own)) - len(own) + 1
    return float((factors @ ranked).sum() / (len(own) * (len(own) - 1)))


def dirichlet_alpha(counts: NDArray[np.int64]) -> float:
    """Estimate the concentration alpha of a symmetric Dirichlet from the clients' mean square distance to uniform.

    For plain draws of clients, E sum_c (p_c - 1/C)^2 = (1 - 1/C) / (C alpha + 1). For `label-dirichlet`, which normalises columns
    after the draw, the estimate is too large. Infinite for uniform clients, 0 for one class a client, NaN for a single class.
    """
    own = counts[counts.sum(1) > 0]
    own = own / own.sum(1, keepdims=True)
    classes = own.shape[1]
    if classes < 2:
        return float("nan")
    square = ((own - 1 / classes) ** 2).sum(1).mean()
    return float("inf") if square == 0 else float(max(((1 - 1 / classes) / square - 1) / classes, 0))
