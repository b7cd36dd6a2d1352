"""Distance between the labels that clients give to the same inputs."""

import numpy as np
from scipy import linalg

from fedskew.measure.heterogeneity.rows import Floats, Ints, divided, sums_by, table

DIRECTIONS = 12
TRUSTED = 10
"""Rows of a client from which its own moments count more than the pooled ones."""
ITERATIONS = 12

RESIDUAL_DIRECTIONS, KINDS, BINS, RIDGE = 2, 8, 5, 0.01
"""Of `residual_distance`: directions and number of the kinds, bins of the residuals, ridge of the standardised columns."""


def concept_distance(z: Floats, y: Ints, client: Ints, clients: int, classes: int) -> Floats:
    """Return each client's total variation (clients,) between its table of input kinds by labels and the expected table.

    The kinds are clusters of inputs. The expected table has the client's numbers of rows of each kind and label, and the pooled
    odds ratios between the two (iterative proportional fitting). Label skew and a shift among kinds leave the distance at 0.
    Small clients have a positive distance by chance.
    """
    number = kinds_for(len(z), classes)
    z = aligned(z, y, client, clients, classes)
    kinds = clusters(z, y, client, (clients, classes), directions_for(classes), number)
    counts = table(client * number + kinds, y, (clients * number, classes)).reshape(clients, number, classes)
    return table_distance(counts)


def kinds_for(rows: int, classes: int) -> int:
    """Return the number of kinds of inputs."""
    return int(np.clip(3 * classes, 6, max(6, min(40, rows // 30))))


def table_distance(counts: Floats) -> Floats:
    """Return each client's total variation (clients,) between its table (clients, kinds, classes) and the expected one."""
    expected = fitted(counts.sum(0), counts.sum(2), counts.sum(1))
    return divided(np.abs(counts - expected).sum((1, 2)) / 2, counts.sum((1, 2)))


def fitted(seed: Floats, rows: Floats, columns: Floats) -> Floats:
    """Fit tables (k, a, c) with the margins ``rows`` (k, a) and ``columns`` (k, c) and the odds ratios of ``seed`` (a, c)."""
    made = np.broadcast_to(seed, (len(rows), *seed.shape)).copy()
    for _ in range(ITERATIONS):
        made *= divided(columns, made.sum(1))[:, None, :]
        made *= divided(rows, made.sum(2))[:, :, None]
    return made


def residual_distance(z: Floats, y: Ints, client: Ints, clients: int, classes: int, response: Floats) -> Floats:
    """Return each client's total variation (clients,) between its table of input kinds by residuals and the expected table.

    One regression of ``response`` (n,) on the inputs of all clients gives the residuals, in `BINS` bins. The expected table
    has the client's rows of each kind, and the residuals of that kind over all clients. ``y`` are bins of the targets: they align
    the inputs. Targets that differ with equal p(y | x) leave a small distance; dealing rows at random within bins of y leaves the
    same one.
    """
    z = aligned(z, y, client, clients, classes)
    kinds = clusters(z, y, client, (clients, classes), RESIDUAL_DIRECTIONS, KINDS)
    columns = np.column_stack([np.ones(len(z)), z, z * z - 1])
    penalty = RIDGE * len(z) * np.eye(columns.shape[1])
    penalty[0, 0] = 0
    error = response - columns @ np.linalg.solve(columns.T @ columns + penalty, columns.T @ response)
    held = np.searchsorted(np.quantile(error, np.arange(1, BINS) / BINS), error)
    counts = table(client * KINDS + kinds, held, (clients * KINDS, BINS)).reshape(clients, KINDS, BINS)
    of_kind = counts.sum(0)
    expected = counts.sum(2)[:, :, None] * divided(of_kind, of_kind.sum(1, keepdims=True))
    return divided(np.abs(counts - expected).sum((1, 2)) / 2, counts.sum((1, 2)))


def clusters(z: Floats, y: Ints, client: Ints, shape: tuple[int, int], directions: int, number: int) -> Ints:
    """Return the kind of each row, (n,): clusters along the directions that separate labels within clients.

    ``shape`` is (clients, classes). The names of the labels do not matter, so clients with different names for the same inputs
    get the same kinds.
    """
    from sklearn.cluster import KMeans

    clients, classes = shape
    cell = client * classes + y
    sizes = np.bincount(cell, minlength=clients * classes)
    means = divided(sums_by(cell, clients * classes, z), sizes[:, None])
    inside = z - means[cell]
    of_client = divided(sums_by(client, clients, z), np.bincount(client, minlength=clients)[:, None])
    lines = separating(means, np.repeat(of_client, classes, axis=0), sizes, inside.T @ inside / len(z))
    kinds = KMeans(number, n_init=1, max_iter=15, random_state=0).fit_predict(z @ lines[:, -directions:])
    return kinds.astype(np.int64)


def directions_for(classes: int) -> int:
    """Return the number of directions along which kinds of inputs differ."""
    return min(DIRECTIONS, 2 * (classes - 1))


def separating(means: Floats, of_client: Floats, sizes: Ints, within: Floats) -> Floats:
    """Return the directions (d, d) that separate labels within clients, the best one last.

    ``means`` (cells, d) are of each client's rows of each label, ``sizes`` (cells,) their numbers, ``of_client`` (cells, d) the
    means of all rows of the same client, and ``within`` is the covariance around ``means``.
    """
    between = (means - of_client) * np.sqrt(sizes)[:, None]
    ridge = 0.05 * np.trace(within) / len(within) + 1e-9
    return np.asarray(linalg.eigh(between.T @ between / sizes.sum(), within + ridge * np.eye(len(within)))[1])


def aligned(z: Floats, y: Ints, client: Ints, clients: int, classes: int) -> Floats:
    """Shift and scale each client's columns to the pooled mean and variance of its labels.

    This removes the effect of a client's sensor or style on all its rows; small clients are changed less.
    """
    counts = table(client, y, (clients, classes))
    of_class, of_client = (
        [sums_by(groups, number, v) for v in (z, z * z)] for groups, number in ((y, classes), (client, clients))
    )
    centre, scale, shift = alignment(counts, (of_class[0], of_class[1]), (of_client[0], of_client[1]))
    centre = centre[client]
    return (z - centre) * scale[client] + centre + shift[client]


def alignment(
    counts: Floats, of_class: tuple[Floats, Floats], of_client: tuple[Floats, Floats]
) -> tuple[Floats, Floats, Floats]:
    """Return each client's centre, scale and shift, (clients, d), from sums of the columns and of their squares."""
    sizes = counts.sum(1, keepdims=True)
    share, trust = divided(counts, sizes), sizes / (sizes + TRUSTED)
    mean, square = (share @ divided(v, counts.sum(0)[:, None]) for v in of_class)
    own_mean, own_square = (divided(v, sizes) for v in of_client)
    due, own = np.maximum(square - mean**2, 1e-6), np.maximum(own_square - own_mean**2, 1e-6)
    return own_mean, np.clip(due / own, 1e-2, 1e2) ** (trust / 2), trust * (mean - own_mean)
