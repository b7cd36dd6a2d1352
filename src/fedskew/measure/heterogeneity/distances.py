"""Distances between two sets of rows ``a`` (m, d) and ``b`` (n, d), in the unit of the columns."""

from collections.abc import Callable

import numpy as np

from fedskew.measure.heterogeneity.rows import Floats, Ints

Distance = Callable[[Floats, Floats], float]


def sliced_wasserstein(a: Floats, b: Floats, rng: np.random.Generator, directions: int = 128) -> float:
    """Project the rows onto random directions; return the root mean square of the projections' 2-Wasserstein distances.

    The distance is exact in each direction. A shift by v gives about ||v|| / sqrt(d).
    """
    lines = rng.standard_normal((a.shape[1], directions))
    lines /= np.linalg.norm(lines, axis=0)
    one, other = np.sort(a @ lines, axis=0), np.sort(b @ lines, axis=0)
    # both quantile functions are step functions: integrate their squared difference between the jumps of both
    jumps = np.union1d(np.arange(1, len(a) + 1) / len(a), np.arange(1, len(b) + 1) / len(b))
    middle = jumps - np.diff(jumps, prepend=0) / 2
    at = [np.minimum((middle * len(v)).astype(int), len(v) - 1) for v in (one, other)]
    return float(np.sqrt((np.diff(jumps, prepend=0) @ (one[at[0]] - other[at[1]]) ** 2).mean()))


def frechet(a: Floats, b: Floats) -> float:
    """Return ||m_a - m_b||^2 + tr(S_a + S_b - 2 (S_a^1/2 S_b S_a^1/2)^1/2), with covariances shrunk by Ledoit and Wolf.

    It is the squared 2-Wasserstein distance of two Gaussians; a shift by v gives ||v||^2.
    """
    from sklearn.covariance import ledoit_wolf

    first, second = (ledoit_wolf(v)[0] for v in (a, b))
    root = symmetric_root(first)
    shapes = np.trace(first) + np.trace(second) - 2 * np.trace(symmetric_root(root @ second @ root))
    return float(((a.mean(0) - b.mean(0)) ** 2).sum() + max(shapes, 0.0))


def symmetric_root(s: Floats) -> Floats:
    """Return the positive semidefinite square root of a symmetric matrix."""
    values, vectors = np.linalg.eigh((s + s.T) / 2)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T)


def within_classes(
    distance: Distance, z: Floats, y: Ints, client: Ints, clients: Ints, fewest: int = 5, most: int = 200
) -> float:
    """Return the mean distance between a client's rows of a class and the other clients' rows of that class.

    The mean is over ``clients`` and classes, weighted by the client's rows. Both sides need at least ``fewest`` rows; at most
    the first ``most`` are compared. NaN if there are no such rows.
    """
    found, weights = [], []
    for k in clients:
        mine = client == k
        for c in np.unique(y[mine]):
            own, others = np.flatnonzero(mine & (y == c)), np.flatnonzero(~mine & (y == c))
            if min(len(own), len(others)) >= fewest:
                found.append(distance(z[own[:most]], z[others[:most]]))
                weights.append(len(own))
    return float(np.average(found, weights=weights)) if found else float("nan")
