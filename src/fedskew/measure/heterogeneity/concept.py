"""Concept distance: do clients give different labels to the same kind of input?"""

import numpy as np
from scipy import linalg

from fedskew.measure.heterogeneity.rows import Floats, Ints, divided

DIRECTIONS = 12
TRUSTED = 10
"""If a client has more than this number of rows, its own moments count more than the pooled ones."""
ITERATIONS = 12

RESIDUAL_DIRECTIONS, KINDS, RESIDUAL_BINS, RIDGE = 2, 8, 5, 0.01
"""If targets are numbers: number of directions and of kinds, number of bins of the residuals, ridge penalty."""


def kinds_for(rows: int, classes: int) -> int:
    """Return the number of kinds of inputs."""
    return int(np.clip(3 * classes, 6, max(6, min(40, rows // 30))))


def table_distance(counts: Floats) -> Floats:
    """Return each client's total variation (clients,) between its table (kinds, classes) of rows and the expected one.

    The expected table has the client's own totals of each kind and each class, but the pooled odds ratios (iterative proportional
    fitting). Therefore label skew, or other frequencies of kinds, do not change the distance. Small clients have a positive
    distance by chance.
    """
    expected = fitted(counts.sum(0), counts.sum(2), counts.sum(1))
    return divided(np.abs(counts - expected).sum((1, 2)) / 2, counts.sum((1, 2)))


def fitted(seed: Floats, rows: Floats, columns: Floats) -> Floats:
    """Fit tables (k, a, c) that have margins ``rows`` (k, a) and ``columns`` (k, c), and the odds ratios of ``seed`` (a, c)."""
    made = np.broadcast_to(seed, (len(rows), *seed.shape)).copy()
    for _ in range(ITERATIONS):
        made *= divided(columns, made.sum(1))[:, None, :]
        made *= divided(rows, made.sum(2))[:, :, None]
    return made


def regression(products: Floats, with_target: Floats) -> Floats:
    """Return the coefficients (c,) of a ridge regression, from the sums of the products of its columns, the first one constant."""
    penalty = RIDGE * products[0, 0] * np.eye(len(products))
    penalty[0, 0] = 0
    return np.asarray(np.linalg.solve(products + penalty, with_target))


def residual_table_distance(counts: Floats) -> Floats:
    """Return each client's total variation (clients,) between its table (kinds, bins of residuals) and the expected one.

    The residuals come from one regression for all clients. The expected table has the client's total of each kind, and within
    each kind the residuals of all clients. If only the clients' targets differ and p(y | x) is equal, a small distance remains.
    """
    of_kind = counts.sum(0)
    expected = counts.sum(2)[:, :, None] * divided(of_kind, of_kind.sum(1, keepdims=True))
    return divided(np.abs(counts - expected).sum((1, 2)) / 2, counts.sum((1, 2)))


def directions_for(classes: int) -> int:
    """Return the number of directions along which kinds of inputs differ."""
    return min(DIRECTIONS, 2 * (classes - 1))


def separating(means: Floats, of_client: Floats, sizes: Ints, within: Floats) -> Floats:
    """Return the directions (d, d) that separate labels within clients, the best one last.

    A cell is one client's rows of one label. ``means`` (cells, d) are the cells' means, ``sizes`` (cells,) their numbers of rows,
    ``of_client`` (cells, d) the means of the cells' clients, and ``within`` (d, d) the covariance around ``means``.
    """
    between = (means - of_client) * np.sqrt(sizes)[:, None]
    ridge = 0.05 * np.trace(within) / len(within) + 1e-9
    return np.asarray(linalg.eigh(between.T @ between / sizes.sum(), within + ridge * np.eye(len(within)))[1])


def alignment(
    counts: Floats, of_class: tuple[Floats, Floats], of_client: tuple[Floats, Floats]
) -> tuple[Floats, Floats, Floats]:
    """Return the centre, scale and shift (clients, d) that give each client the mean and variance that its labels have everywhere.

    This removes the effect that a client's sensor or style has on all its rows. Small clients are changed less.
    ``of_class`` and ``of_client`` are sums of the columns and of their squares, by label and by client.
    """
    sizes = counts.sum(1, keepdims=True)
    share, trust = divided(counts, sizes), sizes / (sizes + TRUSTED)
    mean, square = (share @ divided(v, counts.sum(0)[:, None]) for v in of_class)
    own_mean, own_square = (divided(v, sizes) for v in of_client)
    due, own = np.maximum(square - mean**2, 1e-6), np.maximum(own_square - own_mean**2, 1e-6)
    return own_mean, np.clip(due / own, 1e-2, 1e2) ** (trust / 2), trust * (mean - own_mean)
