"""Sums of each site's rows, and the change of rows by site that is fitted to them. Importing it loads no PyTorch."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Ints = NDArray[np.int64]


class SiteSums(NamedTuple):
    """Numbers that K sites compute, each from its own training rows of D columns; p columns are protected."""

    rows: Floats  # (K,) numbers of rows
    mean: Floats  # (K, D)
    squares: Floats  # (K, D) sums of the squared differences from the site's mean
    products: Floats  # (K, p, D) sums of the products of a protected column's and a column's differences from the site's means
    protected: Ints  # (p,) positions of the protected columns

    @classmethod
    def of(cls, sites: Sequence[Floats], protected: Ints) -> "SiteSums":
        """Return the sums of sites with these rows (n_k, D), in float64. No site needs another's rows.

        The squares of a column that is constant at a site are exactly 0.
        """
        parts = []
        for rows in sites:
            varies = np.ptp(rows, axis=0) > 0
            mean = np.where(varies, rows.mean(0, dtype=np.float64), rows[0])
            apart = np.where(varies, rows - mean, 0.0)
            parts.append((len(rows), mean, np.square(apart).sum(0), apart[:, protected].T @ apart))
        rows, mean, squares, products = (np.array(part, dtype=np.float64) for part in zip(*parts, strict=True))
        return cls(rows, mean, squares, products, protected)

    @property
    def shares(self) -> Floats:
        """Each site's share (K,) of all rows."""
        return self.rows / self.rows.sum()

    def pooled(self) -> tuple[Floats, Floats]:
        """Return mean and standard deviation (D,) of all sites' rows together, about their common mean."""
        mean = self.shares @ self.mean
        within = self.squares + self.rows[:, None] * np.square(self.mean - mean)
        return mean, np.sqrt(within.sum(0) / self.rows.sum())


class SiteMaps(NamedTuple):
    """The change of rows by site: ``row * factor + offset``, plus ``row[protected] @ effect``.

    There are K sites and D columns. The last entry of each array, K, is for rows of unknown sites.
    """

    factor: Floats  # (K + 1, D)
    offset: Floats  # (K + 1, D)
    effect: Floats  # (K + 1, p, D)
    protected: Ints  # (p,)

    def only(self, site: int) -> "SiteMaps":
        """Return the map of one site alone; -1 for unknown sites."""
        return SiteMaps(self.factor[[site]], self.offset[[site]], self.effect[[site]], self.protected)

    def changed(self, x: Floats, site: Ints) -> Floats:
        """Return the rows (n, D) in their type. ``site`` (n,) is each row's site, 0 to K - 1, or -1 for an unknown site."""
        result = x * self.factor[site] + self.offset[site]
        for at, column in enumerate(self.protected):
            result += x[:, column, None] * self.effect[site, at]
        return result.astype(x.dtype)


@runtime_checkable
class Harmonisation(Protocol):
    """Removes differences between sites that a model should not learn. A site is a client."""

    @property
    def unknown(self) -> str:
        """What happens to rows whose site is not known, or took no part in training, as the end of "such rows are ..."."""


@runtime_checkable
class RowHarmonisation(Harmonisation, Protocol):
    """Changes input rows by site, before training and before each use of a model.

    ``own_rows_only`` is optional: True if a site's change depends on its own rows alone. Then nodes send no sums.
    """

    @property
    def protected(self) -> tuple[str, ...]:
        """Names of columns whose sums `fit` gets beside the others'."""

    def fit(self, sites: SiteSums) -> SiteMaps:
        """Return the change of rows by site, from the sums of the sites' training rows."""


def of_own_rows(harmonisation: RowHarmonisation) -> bool:
    """Return if a site's change depends on its own rows alone."""
    return bool(getattr(harmonisation, "own_rows_only", False))


@runtime_checkable
class OutputHarmonisation(Harmonisation, Protocol):
    """Adds an intercept of each site to the model's outputs. It never leaves the site."""

    @property
    def rate(self) -> float:
        """How many times as long a training step of the intercept is as one of the shared parameters; 0: it is not trained."""

    def intercept(self, counts: Floats, total: Floats) -> Floats | None:
        """Return the intercept (..., C) of sites with ``counts`` (..., C) rows of each class; ``total`` (C,) at all sites.

        It is added where a model answers, not in training. None: there is only the trained one.
        """
