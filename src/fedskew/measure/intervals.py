"""Confidence intervals of means over seeds, and over seeds and test rows."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the mean and the half-width of Student's t interval; the half-width of a single value is NaN."""
    from scipy import stats

    v = np.asarray(values, dtype=float)
    if len(v) < 2:
        return float(v.mean()), float("nan")
    half = stats.t.ppf(0.5 + confidence / 2, len(v) - 1) * stats.sem(v)
    return float(v.mean()), float(half)


class Estimate(NamedTuple):
    """A mean, the half-width of its 95 % interval, and the two-sided p of the test that the true mean is 0."""

    mean: float
    half: float
    p: float


def over_seeds_and_rows(values: NDArray[np.floating]) -> Estimate:
    """The mean of a number that depends on the seed and on the test row; ``values`` is (seeds, rows), at least (2, 2).

    The interval covers other seeds and other test rows. The squared standard error of the mean is a / S + b / n - c / (S n): the
    variance ``a`` between the S seeds' means, ``b`` between the n rows' means, less what both hold of the residual variance ``c``;
    at least a / S and b / n. Student's t has Satterthwaite's degrees of freedom (Satterthwaite 1946, for the crossed design with
    two random factors). Without any variance the half-width is 0 and p is NaN.
    """
    from scipy import stats

    seeds, rows = values.shape
    by_seed, by_row, mean = values.mean(1), values.mean(0), float(values.mean())
    residual = values - by_seed[:, None] - by_row + mean
    freedom = np.array([seeds - 1, rows - 1, (seeds - 1) * (rows - 1)])
    parts = np.array([by_seed.var(ddof=1) / seeds, by_row.var(ddof=1) / rows, 0.0])
    parts[2] = float(np.square(residual).sum()) / freedom[2] / (seeds * rows)
    squared = max(parts[0] + parts[1] - parts[2], parts[0], parts[1])
    if squared <= (1e-9 * mean) ** 2:
        return Estimate(mean, 0.0, math.nan)
    t = stats.t(squared**2 / float((parts**2 / freedom).sum()))
    error = math.sqrt(squared)
    return Estimate(mean, float(t.ppf(0.975)) * error, float(2 * t.sf(abs(mean) / error)))
