"""Comparing methods over paired seeds and over data sets: intervals, effect sizes, corrections for many comparisons, ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import require
from fedskew.measure.intervals import mean_interval

Floats = NDArray[np.floating]
Verdict = Literal["higher", "lower", "undecided"]

LEVEL = 0.05
"""The level at which a difference is decided."""


def paired_p(differences: Sequence[float]) -> float:
    """Two-sided p of Student's t test that paired differences have mean 0; NaN below two. See `interval_p`."""
    d = np.asarray(differences, dtype=float)
    if len(d) < 2:
        return math.nan
    if alike(d):
        return interval_p(float(d[0]), 0.0, len(d))
    return interval_p(*mean_interval(differences), len(d))


def interval_p(mean: float, half: float, count: int) -> float:
    """`paired_p` of ``count`` differences from their mean and the half-width of their 95 % interval.

    Differences that do not vary, as accuracies on few rows may not, have no standard error: p is then that of all signs being
    the same by chance, 2^(1 - count), and 1 where all are 0.
    """
    from scipy import stats

    if count < 2:
        return math.nan
    if half == 0:
        return 1.0 if mean == 0 else 2.0 ** (1 - count)
    return float(2 * stats.t.sf(abs(mean) / half * stats.t.ppf(0.975, count - 1), count - 1))


def decided(p: float, difference: float) -> Verdict:
    """The one rule of comparisons and claims: ``higher`` or ``lower`` by the sign where ``p`` is below 0.05, else ``undecided``."""
    if not p < LEVEL:
        return "undecided"
    return "higher" if difference > 0 else "lower"


def alike(values: Floats) -> bool:
    """Whether no two differ by more than rounding; their computed deviation need not be 0 then."""
    return bool(np.ptp(values) <= 1e-9 * np.abs(values).max() < math.inf)


def hedges_g(differences: Sequence[float]) -> float:
    """Paired Cohen's d (mean over standard deviation of the differences) times Hedges's exact small-sample correction.

    Of two differences it stays uncorrected: its mean does not exist. NaN below two or where they do not vary (Hedges 1981).
    """
    d = np.asarray(differences, dtype=float)
    freedom = len(d) - 1
    if freedom < 1 or alike(d):
        return math.nan
    correction = 1.0
    if freedom >= 2:
        correction = math.exp(math.lgamma(freedom / 2) - math.lgamma((freedom - 1) / 2)) / math.sqrt(freedom / 2)
    return float(d.mean() / d.std(ddof=1)) * correction


def cliffs_delta(a: Sequence[float], b: Sequence[float]) -> float:
    """P(a > b) - P(a < b) over all pairs, -1..1; 0 where neither tends to be larger. NaN if one is empty."""
    x, y = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    return float(np.sign(x[:, None] - y).mean()) if len(x) and len(y) else math.nan


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment, at most 1: rejecting what is below 0.05, some true hypothesis is rejected in at most 5 %.

    NaN stays NaN, and counts as no comparison (Holm 1979).
    """
    values = np.asarray(p, dtype=float)
    at = np.flatnonzero(~np.isnan(values))
    at = at[np.argsort(values[at], kind="stable")]
    result = values.copy()
    result[at] = np.minimum(np.maximum.accumulate(values[at] * np.arange(len(at), 0, -1)), 1.0)
    return [float(value) for value in result]


class Ranks(NamedTuple):
    """Methods ranked over blocks (data sets); rank 1 is the best."""

    mean: Floats  # (methods,)
    p: float  # Friedman's test that all methods are alike; NaN below three methods or two blocks
    critical_difference: float  # mean ranks farther apart differ at the 5 % level (Nemenyi); NaN likewise

    def cliques(self) -> list[tuple[int, ...]]:
        """The largest groups of methods, from the best, whose mean ranks do not differ; each of two or more."""
        order = np.argsort(self.mean, kind="stable")
        groups: list[tuple[int, ...]] = []
        for i, best in enumerate(order):
            group = tuple(int(k) for k in order[i:] if self.mean[k] - self.mean[best] < self.critical_difference)
            if len(group) > 1 and not any(set(group) <= set(other) for other in groups):
                groups.append(group)
        return groups


def rank_methods(scores: Floats, confidence: float = 0.95) -> Ranks:
    """Friedman's test and Nemenyi's critical difference of (blocks, methods) scores, of which larger is better (Demsar 2006).

    Raises `BadInput` for scores that are missing.
    """
    from scipy import stats

    blocks, methods = scores.shape
    require(bool(np.isfinite(scores).all()), "ranks: every method needs a score on every data set")
    mean = stats.rankdata(-scores, axis=1).mean(0)
    if methods < 3 or blocks < 2:
        return Ranks(mean, math.nan, math.nan)
    with np.errstate(invalid="ignore"):
        p = float(stats.friedmanchisquare(*scores.T).pvalue)
    q = float(stats.studentized_range.ppf(confidence, methods, math.inf)) / math.sqrt(2)
    return Ranks(mean, p, q * math.sqrt(methods * (methods + 1) / (6 * blocks)))
