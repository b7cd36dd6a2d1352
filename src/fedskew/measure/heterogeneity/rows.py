"""Turn rows of any kind into a few dozen standardised columns. Images, signals and tables are then compared alike."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csc_array

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Numbers = NDArray[np.floating] | NDArray[np.integer]

WIDTH = 48
"""Maximum number of columns. Wider rows are projected to this number of principal directions."""

MANY = 1000
"""For matrices larger than this, only the largest eigenvalues are computed."""

MOST_INPUTS = 5_792
"""Maximum number of inputs whose products a site computes: they fill a message of 256 MiB."""

CLIP = 5.0
"""Values are clipped at this number of standard deviations, so that outliers do not dominate."""


def flat(x: NDArray[Any]) -> NDArray[Any]:
    """Turn rows (n, ...) into columns (n, d).

    Windows (channels, time) become each channel's mean, deviation and mean step, which do not depend on where a window starts.
    """
    return signals(x) if x.ndim == 3 else x.reshape(len(x), -1)


def standardised(x: NDArray[np.generic]) -> NDArray[np.float32]:
    """Scale columns (n, d) to mean 0 and variance 1. Constant columns become 0."""
    scaled = np.empty(x.shape, dtype=np.float32)
    for lo in range(0, x.shape[1], WIDTH):  # a few columns at a time need little memory
        part = x[:, lo : lo + WIDTH].astype(np.float64)
        deviation = part.std(0)
        varies = deviation > 1e-9 * (1 + np.abs(part).max(0))
        scaled[:, lo : lo + WIDTH] = divided(part - part.mean(0), np.where(varies, deviation, 0.0))
    return scaled


def largest(s: Floats) -> tuple[Floats, Floats]:
    """Return the `WIDTH` largest eigenvalues of a symmetric matrix, ascending, and their eigenvectors."""
    from scipy import linalg

    if len(s) <= MANY:
        values, vectors = np.linalg.eigh(s)
        return values[-WIDTH:], vectors[:, -WIDTH:]
    values, vectors = linalg.eigh(s, subset_by_index=(len(s) - WIDTH, len(s) - 1))
    return np.asarray(values), np.asarray(vectors)


def signals(x: NDArray[np.generic]) -> Floats:
    """Turn windows (n, channels, time) into (n, 3 channels): mean, log deviation, and log mean step."""
    v = np.asarray(x, dtype=np.float64)
    step = np.abs(np.diff(v, axis=2)).mean(2) if v.shape[2] > 1 else np.zeros(v.shape[:2])
    return np.concatenate([v.mean(2), np.log(v.std(2) + 1e-3), np.log(step + 1e-3)], axis=1)


def members(groups: Ints, number: int) -> "csc_array":
    """Return a sparse matrix (number, n): 1 if the row belongs to the group. ``groups`` is (n,)."""
    from scipy.sparse import csr_array

    return csr_array((np.ones(len(groups)), groups, np.arange(len(groups) + 1)), shape=(len(groups), number)).T


def sums_by(groups: Ints, number: int, values: Floats) -> Floats:
    """Return the sums (number, d) of the rows ``values`` (n, d) of each group."""
    return np.asarray(members(groups, number) @ values)


def table(groups: Ints, columns: Ints, shape: tuple[int, int]) -> Floats:
    """Count rows by group and column; return a table of this ``shape``."""
    return np.bincount(groups * shape[1] + columns, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64)


def divided(a: Numbers, b: Numbers) -> Floats:
    """Return ``a / b``, and 0 where ``b`` is 0."""
    return np.divide(a, b, out=np.zeros(np.broadcast_shapes(a.shape, b.shape)), where=b != 0)
