"""Confidence intervals of means over seeds."""

from collections.abc import Sequence

import numpy as np


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the mean and the half-width of Student's t interval; the half-width of a single value is NaN."""
    from scipy import stats

    v = np.asarray(values, dtype=float)
    if len(v) < 2:
        return float(v.mean()), float("nan")
    half = stats.t.ppf(0.5 + confidence / 2, len(v) - 1) * stats.sem(v)
    return float(v.mean()), float(half)
