"""Check the advice on data sets that the model never saw. Two simple advisers are compared: always FedAvg, always the winner.

The winner is the method with the largest mean gain in the other data sets.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedskew.advice.evidence import Case, Measure
from fedskew.advice.model import Expected, Points, advisable, fit, points_of
from fedskew.measure.intervals import mean_interval
from fedskew.measure.statistics import LEVEL, paired_p

Floats = NDArray[np.float64]


class Interval(NamedTuple):
    """A mean over the data sets, with the half-width of its 95 % interval; NaN for one data set."""

    mean: float
    half: float


class Check(NamedTuple):
    """Means over the data sets. Each data set is predicted from all others. Gains are shares of FedAvg's error."""

    data_sets: int
    cases: int
    rank: Interval  # Spearman's correlation of expected and measured gains over the methods of a case
    rank_of_winner: Interval  # the same, with each method's mean gain in the other data sets as its expected gain
    covered: Interval  # share of measured gains inside their 95 % intervals
    expected: Interval  # expected gain of the advised method
    advised: Interval  # measured gain of the advised method
    winner: Interval  # measured gain of the method with the largest mean gain in the other data sets
    best: Interval  # measured gain of the best method of each case, which is known only afterwards
    beats_fedavg: bool  # the advised method does, on average over the data sets
    beats_winner: bool


class Found(NamedTuple):
    """The numbers of one case, with the same names as in `Check`."""

    data_set: str
    rank: float
    rank_of_winner: float
    covered: float
    expected: float
    advised: float
    winner: float
    best: float


def check(cases: Sequence[Case], measure: Measure) -> Check | None:
    """Predict each data set from all others. Return None for fewer than three data sets."""
    names = sorted({case.data_set for case in cases if any(line.measure == measure for line in case.methods)})
    if len(names) < 3:
        return None
    points = points_of(cases, measure)
    found = [one for name in names for one in of_data_set(cases, points, name, measure)]
    numbers = {field: by_data_set(found, field) for field in Found._fields[1:]}
    gained, won = numbers["advised"], numbers["winner"]
    return Check(
        len(names),
        len(found),
        **{field: interval(values) for field, values in numbers.items()},
        beats_fedavg=better(gained),
        beats_winner=better([a - b for a, b in zip(gained, won, strict=True)]),
    )


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of the values and the half-width of its 95 % interval. Both are NaN without values."""
    return Interval(*mean_interval(values)) if values else Interval(float("nan"), float("nan"))


def better(gains: Sequence[float]) -> bool:
    """Return True if the mean gain over the data sets is above 0 by the paired t test."""
    return paired_p(gains) < LEVEL and float(np.mean(gains)) > 0


def by_data_set(found: Sequence[Found], field: str) -> list[float]:
    """Return the mean of a number over the cases of each data set. Data sets without this number are left out."""
    names = dict.fromkeys(one.data_set for one in found)
    values = [[getattr(one, field) for one in found if one.data_set == name] for name in names]
    return [float(np.nanmean(own)) for own in values if not np.isnan(own).all()]


def of_data_set(cases: Sequence[Case], points: Points, name: str, measure: Measure) -> list[Found]:
    """Predict the cases of a data set from all others. ``points`` are the gains of all cases."""
    points = points.where(points.data_set != name)
    methods = advisable([case for case in cases if case.data_set != name], measure)
    model = fit(points)
    mean = {method: float(points.gain[points.method == method].mean()) for method in methods}
    found = []
    for case in [case for case in cases if case.data_set == name]:
        measured = {line.method: case.share(line) for line in case.methods if line.measure == measure}
        if not measured:
            continue
        expected = {method: model.expected(method, case.strengths) for method in measured}
        choice = [method for method in methods if method in measured]
        advised = best_of({method: expected[method].gain for method in choice})
        winner = best_of({method: mean[method] for method in choice})
        found.append(
            Found(
                name,
                correlation([expected[m].gain for m in choice], [measured[m] for m in choice]),
                correlation([mean[m] for m in choice], [measured[m] for m in choice]),
                float(np.mean([inside(expected[m], gain) for m, gain in measured.items()])),
                expected[advised].gain if advised else 0.0,
                measured.get(advised, 0.0),
                measured.get(winner, 0.0),
                max([0.0, *(measured[m] for m in choice)]),
            )
        )
    return found


def best_of(gains: Mapping[str, float]) -> str:
    """Return the method with the largest gain, or "" for FedAvg if no gain is above 0."""
    best = max(gains, key=lambda method: gains[method], default="")
    return best if best and gains[best] > 0 else ""


def inside(expected: Expected, gain: float) -> bool:
    return expected.low <= gain <= expected.high


def correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Return Spearman's rank correlation of ``a`` and ``b``. It is NaN if all values of one are equal."""
    from scipy.stats import rankdata

    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(rankdata(a), rankdata(b))[0, 1])
