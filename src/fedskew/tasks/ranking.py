"""Metrics of outputs that are no sums over rows: areas under ROC curves, F1 over classes, calibration."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Counts = NDArray[np.integer]
Bools = NDArray[np.bool_]

BINS = 15
"""Of equal width, for the calibration error (Guo et al. 2017)."""


def areas(scores: Floats, positive: Bools) -> Floats:
    """The area under each column's ROC curve (K,) of scores (n, K); NaN without rows of both kinds.

    It is the share of pairs of a positive and another row in which the positive one has the higher score. Ties count half.
    """
    return np.array([area(column, rows) for column, rows in zip(scores.T, positive.T, strict=True)])


def area(scores: Floats, positive: Bools) -> float:
    """The area under the ROC curve of one column (n,)."""
    others, own = np.sort(scores[~positive]), np.sort(scores[positive])
    if not len(others) or not len(own):
        return float("nan")
    below, not_above = (others.searchsorted(own, side) for side in ("left", "right"))
    return float((below + not_above).sum() / (2 * len(own) * len(others)))


def f1(right: Counts, predicted: Counts, positive: Counts) -> Floats:
    """F1 of each class or label (K,), from its right positive answers, its positive answers and its rows; NaN without any."""
    both = predicted + positive
    found: Floats = 2 * right / np.where(both > 0, both, np.nan)
    return found


def mean_of_defined(values: Floats) -> float:
    """The mean of the values that are not NaN; NaN if there is none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def calibration_error(confidence: Floats, right: Bools) -> float:
    """The expected calibration error: mean of |accuracy - confidence| of the bins, weighted by their rows."""
    at = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(at, weights=right - confidence, minlength=BINS)
    return float(np.abs(gaps).sum() / len(right))
