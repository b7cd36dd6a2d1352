"""Turn rows of any kind into a few dozen standardised columns. Images, signals and tables are then compared alike."""

from typing import TYPE_CHECKING

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

CLIP = 5.0
"""Values are clipped at this number of standard deviations, so that outliers do not dominate."""


def embed(x: NDArray[np.generic]) -> Floats:
    """Turn rows (n, ...) into standardised columns (n, at most `WIDTH` + 1). Constant columns are left out.

    Windows (channels, time) become each channel's mean, deviation and mean step, which do not depend on where a window starts.
    Other rows are flattened. Wide rows are projected to principal directions; one more column measures the remainder.
    """
    z = standardise(flat(x))
    if z.shape[1] <= WIDTH:
        return z
    kept = principal(z)
    return standardise(np.column_stack([kept, remainder(z, kept)]))


def flat(x: NDArray[np.generic]) -> Floats:
    """Turn rows (n, ...) into columns (n, d)."""
    return signals(x) if x.ndim == 3 else np.asarray(x, dtype=np.float64).reshape(len(x), -1)


def remainder(z: Floats, kept: Floats) -> Floats:
    """Return log(1 + squared length) of the part of each row ``z`` (n, d) that the coordinates ``kept`` leave out, (n,)."""
    return np.asarray(np.log1p(np.maximum((z * z).sum(1) - (kept * kept).sum(1), 0)))


def principal(z: Floats) -> Floats:
    """Return the coordinates (n, `WIDTH`) of centred rows (n, d) along their principal directions.

    Of the two Gram matrices, (n, n) and (d, d), the smaller one is decomposed.
    """
    n, d = z.shape
    if n < d:
        values, vectors = largest(z @ z.T)
        return vectors * np.sqrt(np.maximum(values, 0))
    return z @ largest(z.T @ z / n)[1]


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


def standardise(z: Floats) -> Floats:
    """Scale columns to mean 0 and variance 1, then clip them. Leave out constant columns."""
    std = z.std(0)
    varies = std > 1e-9 * (1 + np.abs(z).max(0, initial=0))
    return np.clip((z[:, varies] - z[:, varies].mean(0)) / std[varies], -CLIP, CLIP)


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
