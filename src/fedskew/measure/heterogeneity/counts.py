"""Tables of counts: how far clients' label frequencies, (clients, classes), and numbers of rows differ."""

import math

import numpy as np

from fedskew.measure.heterogeneity.rows import Floats, Ints


def size_distance(sizes: Ints) -> float:
    """Return Hoover's index, in 0..1 - 1/clients: the share of all rows that must move until all clients hold equally many.

    It is the total variation between the clients' shares of the rows and equal shares.
    """
    return float(np.abs(sizes / sizes.sum() - 1 / len(sizes)).sum() / 2)


def size_measures(sizes: Ints) -> dict[str, float]:
    """Return ``Gini`` (0..1 - 1/clients), ``variation`` (standard deviation over mean), ``effective clients`` n^2 / sum n_k^2,
    and ``ratio``: largest over smallest client, infinite if a client is empty.
    """
    n = np.sort(sizes.astype(float))
    count, total = len(n), n.sum()
    return {
        "Gini": float(2 * ((2 * np.arange(1, count + 1) - count - 1) @ n) / (2 * count * total)),
        "variation": float(n.std() / n.mean()),
        "effective clients": float(total**2 / (n**2).sum()),
        "ratio": float(n[-1] / n[0]) if n[0] else math.inf,
    }


def frequencies(counts: Ints) -> Floats:
    """Return each client's label frequencies (clients, classes). A client without rows has the pooled ones."""
    sizes = counts.sum(1, keepdims=True)
    return np.where(sizes > 0, counts / np.maximum(sizes, 1), counts.sum(0) / counts.sum())


def label_distances(counts: Ints) -> Floats:
    """Return the total variation (clients,), in 0..1, of each client's label frequencies from the pooled ones."""
    return np.asarray(np.abs(frequencies(counts) - counts.sum(0) / counts.sum()).sum(1) / 2)


def label_distance(counts: Ints) -> float:
    """Return the mean of `label_distances` over clients, weighted by rows (0..1).

    It is 0 if all clients have equal frequencies, and 1 - 1/classes if each client has one class and classes are balanced.
    """
    return float((counts.sum(1) / counts.sum()) @ label_distances(counts))


def label_distance_by_chance(counts: Ints) -> float:
    """Return the expected `label_distance` if rows are dealt at random to clients of these sizes.

    A client then draws n_k rows of a class without replacement. With v = floor(mean) + 1, the mean absolute deviation of such a
    count is 2 v (n - n_c - n_k + v) / n P(v) (Diaconis and Zabell 1991).
    """
    sizes, clients = np.unique(counts.sum(1), return_counts=True)
    n, drawn, rows = counts.sum(), sizes[:, None], counts.sum(0)
    v = drawn * rows // n + 1
    parts = v, rows - v, drawn - v, n - rows - drawn + v
    margins = sum(map(log_factorial, (rows, n - rows, drawn, n - drawn))) - log_factorial(n)
    deviations = 2 * v * parts[3] / n * np.exp(margins - sum(map(log_factorial, parts)))
    return float(clients @ deviations.sum(1) / (2 * n))


def log_factorial(k: Ints) -> Floats:
    """Return log k! (...); infinite for k = -1. Python's function, because SciPy takes long to import."""
    return np.vectorize(lambda each: math.lgamma(each + 1) if each >= 0 else math.inf, otypes=[float])(k)


def label_measures(counts: Ints) -> dict[str, Floats]:
    """Compare each client's frequencies with the pooled ones; each result is (clients,). A client without rows has distance 0.

    ``total variation`` in 0..1; ``L1`` twice that, the earth mover's distance of Zhao et al. 2018; ``Jensen-Shannon`` divergence
    and ``Hellinger`` distance in 0..1; ``Kullback-Leibler`` divergence in bits, whose weighted mean is the mutual information of
    label and client, at most log2(classes); ``effective classes`` 2^entropy and ``classes held``, both in 1..classes.
    """
    from scipy.special import rel_entr

    pooled, mine, variation = counts.sum(0) / counts.sum(), frequencies(counts), label_distances(counts)
    return {
        "total variation": variation,
        "L1": 2 * variation,
        "Jensen-Shannon": np.clip(entropy((mine + pooled) / 2) - entropy(mine) / 2 - entropy(pooled) / 2, 0, 1),
        "Hellinger": np.sqrt(np.clip(1 - np.sqrt(mine * pooled).sum(1), 0, 1)),
        "Kullback-Leibler": np.maximum(rel_entr(mine, pooled).sum(1) / math.log(2), 0),
        "effective classes": np.where(counts.sum(1) > 0, 2 ** entropy(mine), 0),
        "classes held": (counts > 0).sum(1).astype(float),
    }


def entropy(p: Floats) -> Floats:
    """Return the entropy of the last axis, in bits."""
    from scipy.special import entr

    return np.asarray(entr(p).sum(-1) / math.log(2))


def pairwise_variation(counts: Ints) -> float:
    """Return the mean total variation over pairs of clients with rows, in 0..1; 0 for fewer than two clients."""
    ranked = np.sort(frequencies(counts[counts.sum(1) > 0]), axis=0)
    clients = len(ranked)
    if clients < 2:
        return 0.0
    # the sum of |a - b| over all pairs follows from sorted values, without a table (clients, clients)
    return float(((2 * np.arange(clients) - clients + 1) @ ranked).sum() / (clients * (clients - 1)))


def dirichlet_alpha(counts: Ints) -> float:
    """Estimate the concentration alpha of a symmetric Dirichlet from the clients' mean square distance to uniform.

    For plain draws of clients, E sum_c (p_c - 1/C)^2 = (1 - 1/C) / (C alpha + 1). For `label-dirichlet`, which normalises columns
    after the draw, the estimate is too large. Infinite for uniform clients, 0 for one class a client, NaN for a single class.
    """
    classes = counts.shape[1]
    if classes < 2:
        return math.nan
    square = ((frequencies(counts[counts.sum(1) > 0]) - 1 / classes) ** 2).sum(1).mean()
    return math.inf if square == 0 else float(max(((1 - 1 / classes) / square - 1) / classes, 0))
