"""Statistics that compare methods over paired seeds and data sets: tests, effect sizes, Holm's correction, ranks."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import require
from fedskew.measure.student import t_tail

Floats = NDArray[np.floating]
Decision = Literal["higher", "lower", "undecided"]
Verdict = Literal[Decision, "equivalent"]

LEVEL = 0.05
"""Level of significance of all decisions."""


def paired_p(differences: Sequence[float]) -> float:
    """Return the two-sided p of Student's t test that paired differences have mean 0; NaN for fewer than two.

    Equal differences have no standard error: p is then the probability of equal signs, 2^(1 - count), and 1 if all are 0.
    """
    d = np.asarray(differences, dtype=float)
    if len(d) < 2:
        return math.nan
    if alike(d):
        return 2.0 ** (1 - len(d)) if d[0] else 1.0
    return 2 * t_tail(abs(float(d.mean())) * math.sqrt(len(d)) / float(d.std(ddof=1)), len(d) - 1)


def equal_seeds_to_decide(level: float) -> int:
    """Return the smallest number of equal differences for which `paired_p` is below ``level``."""
    return math.floor(2 - math.log2(level))


def equivalence_p(differences: Sequence[float], margin: float, rows: float = 0.0) -> float:
    """Return p of two one-sided t tests that the mean of paired differences is within ± ``margin`` (Schuirmann 1987).

    Differences of shares, such as accuracies on ``rows`` test rows, may be equal because no row tells the methods apart. So p is at
    least the probability that no more rows than observed do if the true difference is the margin: that of a binomial
    distribution. If all differences are equal and within the margin, p is also at least 2^-count: the probability that chance
    puts all on the same side of a limit. Without ``rows``, which is for numbers that are no shares, p is 1 then.
    NaN for fewer than two differences.
    """
    d = np.asarray(differences, dtype=float)
    if len(d) < 2:
        return math.nan
    inside = margin - abs(float(d.mean()))
    if alike(d):
        over_seeds = 2.0 ** -len(d) if inside > 0 and rows else 1.0
    else:
        over_seeds = t_tail(inside * math.sqrt(len(d)) / float(d.std(ddof=1)), len(d) - 1)
    return max(over_seeds, few_rows_p(abs(float(d.mean())), margin, rows)) if rows else over_seeds


def few_rows_p(difference: float, margin: float, rows: float) -> float:
    """Return the probability of at most ``difference`` x ``rows`` successes in ``rows`` trials with probability ``margin`` each.

    The numbers need not be whole: the incomplete beta function is between the probabilities of whole numbers.
    """
    from scipy.special import betainc

    if difference >= 1:
        return 1.0
    return float(betainc(rows * (1 - difference), rows * difference + 1, max(1 - margin, 0.0)))


def decided(p: float, difference: float) -> Decision:
    """Return ``higher`` or ``lower`` by the sign of the difference if ``p`` is below 0.05, else ``undecided``."""
    if not p < LEVEL:
        return "undecided"
    return "higher" if difference > 0 else "lower"


def alike(values: Floats) -> bool:
    """True if all values are equal up to rounding. Their computed standard deviation may still be above 0."""
    return bool(np.ptp(values) <= 1e-9 * np.abs(values).max() < math.inf)


def hedges_g(differences: Sequence[float]) -> float:
    """Return paired Cohen's d (mean over standard deviation) times Hedges's exact small-sample correction (Hedges 1981).

    For two differences the correction does not exist and is left out. NaN for fewer than two, and if all are equal.
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
    """Return P(a > b) - P(a < b) over all pairs, in -1..1; NaN if ``a`` or ``b`` is empty."""
    x, y = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    return float(np.sign(x[:, None] - y).mean()) if len(x) and len(y) else math.nan


def holm(p: Sequence[float]) -> list[float]:
    """Return p values after Holm's step-down correction, at most 1 (Holm 1979).

    With a level of 0.05 the probability of any false rejection is at most 5 %. NaN stays NaN and does not count.
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
    p: float  # Friedman's test that all methods are equal; NaN for fewer than three methods or fewer than two blocks
    critical_difference: float  # Nemenyi's difference of mean ranks at the 5 % level; NaN in the same cases

    def cliques(self) -> list[tuple[int, ...]]:
        """Return the largest groups of methods whose mean ranks do not differ significantly, the best group first."""
        order = np.argsort(self.mean, kind="stable")
        groups: list[tuple[int, ...]] = []
        for i, best in enumerate(order):
            group = tuple(int(k) for k in order[i:] if self.mean[k] - self.mean[best] < self.critical_difference)
            if len(group) > 1 and not any(set(group) <= set(other) for other in groups):
                groups.append(group)
        return groups


def rank_methods(scores: Floats, confidence: float = 0.95) -> Ranks:
    """Rank methods by Friedman's test and Nemenyi's critical difference (Demsar 2006).

    ``scores`` is (blocks, methods); larger is better. Raises `BadInput` for missing scores.
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
