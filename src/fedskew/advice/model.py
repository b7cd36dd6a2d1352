"""A model that predicts the gain of each method from the strengths of the faces. `check` tests it on unseen data sets.

The gain is a share of FedAvg's error. It is the sum of two linear functions of the four strengths: a common one for all methods,
and one for each method. Ridge regression with weight `PRIOR` shrinks both towards 0, as if `PRIOR` more gains of 0 had been
measured. A method with few cases therefore stays near the common function.

The intervals come from prediction errors: each data set in turn is left out, and its gains are predicted from the others. A
method's scale is the root mean square of its errors. `PRIOR` more cases with the error of all methods shrink it towards that
error. The half-width is this scale times the factor with which 95 % of all errors are covered.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedskew.advice.evidence import FACES, Case, Measure, Strengths
from fedskew.advice.protocol import BOUNDS, PUBLISHED, REFERENCE

Floats = NDArray[np.float64]

PRIOR = 3.0
LEVEL = 0.95
OFTEN = 0.5
"""A method is advised only if it was measured in at least this share of the cases."""


class Expected(NamedTuple):
    """The expected share of FedAvg's error that a method removes, with its 95 % interval."""

    method: str
    gain: float
    low: float
    high: float


class Points(NamedTuple):
    """All gains on one measure. Each array has one row for each gain."""

    data_set: NDArray[np.str_]
    method: NDArray[np.str_]
    faces: Floats  # (n, 5): 1 and the four strengths
    gain: Floats

    def where(self, chosen: NDArray[np.bool_]) -> "Points":
        return Points(self.data_set[chosen], self.method[chosen], self.faces[chosen], self.gain[chosen])


class Model(NamedTuple):
    """The coefficients of the common function and of each method's function, and the half-widths of the intervals."""

    common: Floats  # (5,)
    own: Mapping[str, Floats]
    half: Mapping[str, float]
    half_of_others: float

    def expected(self, method: str, strengths: Strengths) -> Expected:
        """Return the method's expected gain. An unknown method has only the common function."""
        at = row(strengths)
        gain = float(at @ (self.common + self.own.get(method, 0.0)))
        half = self.half.get(method, self.half_of_others)
        return Expected(method, min(gain, 1.0), gain - half, min(gain + half, 1.0))


def row(strengths: Strengths) -> Floats:
    return np.array([1.0, *(strengths.get(face, 0.0) for face in FACES)])


def points_of(cases: Sequence[Case], measure: Measure) -> Points:
    """The gains on a measure in all cases."""
    found = [(case, line) for case in cases for line in case.methods if line.measure == measure]
    return Points(
        np.array([case.data_set for case, _ in found], dtype=np.str_),
        np.array([line.method for _, line in found], dtype=np.str_),
        np.array([row(case.strengths) for case, _ in found]).reshape(-1, 1 + len(FACES)),
        np.array([case.share(line) for case, line in found]),
    )


def advisable(cases: Sequence[Case], measure: Measure) -> list[str]:
    """Return the methods that may be advised: federated methods that were measured in at least half of the cases."""
    often: dict[str, int] = {}
    for case in cases:
        for line in case.methods:
            if line.measure == measure and line.method not in (*BOUNDS, *PUBLISHED, REFERENCE):
                often[line.method] = often.get(line.method, 0) + 1
    return [method for method, number in often.items() if number >= OFTEN * len(cases)]


def lines(points: Points) -> tuple[Floats, dict[str, Floats]]:
    """Fit the coefficients (5,) of the common function and of each method's function."""
    names, at = np.unique(points.method, return_inverse=True)
    mine = (at == np.arange(len(names))[:, None]).astype(np.float64)
    faces, width = points.faces, points.faces.shape[1]
    # of each method; its own line is solved for given the common one
    products = (mine @ (faces[:, :, None] * faces[:, None]).reshape(-1, width**2)).reshape(-1, width, width)
    sums = mine @ (faces * points.gain[:, None])
    ridge = PRIOR * np.eye(width)
    both = np.concatenate([products, sums[..., None]], axis=2)
    solved = np.linalg.solve(products + ridge, both)
    left = (both - products @ solved).sum(0)
    common = np.linalg.solve(left[:, :-1] + ridge, left[:, -1])
    return common, dict(zip(names.tolist(), solved[..., -1] - solved[..., :-1] @ common, strict=True))


def predicted(points: Points, common: Floats, own: Mapping[str, Floats]) -> Floats:
    """Return the expected gains (n,) of the rows."""
    slopes = np.array([common + own.get(method, 0.0) for method in points.method.tolist()])
    result: Floats = np.einsum("nk,nk->n", points.faces, slopes.reshape(points.faces.shape))
    return result


def left_out(points: Points) -> Floats:
    """Return the expected gain (n,) of each row, predicted without the row's data set."""
    result = np.zeros(len(points.gain))
    for name in np.unique(points.data_set):
        mine = points.data_set == name
        if not mine.all():
            result[mine] = predicted(points.where(mine), *lines(points.where(~mine)))
    return result


def fit(points: Points) -> Model:
    """Fit the model to these gains."""
    error = points.gain - left_out(points)
    total = float(np.mean(error**2)) if len(error) else 1.0
    scale, half = {}, np.sqrt(total)
    for method in np.unique(points.method).tolist():
        mine = error[points.method == method]
        scale[method] = float(np.sqrt((PRIOR * total + np.sum(mine**2)) / (PRIOR + len(mine))))
    factor = 1.0
    if total > 0:
        relative = np.abs(error) / np.array([scale[method] for method in points.method.tolist()])
        factor = float(np.quantile(relative, LEVEL)) if len(relative) else 1.0
    common, own = lines(points)
    return Model(common, own, {method: factor * value for method, value in scale.items()}, float(factor * half))
