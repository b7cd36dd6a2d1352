"""Concept distance: do clients give different labels to the same kind of input?"""

import numpy as np
from scipy import linalg

from fedskew.measure.heterogeneity.rows import Floats, Ints, divided, sums_by, table

DIRECTIONS = 12
TRUSTED = 10
"""If a client has more than this number of rows, its own moments count more than the pooled ones."""
ITERATIONS = 12

RESIDUAL_DIRECTIONS, KINDS, BINS, RIDGE = 2, 8, 5, 0.01
"""For `residual_distance`: number of directions and of kinds, number of bins of the residuals, ridge penalty."""


def concept_distance(z: Floats, y: Ints, client: Ints, clients: int, classes: int) -> Floats:
    """Return each client's distance (clients,): the total variation between its table of rows and the expected table.

    A table counts rows by kind of input and label; kinds are clusters of inputs. The expected table has the client's own totals
    of each kind and each label, but the pooled odds ratios (iterative proportional fitting). Therefore label skew, or other
    frequencies of kinds, do not change the distance. Small clients have a positive distance by chance.
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
    """Return each client's total variation (clients,) between its table (kinds, classes) and the expected one."""
    expected = fitted(counts.sum(0), counts.sum(2), counts.sum(1))
    return divided(np.abs(counts - expected).sum((1, 2)) / 2, counts.sum((1, 2)))


def fitted(seed: Floats, rows: Floats, columns: Floats) -> Floats:
    """Fit tables (k, a, c) that have margins ``rows`` (k, a) and ``columns`` (k, c), and the odds ratios of ``seed`` (a, c)."""
    made = np.broadcast_to(seed, (len(rows), *seed.shape)).copy()
    for _ in range(ITERATIONS):
        made *= divided(columns, made.sum(1))[:, None, :]
        made *= divided(rows, made.sum(2))[:, :, None]
    return made


def residual_distance(z: Floats, y: Ints, client: Ints, clients: int, classes: int, response: Floats) -> Floats:
    """Return each client's distance (clients,) like `concept_distance`, for numbers as targets.

    The tables count rows by kind of input and residual. The residuals, in `BINS` bins, come from one regression of
    ``response`` (n,) on the inputs of all clients. ``y`` (n,) are bins of the targets, which align the inputs. If only the
    clients' targets differ and p(y | x) is equal, a small distance remains. Rows dealt at random within bins of ``y`` have the
    same distance.
    """
    z = aligned(z, y, client, clients, classes)
    kinds = clusters(z, y, client, (clients, classes), RESIDUAL_DIRECTIONS, KINDS)
    columns = np.column_stack([np.ones(len(z)), z, z * z - 1])
    error = response - columns @ regression(columns.T @ columns, columns.T @ response)
    held = np.searchsorted(np.quantile(error, np.arange(1, BINS) / BINS), error)
    counts = table(client * KINDS + kinds, held, (clients * KINDS, BINS)).reshape(clients, KINDS, BINS)
    return residual_table_distance(counts)


def regression(products: Floats, with_target: Floats) -> Floats:
    """Return the coefficients (c,) of a ridge regression, from the sums of the products of its columns, the first one constant."""
    penalty = RIDGE * products[0, 0] * np.eye(len(products))
    penalty[0, 0] = 0
    return np.asarray(np.linalg.solve(products + penalty, with_target))


def residual_table_distance(counts: Floats) -> Floats:
    """Return each client's total variation (clients,) between its table (kinds, bins of residuals) and the expected one.

    The expected table has the client's total of each kind, and within each kind the residuals of all clients.
    """
    of_kind = counts.sum(0)
    expected = counts.sum(2)[:, :, None] * divided(of_kind, of_kind.sum(1, keepdims=True))
    return divided(np.abs(counts - expected).sum((1, 2)) / 2, counts.sum((1, 2)))


def clusters(z: Floats, y: Ints, client: Ints, shape: tuple[int, int], directions: int, number: int) -> Ints:
    """Return the kind (n,) of each row: its cluster along the directions that separate labels within clients.

    ``shape`` is (clients, classes). If two clients have swapped labels, the same inputs still get the same kinds.
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

    A cell is one client's rows of one label. ``means`` (cells, d) are the cells' means, ``sizes`` (cells,) their numbers of rows,
    ``of_client`` (cells, d) the means of the cells' clients, and ``within`` (d, d) the covariance around ``means``.
    """
    between = (means - of_client) * np.sqrt(sizes)[:, None]
    ridge = 0.05 * np.trace(within) / len(within) + 1e-9
    return np.asarray(linalg.eigh(between.T @ between / sizes.sum(), within + ridge * np.eye(len(within)))[1])


def aligned(z: Floats, y: Ints, client: Ints, clients: int, classes: int) -> Floats:
    """Shift and scale each client's columns of ``z`` (n, d) to the mean and variance that its labels have over all clients.

    This removes the effect that a client's sensor or style has on all its rows. Small clients are changed less.
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
    """Return each client's centre, scale and shift (clients, d) for `aligned`.

    ``of_class`` and ``of_client`` are sums of the columns and of their squares, by label and by client.
    """
    sizes = counts.sum(1, keepdims=True)
    share, trust = divided(counts, sizes), sizes / (sizes + TRUSTED)
    mean, square = (share @ divided(v, counts.sum(0)[:, None]) for v in of_class)
    own_mean, own_square = (divided(v, sizes) for v in of_client)
    due, own = np.maximum(square - mean**2, 1e-6), np.maximum(own_square - own_mean**2, 1e-6)
    return own_mean, np.clip(due / own, 1e-2, 1e2) ** (trust / 2), trust * (mean - own_mean)
