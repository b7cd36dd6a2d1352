"""How far clients give the same inputs different labels, whatever inputs and labels each of them has."""

from __future__ import annotations

import numpy as np
from scipy import linalg

from fedskew.measure.heterogeneity.rows import Floats, Ints, divided, sums_by, table

DIRECTIONS = 12
TRUSTED = 10
"""Rows of a client at which its own moments count as much as everybody's."""
ITERATIONS = 12


def concept_distance(z: Floats, y: Ints, client: Ints, clients: int, classes: int) -> Floats:
    """(clients,) total variation between each client's table of input kind by label and the table without a concept of its own.

    The kinds are clusters of inputs. The second table has the client's number of rows of each kind, its number of each label, and
    everybody's association between the two (odds ratios; by iterative proportional fitting): label skew and a shift among
    kinds leave both tables equal. Positive by chance alone in small clients.
    """
    kinds, number = strata(z, y, client, clients, classes)
    counts = table(client * number + kinds, y, (clients * number, classes)).reshape(clients, number, classes)
    expected = fitted(counts.sum(0), counts.sum(2), counts.sum(1))
    return divided(np.abs(counts - expected).sum((1, 2)) / 2, counts.sum((1, 2)))


def fitted(seed: Floats, rows: Floats, columns: Floats) -> Floats:
    """(k, a, c) tables with the margins ``rows`` (k, a) and ``columns`` (k, c) and the odds ratios of ``seed`` (a, c)."""
    made = np.broadcast_to(seed, (len(rows), *seed.shape)).copy()
    for _ in range(ITERATIONS):
        made *= divided(columns, made.sum(1))[:, None, :]
        made *= divided(rows, made.sum(2))[:, :, None]
    return made


def strata(z: Floats, y: Ints, client: Ints, clients: int, classes: int) -> tuple[Ints, int]:
    """The kind of each row, and how many kinds: clusters along the directions in which labels part *within* clients.

    What a label is called does not enter, so that clients who name the same things differently agree on the kinds.
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
    seen = z @ vectors[:, -min(DIRECTIONS, 2 * (classes - 1)) :]
    kinds = KMeans(number, n_init=1, max_iter=15, random_state=0).fit_predict(seen)
    return kinds.astype(np.int64), number


def aligned(z: Floats, y: Ints, client: Ints, clients: int, classes: int) -> Floats:
    """Columns of each client moved and stretched to the mean and variance that its labels would have at everybody's.

    What a client's sensor or style does to all its rows is taken out; small clients are trusted less.
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
