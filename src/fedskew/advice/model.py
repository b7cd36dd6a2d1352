"""The expected gain of each method from the strengths of the faces: a model over all cases, checked on data sets that it never saw.

The gain, as a share of FedAvg's error, is a line in the four strengths that all methods have in common, plus a line of the
method's own. Ridge regression draws both towards 0: each counts as if `PRIOR` further gains had shown none. A method that was
measured in few cases therefore stays near the common line.

The interval comes from the data sets themselves. Each is left out in turn, and its gains are predicted from the others. A method's
scale is the root mean square of its errors, drawn by `PRIOR` cases towards the scale of all methods. The half-width is this scale
times the factor that covers 95 % of all errors.
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
"""Share of the cases in which a method must have been measured before it is advised."""


class Expected(NamedTuple):
    """The expected share of FedAvg's error that a method removes, with its 95 % interval."""

    method: str
    gain: float
    low: float
    high: float


class Points(NamedTuple):
    """All gains on a measure, one a row."""

    data_set: NDArray[np.str_]
    method: NDArray[np.str_]
    faces: Floats  # (n, 5): 1 and the strengths
    gain: Floats

    def where(self, chosen: NDArray[np.bool_]) -> "Points":
        return Points(self.data_set[chosen], self.method[chosen], self.faces[chosen], self.gain[chosen])


class Model(NamedTuple):
    """The common line, each method's own line, and the half-widths of the intervals."""

    common: Floats  # (5,)
    own: Mapping[str, Floats]
    half: Mapping[str, float]
    half_of_others: float

    def expected(self, method: str, strengths: Strengths) -> Expected:
        """The method's expected gain; an unknown method has the common line."""
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
    """The methods that may be advised: federated ones that were measured in half of the cases or more."""
    often: dict[str, int] = {}
    for case in cases:
        for line in case.methods:
            if line.measure == measure and line.method not in (*BOUNDS, *PUBLISHED, REFERENCE):
                often[line.method] = often.get(line.method, 0) + 1
    return [method for method, number in often.items() if number >= OFTEN * len(cases)]


def lines(points: Points) -> tuple[Floats, dict[str, Floats]]:
    """The common line (5,), and each method's own line."""
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
    """The expected gains (n,) of the rows."""
    slopes = np.array([common + own.get(method, 0.0) for method in points.method.tolist()])
    result: Floats = np.einsum("nk,nk->n", points.faces, slopes.reshape(points.faces.shape))
    return result


def left_out(points: Points) -> Floats:
    """The expected gain (n,) of each row, from the data sets other than its own."""
    result = np.zeros(len(points.gain))
    for name in np.unique(points.data_set):
        mine = points.data_set == name
        if not mine.all():
            result[mine] = predicted(points.where(mine), *lines(points.where(~mine)))
    return result


def fit(points: Points) -> Model:
    """The model of these gains."""
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
