"""Distance between the labels that clients give to the same inputs."""

import numpy as np
from scipy import linalg

from fedskew.measure.heterogeneity.rows import Floats, Ints, divided, sums_by, table

DIRECTIONS = 12
TRUSTED = 10
"""Rows of a client from which its own moments count more than the pooled ones."""
ITERATIONS = 12


def concept_distance(z: Floats, y: Ints, client: Ints, clients: int, classes: int) -> Floats:
    """Return each client's total variation (clients,) between its table of input kinds by labels and the expected table.

    The kinds are clusters of inputs. The expected table has the client's numbers of rows of each kind and label, and the pooled
    odds ratios between the two (iterative proportional fitting). Label skew and a shift among kinds leave the distance at 0.
    Small clients have a positive distance by chance.
    """
    kinds, number = strata(z, y, client, clients, classes)
    counts = table(client * number + kinds, y, (clients * number, classes)).reshape(clients, number, classes)
    expected = fitted(counts.sum(0), counts.sum(2), counts.sum(1))
    return divided(np.abs(counts - expected).sum((1, 2)) / 2, counts.sum((1, 2)))


def fitted(seed: Floats, rows: Floats, columns: Floats) -> Floats:
    """Fit tables (k, a, c) with the margins ``rows`` (k, a) and ``columns`` (k, c) and the odds ratios of ``seed`` (a, c)."""
    made = np.broadcast_to(seed, (len(rows), *seed.shape)).copy()
    for _ in range(ITERATIONS):
        made *= divided(columns, made.sum(1))[:, None, :]
        made *= divided(rows, made.sum(2))[:, :, None]
    return made


def strata(z: Floats, y: Ints, client: Ints, clients: int, classes: int) -> tuple[Ints, int]:
    """Return the kind of each row (n,) and the number of kinds: clusters along the directions that separate labels within clients.

    The names of the labels do not matter, so clients with different names for the same inputs get the same kinds.
    """
    from sklearn.cluster import KMeans

    z = aligned(z, y, client, clients, classes)
    cell = client * classes + y
    sizes = np.bincount(cell, minlength=clients * classes)
    means = divided(sums_by(cell, clients * classes, z), sizes[:, None])
    inside = z - means[cell]
    of_client = divided(sums_by(client, clients, z), np.bincount(client, minlength=clients)[:, None])
    between = (means - np.repeat(of_client, classes, axis=0)) * np.sqrt(sizes)[:, None]
    within = inside.T @ inside / len(z)
    ridge = 0.05 * np.trace(within) / len(within) + 1e-9
    _, vectors = linalg.eigh(between.T @ between / len(z), within + ridge * np.eye(len(within)))
    number = int(np.clip(3 * classes, 6, max(6, min(40, len(z) // 30))))
    projected = z @ vectors[:, -min(DIRECTIONS, 2 * (classes - 1)) :]
    kinds = KMeans(number, n_init=1, max_iter=15, random_state=0).fit_predict(projected)
    return kinds.astype(np.int64), number


def aligned(z: Floats, y: Ints, client: Ints, clients: int, classes: int) -> Floats:
    """Shift and scale each client's columns to the pooled mean and variance of its labels.

    This removes the effect of a client's sensor or style on all its rows; small clients are changed less.
    """
    counts = table(client, y, (clients, classes))
    sizes = counts.sum(1, keepdims=True)
    share, trust = divided(counts, sizes), sizes / (sizes + TRUSTED)
    of_class = counts.sum(0)[:, None]
    mean, square = (share @ divided(sums_by(y, classes, v), of_class) for v in (z, z * z))
    own_mean, own_square = (divided(sums_by(client, clients, v), sizes) for v in (z, z * z))
    due, own = np.maximum(square - mean**2, 1e-6), np.maximum(own_square - own_mean**2, 1e-6)
    scale = np.clip(due / own, 1e-2, 1e2) ** (trust / 2)
    shift = trust * (mean - own_mean)
    centre = own_mean[client]
    return (z - centre) * scale[client] + centre + shift[client]
