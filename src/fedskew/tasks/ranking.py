"""Metrics of outputs that are no sums over rows: areas under ROC curves, F1 over classes, calibration."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.floating]
Counts = NDArray[np.integer]
Bools = NDArray[np.bool_]

BINS = 15
"""Of equal width, for the calibration error (Guo et al. 2017)."""


SMALLEST_SHARE = 1e-12
"""In place of 0, whose logarithm is not finite."""


def log_shares(counts: Counts, of: int = 0) -> Tensor:
    """The logarithms of the counts (K,) as shares of the number ``of``, by default of their sum."""
    return torch.tensor(np.log(np.maximum(counts / (of or counts.sum()), SMALLEST_SHARE)))


def areas(scores: Floats, positive: Bools) -> Floats:
    """The area under each column's ROC curve (K,) of scores (n, K); NaN without rows of both kinds.

    It is the share of pairs of a positive and another row in which the positive one has the higher score. Ties count half.
    """
    return np.array([area(column, rows) for column, rows in zip(scores.T, positive.T, strict=True)])


def area(scores: Floats, positive: Bools) -> float:
    """The area under the ROC curve of one column (n,)."""
    pairs = positive.sum() * (~positive).sum()
    return float(right_pairs(scores, positive)[positive].sum() / pairs) if pairs else float("nan")


def areas_without(scores: Floats, positive: Bools) -> Floats:
    """The areas (n, K) of `areas` without each row."""
    own, others = positive.sum(0), (~positive).sum(0)
    pairs = np.where(positive, (own - 1) * others, own * (others - 1))
    right = np.stack([right_pairs(*column) for column in zip(scores.T, positive.T, strict=True)], axis=1)
    left: Floats = (right.sum(0) / 2 - right) / np.where(pairs > 0, pairs, np.nan)
    return left


def right_pairs(scores: Floats, positive: Bools) -> Floats:
    """In how many pairs of a positive and another row each row (n,) is ranked right."""
    right = np.empty(len(scores))
    for rows, sign in ((positive, 1), (~positive, -1)):
        against, own = np.sort(sign * scores[~rows]), sign * scores[rows]
        right[rows] = (against.searchsorted(own, "left") + against.searchsorted(own, "right")) / 2
    return right


def f1(right: Counts, predicted: Counts, positive: Counts) -> Floats:
    """F1 of each class or label (K,), from its right positive answers, its positive answers and its rows; NaN without any."""
    both = predicted + positive
    found: Floats = 2 * right / np.where(both > 0, both, np.nan)
    return found


def f1_without(yes: Bools, positive: Bools) -> Floats:
    """`f1` (n, K) without each row, from the positive answers and the true ones, (n, K) both."""
    right, predicted, rows = (part.sum(0) - part.astype(np.int64) for part in (yes & positive, yes, positive))
    return f1(right, predicted, rows)


def accuracies_without(yes: Bools, positive: Bools) -> Floats:
    """The accuracy of each class (n, K) without each row; NaN for a class without another row."""
    right, rows = (part.sum(0) - part.astype(np.int64) for part in (yes & positive, positive))
    found: Floats = right / np.where(rows > 0, rows, np.nan)
    return found


def mean_of_defined(values: Floats) -> Floats:
    """The means over the last axis of the values that are not NaN; NaN if there is none."""
    known = ~np.isnan(values)
    means: Floats = np.where(known, values, 0.0).sum(-1) / np.where(known.any(-1), known.sum(-1), np.nan)
    return means


def calibration_error(confidence: Floats, right: Bools) -> float:
    """The expected calibration error: mean of |accuracy - confidence| of the bins, weighted by their rows."""
    return float(np.abs(gaps_of_bins(confidence, right)[1]).sum() / len(right))


def calibration_error_without(confidence: Floats, right: Bools) -> Floats:
    """The expected calibration error (n,) without each row."""
    at, gaps = gaps_of_bins(confidence, right)
    own = gaps[at] - (right - confidence)
    left: Floats = (np.abs(gaps).sum() - np.abs(gaps[at]) + np.abs(own)) / (len(right) - 1)
    return left


def gaps_of_bins(confidence: Floats, right: Bools) -> tuple[Counts, Floats]:
    """The bin of each row (n,), and of each bin the right answers less the confidence."""
    at = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    return at, np.bincount(at, weights=right - confidence, minlength=BINS).astype(np.float64)
