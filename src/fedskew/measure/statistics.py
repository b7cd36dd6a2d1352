"""Comparing methods over paired seeds and over data sets: intervals, effect sizes, corrections for many comparisons, ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import require

Floats = NDArray[np.floating]


def paired_p(differences: Sequence[float]) -> float:
    """Two-sided p of Student's t test that paired differences have mean 0; NaN below two.

    Where they do not vary, as accuracies on few rows may not, it knows no spread: p is then that of all signs being the same by
    chance, 2^(1 - n), and 1 where all are 0.
    """
    from scipy import stats

    d = np.asarray(differences, dtype=float)
    if len(d) < 2:
        return math.nan
    if alike(d):
        return 1.0 if d[0] == 0 else 2.0 ** (1 - len(d))
    return float(2 * stats.t.sf(abs(d.mean()) / (d.std(ddof=1) / math.sqrt(len(d))), len(d) - 1))


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
    """Holm's step-down adjustment: reject what is below 0.05 and some true hypothesis is rejected in at most 5 %.

    NaN stays NaN, and counts as no comparison.
    """
    return adjusted(p, lambda ranked: np.maximum.accumulate(ranked * np.arange(len(ranked), 0, -1)))


def adjusted(p: Sequence[float], adjust: Callable[[Floats], Floats]) -> list[float]:
    """``adjust`` applied to the p-values that exist, in ascending order, and put back in place; at most 1."""
    values = np.asarray(p, dtype=float)
    at = np.flatnonzero(~np.isnan(values))
    at = at[np.argsort(values[at], kind="stable")]
    result = values.copy()
    result[at] = np.minimum(adjust(values[at]), 1.0)
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
