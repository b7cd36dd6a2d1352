"""Where the numbers of a comparison vary: by the test rows, the partition, the training seed, and method x partition."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


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


def components(values: Floats, of_rows: float = 0.0, redrawn: bool = False, dealt: bool = True) -> Components:
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


def spread_with(seeds: int, table: Floats) -> float:
    """Return how wide an interval over the partitions is with this number of ``seeds``, relative to the present one.

    ``table`` (partitions, seeds) are numbers, at least (2, 2): the partitions' means vary by themselves and by their seeds.
    """
    present, of_seeds = float(table.mean(1).var(ddof=1)), float(table.var(axis=1, ddof=1).mean())
    now = max(present, of_seeds / table.shape[1])
    return float(np.sqrt((now - of_seeds / table.shape[1] + of_seeds / seeds) / now)) if now else 1.0
