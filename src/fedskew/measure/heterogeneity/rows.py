"""Rows of any kind as a few dozen standardised numbers, so that images, signals and tables can be compared in the same way."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

WIDTH = 48
"""Wider rows are projected to so many principal directions of everybody's rows."""

MANY = 1000
"""Columns above which the smaller eigenvalues are left out."""

CLIP = 5.0
"""Standard deviations beyond which a value counts as this far: a few huge values would be all that is seen."""


def embed(x: NDArray[Any]) -> Floats:
    """(n, ...) rows of one shape to (n, at most `WIDTH` + 1) standardised columns; constant ones are left out.

    Rows of channels by time become each channel's mean, spread and roughness, which do not depend on where a window was cut.
    Other rows are flattened; wide ones are projected to principal directions, and one more column says how much that leaves out.
    """
    flat = signals(x) if x.ndim == 3 else np.asarray(x, dtype=np.float64).reshape(len(x), -1)
    z = standardise(flat)
    if z.shape[1] <= WIDTH:
        return z
    kept = principal(z)
    left = (z * z).sum(1) - (kept * kept).sum(1)
    return standardise(np.column_stack([kept, np.log1p(np.maximum(left, 0))]))


def principal(z: Floats) -> Floats:
    """(n, `WIDTH`) coordinates of centred rows along their principal directions, by the smaller of the two products with itself.

    Without all directions where there are many, which takes a third of the time.
    """
    n, d = z.shape
    if n < d:
        values, vectors = largest(z @ z.T)
        return vectors * np.sqrt(np.maximum(values, 0))
    return z @ largest(z.T @ z / n)[1]


def largest(s: Floats) -> tuple[Floats, Floats]:
    """The `WIDTH` largest eigenvalues of a symmetric matrix, ascending, and their vectors."""
    from scipy import linalg

    if len(s) <= MANY:
        values, vectors = np.linalg.eigh(s)
        return values[-WIDTH:], vectors[:, -WIDTH:]
    values, vectors = linalg.eigh(s, subset_by_index=(len(s) - WIDTH, len(s) - 1))
    return np.asarray(values), np.asarray(vectors)


def signals(x: NDArray[Any]) -> Floats:
    """(n, channels, time) to (n, 3 channels): mean, logarithm of the spread, and of the mean step."""
    x = np.asarray(x, dtype=np.float64)
    spread, step = x.std(2), np.abs(np.diff(x, axis=2)).mean(2) if x.shape[2] > 1 else np.zeros(x.shape[:2])
    return np.concatenate([x.mean(2), np.log(spread + 1e-3), np.log(step + 1e-3)], axis=1)


def standardise(z: Floats) -> Floats:
    """Columns of mean 0 and variance 1, clipped; without those that do not vary."""
    spread = z.std(0)
    varies = spread > 1e-9 * (1 + np.abs(z).max(0, initial=0))
    return np.clip((z[:, varies] - z[:, varies].mean(0)) / spread[varies], -CLIP, CLIP)


def sums_by(groups: Ints, number: int, values: Floats) -> Floats:
    """(number, d) sums of the rows of each group."""
    from scipy.sparse import csr_array

    ones = csr_array((np.ones(len(groups)), groups, np.arange(len(groups) + 1)), shape=(len(groups), number))
    return np.asarray(ones.T @ values)


def table(groups: Ints, columns: Ints, shape: tuple[int, int]) -> Floats:
    """(groups, columns) counts."""
    return np.bincount(groups * shape[1] + columns, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64)


def divided(a: NDArray[Any], b: NDArray[Any]) -> Floats:
    """``a / b``, and 0 where ``b`` is 0."""
    return np.divide(a, b, out=np.zeros(np.broadcast_shapes(a.shape, b.shape)), where=b != 0)
