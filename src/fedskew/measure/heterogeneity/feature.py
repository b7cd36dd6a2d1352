"""Feature distance: do clients' inputs differ, apart from the effect of their labels?"""

import numpy as np

from fedskew.measure.heterogeneity.rows import Floats, Ints, divided, sums_by, table

REFERENCE = 1500
"""Maximum number of pooled rows with which each client is compared."""

RIDGE = 0.1
"""Added to the variances of the standardised columns."""


def feature_distance(z: Floats, y: Ints, client: Ints, clients: int, classes: int, half: Ints) -> Floats:
    """Return each client's distance (clients,) from pooled rows with the same labels; at most 1, on average 0 by chance.

    A classifier separates the client's rows from pooled rows, which are weighted to the client's label frequencies. The distance is
    its true positive rate minus its false positive rate. This is a lower bound of the total variation between p_k(x) and
    sum_y p_k(y) p(x | y). The classifier is a discriminant on the columns ``z`` (n, d) and their squares, with the pooled
    covariance. It is fitted on the rows of one ``half`` (n,), 0 or 1, and tested on the other; both ways are averaged. Label
    skew, or concept skew with equal class sizes, does not change the distance.
    """
    phi = np.column_stack([z, z * z - 1])
    found = np.zeros(clients)
    for fold in (0, 1):
        fit, test = half == fold, half != fold
        covariance = np.cov(phi[fit], rowvar=False, ddof=0).reshape(phi.shape[1], -1)
        share = shares(client[fit], y[fit], clients, classes)
        of_class = divided(sums_by(y[fit], classes, phi[fit]), np.bincount(y[fit], minlength=classes)[:, None])
        sizes = np.bincount(client[fit], minlength=clients)[:, None]
        own = divided(sums_by(client[fit], clients, phi[fit]), sizes)
        beta, threshold = discriminants(own, share @ of_class, covariance)
        hit = (phi[test] * beta[client[test]]).sum(1) > threshold[client[test]]
        tested = np.bincount(client[test], minlength=clients)
        right = divided(np.bincount(client[test], hit, clients), tested)
        pooled, labels = phi[test][:REFERENCE], y[test][:REFERENCE]
        counts = np.bincount(labels, minlength=classes)
        weight = divided(shares(client[test], y[test], clients, classes), counts[None])
        weight = divided(weight, (weight * counts).sum(1, keepdims=True))
        false = ((pooled @ beta.T > threshold).T * weight[:, labels]).sum(1)
        found += (right - false) / 2
    return found


def discriminants(own: Floats, matched: Floats, covariance: Floats) -> tuple[Floats, Floats]:
    """Return directions (clients, d) and thresholds (clients,) that separate each client's mean from the pooled mean."""
    beta: Floats = np.linalg.solve(covariance + RIDGE * np.eye(len(covariance)), (own - matched).T).T.astype(np.float64)
    return beta, (beta * (own + matched)).sum(1) / 2


def shares(client: Ints, y: Ints, clients: int, classes: int) -> Floats:
    """Return each client's label frequencies, (clients, classes)."""
    counts = table(client, y, (clients, classes))
    return divided(counts, counts.sum(1, keepdims=True))
