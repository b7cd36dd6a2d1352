"""Confidence intervals of means over seeds, and over seeds and test rows."""

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedskew.measure.student import t_quantile, t_tail


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the mean, and the half-width of Student's t interval. For a single value the half-width is NaN."""
    v = np.asarray(values, dtype=float)
    if len(v) < 2:
        return float(v.mean()), float("nan")
    half = t_quantile(len(v) - 1, 0.5 + confidence / 2) * (v.std(ddof=1) / math.sqrt(len(v)))
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

    @abstractmethod
    def with_seeds(self, seeds: int) -> "Estimate":
        """Return the expected estimate for another number of seeds, assuming that mean and variances are the true ones."""

    def half(self, level: float = 0.05) -> float:
        """Return half the width of the interval that misses the true mean with probability ``level``; 0 without variance."""
        return max((float(t_quantile(freedom, 1 - level / 2)) * error for error, freedom in self.errors()), default=0.0)

    def p(self) -> float:
        """Return the two-sided p of the test that the true mean is 0; NaN without variance."""
        tails = [2 * t_tail(abs(self.mean) / error, freedom) if error else 0.0 for error, freedom in self.errors()]
        return max(tails, default=math.nan)

    def p_within(self, margin: float) -> float:
        """Return p of two one-sided tests that the true mean is between -``margin`` and ``margin``; NaN without variance."""
        tails = [
            t_tail((margin - abs(self.mean)) / error, freedom) if error else 0.0 for error, freedom in self.errors()
        ]
        return max(tails, default=math.nan)

    def seeds_to_decide(self, level: float = 0.05) -> int:
        """Return the smallest number of seeds expected to separate the mean from 0; 0 if even `MOST_SEEDS` are too few."""
        if not abs(self.mean) > self.with_seeds(MOST_SEEDS).half(level):
            return 0
        enough = range(self.seeds, MOST_SEEDS + 1)
        return enough[bisect_left(enough, True, key=lambda seeds: abs(self.mean) > self.with_seeds(seeds).half(level))]


MOST_SEEDS = 200


@dataclass(frozen=True)
class Crossed(Estimate):
    """An estimate over S seeds and n test rows. All seeds have the same test rows.

    ``by_seed`` is the variance between the seeds' means, ``by_row`` between the rows' means, and ``residual`` the remaining
    variance. The interval covers other seeds and other test rows. Its squared standard error is by_seed / S + by_row / n -
    residual / (S n). Student's t has Satterthwaite's degrees of freedom (Satterthwaite 1946, for two crossed random factors). The
    interval is never narrower than Student's interval over the seeds alone.
    """

    rows: int
    by_seed: float
    by_row: float
    residual: float

    def errors(self) -> list[tuple[float, float]]:
        freedom = np.array([self.seeds - 1, self.rows - 1, (self.seeds - 1) * (self.rows - 1)])
        parts = np.array([self.by_seed / self.seeds, self.by_row / self.rows, self.residual / (self.seeds * self.rows)])
        squared = max(parts[0] + parts[1] - parts[2], parts[0], parts[1])
        if squared <= (1e-9 * self.mean) ** 2:
            return []
        both = math.sqrt(squared), squared**2 / float((parts**2 / freedom).sum())
        return [both, (math.sqrt(parts[0]), self.seeds - 1.0)]

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

    def with_seeds(self, seeds: int) -> "Resampled":
        return replace(self, seeds=seeds)


TRAINING, CLIENTS = 1 / 6, 1 / 2
"""How much of Nadeau and Bengio's correction stands for common training rows, over splits of rows and over folds of clients.

With these fractions the intervals keep their level: docs/explanations/statistics.md has the simulation.
"""


@dataclass(frozen=True)
class Overlapping(Estimate):
    """An estimate over S seeds, each with its own split, whose common test rows are known.

    ``by_split`` is the variance between the splits' means, ``shared`` the covariance of two splits' means by the test rows that
    both have, and ``shared_variance`` the variance of this covariance. The squared standard error is by_split (1 / S + `TRAINING`
    ratio) + shared, with ``ratio`` test rows for each training row, and Student's t has Satterthwaite's degrees of freedom. The
    interval is never narrower than Student's interval over the splits alone.
    """

    by_split: float
    ratio: float
    shared: float
    shared_variance: float

    def errors(self) -> list[tuple[float, float]]:
        own = self.by_split * (1 / self.seeds + TRAINING * self.ratio)
        squared = own + max(self.shared, 0.0)
        if squared <= (1e-9 * self.mean) ** 2:
            return []
        freedom = squared**2 / (own**2 / (self.seeds - 1) + self.shared_variance / 2)
        return [(math.sqrt(squared), freedom), (math.sqrt(self.by_split / self.seeds), self.seeds - 1.0)]

    def with_seeds(self, seeds: int) -> "Overlapping":
        return replace(self, seeds=seeds)


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

    ``ratio`` is as in `over_splits`. The mean is that of the splits' means.
    """
    tested, means = np.isfinite(values), np.nanmean(values, axis=1)
    splits = len(values)
    share = np.where(tested, values - means[:, None], 0.0) / tested.sum(1, keepdims=True)
    # a row's share in the covariance of two splits, as a mean over all pairs of splits
    of_rows = (share.sum(0) ** 2 - (share**2).sum(0)) / (splits * (splits - 1))
    between = float(means.var(ddof=1))
    return Overlapping(
        float(means.mean()), splits, between, ratio, float(of_rows.sum()), float(np.square(of_rows).sum())
    )


def over_clients(values: NDArray[np.floating], folds: int) -> OfClients:
    """The mean of a number over folds of clients, from ``values`` (splits, clients) with NaN where a split does not test a client.

    ``folds`` is the number of folds of one repetition. The mean is that of the splits' means.
    """
    mean, own = float(np.nanmean(values, axis=1).mean()), np.nanmean(values, axis=0)
    return OfClients(mean, len(values), len(own), float(np.square(own - mean).sum()) / (len(own) - 1), folds)


def over_seeds_and_rows(values: NDArray[np.floating]) -> Crossed:
    """Estimate the mean of ``values`` (seeds, rows), at least (2, 2)."""
    seeds, rows = values.shape
    by_seed, by_row, mean = values.mean(1), values.mean(0), float(values.mean())
    rest = float(np.square(values - by_seed[:, None] - by_row + mean).sum()) / ((seeds - 1) * (rows - 1))
    return Crossed(mean, seeds, rows, float(by_seed.var(ddof=1)), float(by_row.var(ddof=1)), rest)
