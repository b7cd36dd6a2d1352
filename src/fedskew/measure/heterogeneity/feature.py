"""How far clients' inputs differ beyond what their labels explain."""

from __future__ import annotations

import numpy as np

from fedskew.measure.heterogeneity.rows import Floats, Ints, divided, sums_by, table

REFERENCE = 1500
"""Rows of everybody against which a client is told."""

RIDGE = 0.1
"""Added to the variances of the standardised columns."""


def feature_distance(z: Floats, y: Ints, client: Ints, clients: int, classes: int, half: Ints) -> Floats:
    """(clients,) how far each client's inputs can be told from everybody's of the same labels, about 0 by chance, to 1.

    A lower bound of the total variation between p_k(x) and sum_y p_k(y) p(x | y), by a classifier: a discriminant on the columns
    ``z`` (n, d) and their squares, with everybody's covariance, fitted on one ``half`` (n,) of the rows (0 or 1) and tested on the
    other, both ways; the value is the rate of right minus that of false alarms on everybody's rows weighted to the client's
    labels. A change of labels alone, or of the labels' meaning at equal class sizes, leaves it at 0.
    """
    phi = np.column_stack([z, z * z - 1])
    found = np.zeros(clients)
    for fold in (0, 1):
        fit, test = half == fold, half != fold
        covariance = np.cov(phi[fit], rowvar=False, ddof=0).reshape(phi.shape[1], -1) + RIDGE * np.eye(phi.shape[1])
        share = shares(client[fit], y[fit], clients, classes)
        of_class = divided(sums_by(y[fit], classes, phi[fit]), np.bincount(y[fit], minlength=classes)[:, None])
        sizes = np.bincount(client[fit], minlength=clients)[:, None]
        own, matched = divided(sums_by(client[fit], clients, phi[fit]), sizes), share @ of_class
        beta = np.linalg.solve(covariance, (own - matched).T).T
        threshold = (beta * (own + matched)).sum(1) / 2
        hit = (phi[test] * beta[client[test]]).sum(1) > threshold[client[test]]
        tested = np.bincount(client[test], minlength=clients)
        right = divided(np.bincount(client[test], hit, clients), tested)
        everybody, labels = phi[test][:REFERENCE], y[test][:REFERENCE]
        counts = np.bincount(labels, minlength=classes)
        weight = divided(shares(client[test], y[test], clients, classes), counts[None])
        weight = divided(weight, (weight * counts).sum(1, keepdims=True))
        false = ((everybody @ beta.T > threshold).T * weight[:, labels]).sum(1)
        found += (right - false) / 2
    return found


def shares(client: Ints, y: Ints, clients: int, classes: int) -> Floats:
    """(clients, classes) each client's label frequencies."""
    counts = table(client, y, (clients, classes))
    return divided(counts, counts.sum(1, keepdims=True))
