"""Statistics that compare methods over paired seeds and data sets: intervals, tests, effect sizes, ranks, parts of the variance."""

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedskew.core.errors import require


def t_quantile(freedom: ArrayLike, probability: float = 0.975) -> NDArray[np.float64]:
    """Return the quantile for each number of degrees of ``freedom``; probability 0.975 gives 95 % intervals."""
    from scipy.special import stdtrit

    return np.asarray(stdtrit(np.asarray(freedom, dtype=float), probability))


def t_tail(value: float, freedom: float) -> float:
    """Return the probability that t is above ``value``."""
    from scipy.special import stdtr

    return float(stdtr(freedom, -value))


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean, and the half-width of Student's 95 % interval. It is NaN for a single value, and both are without values."""
    v = np.asarray(values, dtype=float)
    if len(v) < 2:
        return float(v.mean()) if len(v) else math.nan, math.nan
    half = t_quantile(len(v) - 1) * (v.std(ddof=1) / math.sqrt(len(v)))
    return float(v.mean()), float(half)


@dataclass(frozen=True)
class Estimate(ABC):
    """The mean of a number over ``seeds`` seeds, with an interval that also covers other seeds or test rows."""

    mean: float
    seeds: int

    @abstractmethod
    def errors(self) -> list[tuple[float, float]]:
        """Return (standard error, degrees of freedom) of one or more intervals; the widest interval counts.

        If there is no variance, the list is empty.
        """

    def with_seeds(self, seeds: int) -> "Estimate":
        """Return the expected estimate for another number of seeds, assuming that mean and variances are the true ones."""
        return replace(self, seeds=seeds)

    def half(self, level: float = 0.05) -> float:
        """Return half the width of the interval that misses the true mean with probability ``level``; 0 without variance."""
        return max((float(t_quantile(freedom, 1 - level / 2)) * error for error, freedom in self.errors()), default=0.0)

    def tail(self, distance: float) -> float:
        """Return the probability of an error above ``distance``, by the widest interval; NaN without variance."""
        tails = [t_tail(distance / error, freedom) if error else 0.0 for error, freedom in self.errors()]
        return max(tails, default=math.nan)

    def p(self) -> float:
        """Return the two-sided p of the test that the true mean is 0; NaN without variance."""
        return 2 * self.tail(abs(self.mean))

    def p_within(self, margin: float) -> float:
        """Return p of two one-sided tests that the true mean is between -``margin`` and ``margin``; NaN without variance."""
        return self.tail(margin - abs(self.mean))

    def seeds_to_decide(self, level: float = 0.05) -> int:
        """Return the smallest number of seeds expected to separate the mean from 0; 0 if even `MOST_SEEDS` are too few."""
        numbers = range(self.seeds, MOST_SEEDS + 1)
        return smallest(numbers, lambda seeds: abs(self.mean) > self.with_seeds(seeds).half(level))

    def with_rows(self, factor: float) -> "Estimate":
        """Return the expected estimate for ``factor`` times as many rows. Variances by rows fall as 1 / rows."""
        return self

    def with_variance(self, factor: float) -> "Estimate":
        """Return the expected estimate if the variance between the seeds' means is ``factor`` times as large."""
        return self

    def rows_to_decide(self, level: float = 0.05) -> float:
        """Return the smallest factor on the rows expected to separate the mean from 0; 0 if even `MOST_ROWS` is too little."""
        tenths = range(10, 10 * MOST_ROWS + 1)
        return smallest(tenths, lambda tenth: abs(self.mean) > self.with_rows(tenth / 10).half(level)) / 10

    def flips(self) -> float:
        """Return the probability that a repeat of the same size has a mean of the other sign; NaN without variance.

        The difference of two independent means of equal size has sqrt(2) times the standard error.
        """
        return self.tail(abs(self.mean) / math.sqrt(2))


MOST_SEEDS, MOST_ROWS = 200, 100


def smallest(candidates: range, enough: Callable[[int], bool]) -> int:
    """Return the first of the ascending ``candidates`` that is ``enough``; 0 if the last one is not. ``enough`` is monotone."""
    if not candidates or not enough(candidates[-1]):
        return 0
    return candidates[bisect_left(candidates, True, key=enough)]


@dataclass(frozen=True)
class Crossed(Estimate):
    """An estimate over S seeds and n test rows. All seeds have the same test rows.

    ``by_seed`` is the variance between the seeds' means, ``by_row`` between the rows' means, and ``residual`` the remaining
    variance. The interval covers other seeds and other test rows. Its squared standard error is s^2 = by_seed / S + by_row / n -
    residual / (S n). Student's t has half of Satterthwaite's (1946) degrees of freedom, but at least s^2 / (by_seed / (S (S - 1))
    + by_row / (n (n - 1))). With this minimum the squared interval is about the sum of the squared intervals of seeds and of rows
    (Banerjee 1960). With all of Satterthwaite's degrees of freedom 5.7 % of the intervals could miss, not 5 %, if few seeds are
    alike by chance. The interval is never narrower than Student's interval over the seeds alone.
    """

    rows: int
    by_seed: float
    by_row: float
    residual: float

    def errors(self) -> list[tuple[float, float]]:
        of_seeds, of_rows = self.by_seed / self.seeds, self.by_row / self.rows
        squared = max(of_seeds + of_rows - self.residual / (self.seeds * self.rows), of_seeds, of_rows)
        if squared <= (1e-9 * self.mean) ** 2:
            return []
        shares, freedom = np.array([of_seeds, of_rows]) / squared, np.array([self.seeds - 1, self.rows - 1])
        satterthwaite, at_least = 1 / float((shares**2 / freedom).sum()), 1 / float((shares / freedom).sum())
        both = math.sqrt(squared), max(satterthwaite / 2, at_least)
        return [both, (math.sqrt(of_seeds), self.seeds - 1.0)]

    def with_rows(self, factor: float) -> "Crossed":
        rows = round(self.rows * factor)
        by_seed = max(self.by_seed - self.residual / self.rows, 0.0) + self.residual / rows
        return replace(self, rows=rows, by_seed=by_seed)

    def with_variance(self, factor: float) -> "Crossed":
        return replace(self, by_seed=self.by_seed * factor)

    def with_seeds(self, seeds: int) -> "Crossed":
        by_row = max(self.by_row - self.residual / self.seeds, 0.0) + self.residual / seeds
        return replace(self, seeds=seeds, by_row=by_row)


@dataclass(frozen=True)
class Resampled(Estimate):
    """An estimate over S seeds, each with its own split into training and test rows: the corrected resampled t test.

    Splits of the same rows have training or test rows in common, so their results are not independent. Nadeau and Bengio (2003)
    take variance (1 / S + ``ratio``) as the squared standard error, with ``ratio`` test rows for each training row, and S - 1
    degrees of freedom, at most ``most_freedom``.
    """

    variance: float
    ratio: float
    most_freedom: float = math.inf

    def errors(self) -> list[tuple[float, float]]:
        error = math.sqrt(self.variance * (1 / self.seeds + self.ratio))
        return [(error, min(self.seeds - 1.0, self.most_freedom))] if error > 1e-9 * abs(self.mean) else []

    def with_variance(self, factor: float) -> "Resampled":
        return replace(self, variance=self.variance * factor)

    def with_rows(self, factor: float) -> "Resampled":
        return self.with_variance(1 / factor)


TRAINING, CLIENTS = 1 / 6, 1 / 2
"""How much of Nadeau and Bengio's correction stands for common training rows, over splits of rows and over folds of clients.

With these fractions the intervals keep their level: docs/explanations/statistics.md has the simulation.
"""


@dataclass(frozen=True)
class Overlapping(Estimate):
    """An estimate over S seeds, each with its own split, whose common test rows are known.

    ``by_split`` is the variance between the splits' means, ``by_rows`` the variance of a split's mean by its test rows, ``shared``
    the covariance of two splits' means by the test rows that both have, and ``shared_variance`` the variance of this covariance.
    The squared standard error is by_split (1 / S + `TRAINING` ratio) + shared, with ``ratio`` test rows for each training row, and
    Student's t has Satterthwaite's degrees of freedom. The interval is never narrower than Student's interval over the splits
    alone.
    """

    by_split: float
    ratio: float
    shared: float
    shared_variance: float
    by_rows: float

    def errors(self) -> list[tuple[float, float]]:
        of_splits = self.by_split * (1 / self.seeds + TRAINING * self.ratio)
        squared = of_splits + max(self.shared, 0.0)
        if squared <= (1e-9 * self.mean) ** 2:
            return []
        freedom = squared**2 / (of_splits**2 / (self.seeds - 1) + self.shared_variance / 2)
        return [(math.sqrt(squared), freedom), (math.sqrt(self.by_split / self.seeds), self.seeds - 1.0)]

    def with_variance(self, factor: float) -> "Overlapping":
        return replace(self, by_split=self.by_split * factor)

    def with_rows(self, factor: float) -> "Overlapping":
        by_rows, shared, variance = self.by_rows / factor, self.shared / factor, self.shared_variance / factor**2
        # splits with rows in common differ less by their rows
        by_split = max(self.by_split - self.by_rows + self.shared, 0.0) + by_rows - shared
        return replace(self, by_split=by_split, by_rows=by_rows, shared=shared, shared_variance=variance)


@dataclass(frozen=True)
class OfClients(Estimate):
    """An estimate over folds of ``clients``, each tested once in a repetition, with the ``variance`` between their own means.

    The squared standard error is variance / clients (1 + `CLIENTS` folds / (folds - 1)), with clients - 1 degrees of freedom. More
    repetitions bring no new clients.
    """

    clients: int
    variance: float
    folds: int

    def errors(self) -> list[tuple[float, float]]:
        squared = self.variance / self.clients * (1 + CLIENTS * self.folds / (self.folds - 1))
        return [(math.sqrt(squared), self.clients - 1)] if squared > (1e-9 * self.mean) ** 2 else []

    def with_seeds(self, seeds: int) -> "OfClients":
        return self


def over_splits(values: Sequence[float], ratio: float, most_freedom: float = math.inf) -> Resampled:
    """The mean of a number over at least two splits, with ``ratio`` test rows for each training row."""
    v = np.asarray(values, dtype=float)
    return Resampled(float(v.mean()), len(v), float(v.var(ddof=1)), ratio, most_freedom)


def over_common_rows(values: NDArray[np.floating], ratio: float) -> Overlapping:
    """The mean of a number over at least two splits, from ``values`` (splits, rows) with NaN where a split does not test a row.

    ``ratio`` is as in `over_splits`. The mean is the mean of the splits' means.
    """
    tested, means = np.isfinite(values), np.nanmean(values, axis=1)
    splits = len(values)
    share = np.where(tested, values - means[:, None], 0.0) / tested.sum(1, keepdims=True)
    # a row's share in the covariance of two splits, as a mean over all pairs of splits
    of_rows = (share.sum(0) ** 2 - (share**2).sum(0)) / (splits * (splits - 1))
    between, common = float(means.var(ddof=1)), (float(of_rows.sum()), float(np.square(of_rows).sum()))
    return Overlapping(float(means.mean()), splits, between, ratio, *common, float((share**2).sum() / splits))


def over_clients(values: NDArray[np.floating], folds: int) -> OfClients:
    """The mean of a number over folds of clients, from ``values`` (splits, clients) with NaN where a split does not test a client.

    ``folds`` is the number of folds of one repetition. The mean is the mean of the splits' means.
    """
    mean, of_clients = float(np.nanmean(values, axis=1).mean()), np.nanmean(values, axis=0)
    variance = float(np.square(of_clients - mean).sum()) / (len(of_clients) - 1)
    return OfClients(mean, len(values), len(of_clients), variance, folds)


def over_seeds_and_rows(values: NDArray[np.floating]) -> Crossed:
    """Estimate the mean of ``values`` (seeds, rows), at least (2, 2)."""
    seeds, rows = values.shape
    by_seed, by_row, mean = values.mean(1), values.mean(0), float(values.mean())
    rest = float(np.square(values - by_seed[:, None] - by_row + mean).sum()) / ((seeds - 1) * (rows - 1))
    return Crossed(mean, seeds, rows, float(by_seed.var(ddof=1)), float(by_row.var(ddof=1)), rest)


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


def flipped_p(differences: Sequence[float]) -> float:
    """Return the two-sided p of Fisher's (1935) test that paired differences (n,) are symmetric around 0.

    It is the share of all 2^n choices of signs for which the sum is at least as far from 0. Nothing is assumed about the
    distribution. Memory grows with n 2^n.
    """
    d = np.asarray(differences, dtype=float)
    signs = 1 - 2 * (np.arange(2 ** len(d))[:, None] >> np.arange(len(d)) & 1)
    return float((np.abs(signs @ d) >= abs(d.sum()) - 1e-12 * np.abs(d).sum()).mean())


def equal_seeds_to_decide(level: float) -> int:
    """Return the smallest number of equal differences for which `paired_p` is below ``level``."""
    return math.floor(2 - math.log2(level))


def equivalence_p(differences: Sequence[float], margin: float, rows: float = 0.0) -> float:
    """Return p of two one-sided t tests that the mean of paired differences is within ± ``margin`` (Schuirmann 1987).

    Differences of shares, such as accuracies on ``rows`` test rows, may be equal because the methods answer every test row alike.
    So p is at least the binomial probability that no more rows than observed differ if the true difference is the margin. If all
    differences are equal and within the margin, p is also at least 2^-count: the probability that chance puts all on the same side
    of a limit. Without ``rows``, which is for numbers that are no shares, p is 1 then.
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


def rank_methods(scores: Floats) -> Ranks:
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
    q = float(stats.studentized_range.ppf(1 - LEVEL, methods, math.inf)) / math.sqrt(2)
    return Ranks(mean, p, q * math.sqrt(methods * (methods + 1) / (6 * blocks)))


class Components(NamedTuple):
    """Parts of the variance of one run's number, in squared units, each at least 0."""

    split: float  # by the choice of the test rows
    partition: float
    seed: float  # by the training seed within a partition
    interaction: float  # method x partition: how much a method's lead depends on the partition

    def shares(self) -> "Components":
        """Return the parts as shares of their sum; NaN without variance."""
        whole = sum(self)
        return Components(*(part / whole if whole else np.nan for part in self))


def variance_components(values: Floats, of_rows: float = 0.0, redrawn: bool = False, dealt: bool = True) -> Components:
    """Divide the variance of ``values`` (methods, partitions, seeds), at least (2, 2, 2).

    The seeds of a cell are the repeats of a two-way table with fixed methods and random partitions. The estimator is the analysis
    of variance: mean squares are set equal to their expectations, and a negative part becomes 0. ``of_rows`` is the variance by
    the choice of the test rows that the methods share. If the test rows are ``redrawn`` with each partition, it is a part of the
    partitions' variance, and all of it where the rows are not ``dealt``: natural clients are the same in every partition.
    """
    methods, partitions, seeds = values.shape
    cells = values.mean(2)
    rest = cells - cells.mean(1, keepdims=True) - cells.mean(0) + cells.mean()
    within = float(values.var(axis=2, ddof=1).mean())
    crossed = seeds * float(np.square(rest).sum()) / ((methods - 1) * (partitions - 1))
    between = seeds * methods * float(cells.mean(0).var(ddof=1))
    of_partitions = max(0.0, (between - crossed) / (seeds * methods))
    split = (min(of_rows, of_partitions) if dealt else of_partitions) if redrawn else of_rows
    return Components(split, of_partitions - split * redrawn, within, max(0.0, (crossed - within) / seeds))


def shared_by_rows(values: Floats) -> float:
    """Return the variance of a mean over the test rows that methods share, from ``values`` (methods, rows).

    It is the mean covariance of two methods' values, at least 0, divided by the number of rows.
    """
    covariance = np.atleast_2d(np.cov(values))
    methods, rows = values.shape
    return max(0.0, float(covariance.sum() - covariance.trace()) / (methods * (methods - 1) * rows))


def variance_with(seeds: int, table: Floats) -> float:
    """Return the variance between the partitions' means with this number of ``seeds``, relative to the present one.

    ``table`` (partitions, seeds) are numbers, at least (2, 2): the partitions' means vary by themselves and by their seeds.
    """
    present, of_seeds = float(table.mean(1).var(ddof=1)), float(table.var(axis=1, ddof=1).mean())
    now = max(present, of_seeds / table.shape[1])
    return (now - of_seeds / table.shape[1] + of_seeds / seeds) / now if now else 1.0
