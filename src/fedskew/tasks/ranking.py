"""Metrics that are not sums over rows: areas under ROC curves, F1 and accuracy of classes, calibration error."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedskew.core.sites import Floats

Counts = NDArray[np.integer]
Bools = NDArray[np.bool_]

BINS = 15
"""Number of bins of equal width for the calibration error (Guo et al. 2017)."""


SMALLEST_SHARE = 1e-12
"""A share of 0 is replaced by this one, because log(0) is not finite."""


def log_shares(counts: Counts, of: int = 0) -> Tensor:
    """Return log(counts / of) for the counts (K,). By default ``of`` is the sum of the counts."""
    return torch.tensor(np.log(np.maximum(counts / (of or counts.sum()), SMALLEST_SHARE)))


def areas(scores: Floats, positive: Bools) -> Floats:
    """Return the area under the ROC curve (K,) of each column of scores (n, K). NaN unless there are rows of both kinds.

    The area is a share of all pairs of a positive and a negative row: those in which the positive row has the higher score.
    Ties count half.
    """
    pairs = positive.sum(0) * (~positive).sum(0)
    return np.where(positive, right_pairs(scores, positive), 0.0).sum(0) / np.where(pairs > 0, pairs, np.nan)


def areas_without(scores: Floats, positive: Bools) -> Floats:
    """Return areas (n, K). Row i has the result of `areas` without row i."""
    positives, negatives = positive.sum(0), (~positive).sum(0)
    pairs = np.where(positive, (positives - 1) * negatives, positives * (negatives - 1))
    right = right_pairs(scores, positive)
    return (right.sum(0) / 2 - right) / np.where(pairs > 0, pairs, np.nan)


def right_pairs(scores: Floats, positive: Bools) -> Floats:
    """Return for each row (n, K) in how many pairs with a row of the other kind the positive row has the higher score."""
    right = np.empty(scores.shape)
    for result, column, yes in zip(right.T, scores.T, positive.T, strict=True):
        for rows, sign in ((yes, 1), (~yes, -1)):
            against, row_scores = np.sort(sign * column[~rows]), sign * column[rows]
            result[rows] = (against.searchsorted(row_scores, "left") + against.searchsorted(row_scores, "right")) / 2
    return right


def f1(right: Counts, predicted: Counts, positive: Counts) -> Floats:
    """Return F1 (K,) of each class. ``right`` counts true positives, ``predicted`` all predicted and ``positive`` all true ones.

    F1 is NaN if a class was neither predicted nor present.
    """
    both = predicted + positive
    return 2 * right / np.where(both > 0, both, np.nan)


def f1_without(yes: Bools, positive: Bools) -> Floats:
    """Return F1 (n, K): row i leaves out row i. ``yes`` has the predictions and ``positive`` the true answers, both (n, K)."""
    right, predicted, rows = (part.sum(0) - part.astype(np.int64) for part in (yes & positive, yes, positive))
    return f1(right, predicted, rows)


def accuracies_without(yes: Bools, positive: Bools) -> Floats:
    """Return the accuracy (n, K) of each class: row i leaves out row i. NaN if a class has no other row."""
    right, rows = (part.sum(0) - part.astype(np.int64) for part in (yes & positive, positive))
    return right / np.where(rows > 0, rows, np.nan)


def mean_of_defined(values: Floats) -> Floats:
    """Return the means over the last axis, without NaN values. A mean is NaN if all values are."""
    defined = ~np.isnan(values)
    return np.where(defined, values, 0.0).sum(-1) / np.where(defined.any(-1), defined.sum(-1), np.nan)


def calibration_error(confidence: Floats, right: Bools) -> float:
    """Return the expected calibration error: the mean of |accuracy - confidence| over the bins, weighted by their rows."""
    return float(np.abs(gaps_of_bins(confidence, right)[1]).sum() / len(right))


def calibration_error_without(confidence: Floats, right: Bools) -> Floats:
    """Return expected calibration errors (n,): number i leaves out row i."""
    at, gaps = gaps_of_bins(confidence, right)
    without_row = gaps[at] - (right - confidence)
    return (np.abs(gaps).sum() - np.abs(gaps[at]) + np.abs(without_row)) / (len(right) - 1)


def gaps_of_bins(confidence: Floats, right: Bools) -> tuple[Counts, Floats]:
    """Return the bin of each row (n,), and for each bin the number of right answers minus the sum of confidences."""
    at = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    return at, np.bincount(at, weights=right - confidence, minlength=BINS).astype(np.float64)
