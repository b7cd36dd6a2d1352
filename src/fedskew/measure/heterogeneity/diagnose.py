"""The diagnosis: for each of the four faces a number, its interval, its value by chance, and a test."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedskew.core.errors import require
from fedskew.core.seeding import fair_sample, level
from fedskew.measure.heterogeneity.counts import size_distance
from fedskew.measure.heterogeneity.rows import Floats, Ints
from fedskew.measure.statistics import holm

LEVEL = 0.05
"""Level of the four tests together (Holm)."""

TABLES, RESAMPLES = 999, 999
"""Number of random tables for labels and sizes, and of bootstrap samples of clients."""

FEW_CLIENTS = 5
"""Minimum number of clients for an interval. Resampling fewer clients gives no useful interval."""

FEWEST_ROWS = 30

MOST_ROWS = 30_000
"""Maximum number of rows for features and concepts. From more rows, equally many of each client are drawn if possible."""

MEANINGS = {
    "label": "distance of a client's label frequencies from the pooled ones",
    "feature": "distance of a client's inputs from the pooled ones of the same labels",
    "quantity": "share of the rows to move until all clients hold equally many",
    "concept": "distance of a client's labels for the same kind of input from the pooled ones",
}
"""The faces. Each number is a total variation distance in 0..1 - 1/clients; 0 means equal clients."""

STRENGTHS = ((0.05, "slight"), (0.2, "mild"), (0.5, "strong"), (math.inf, "very strong"))
"""Words for a strength below these bounds: conventions, not tests."""


@dataclass(frozen=True, eq=False)
class Face:
    """One way in which clients differ.

    ``value`` (0..1) has a 95 % interval, ``low`` to ``high``, over resampled clients. ``chance`` is the mean value if rows are
    dealt at random to clients of the same sizes. ``p`` is the probability that chance gives at least ``value``, corrected for
    four tests. ``strength`` is (value - chance) / (1 - chance), or 0 if that is negative. ``each`` has each client's distance.
    """

    name: str
    value: float
    low: float
    high: float
    chance: float
    p: float
    each: Floats  # (clients,)

    @property
    def strength(self) -> float:
        return max(0.0, (self.value - self.chance) / (1 - self.chance))

    @property
    def real(self) -> bool:
        """True if the value is significantly above chance."""
        return self.p <= LEVEL

    @property
    def verdict(self) -> str:
        return next(word for bound, word in STRENGTHS if self.strength < bound) if self.real else "by chance"


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """The results of a diagnosis. ``faces`` are in the order of `MEANINGS`; ``counts`` is (clients, classes)."""

    faces: tuple[Face, ...]
    counts: Ints
    measured_rows: int
    alone: int  # measured rows of classes that only one client holds; for these, only label skew can be measured

    @property
    def strengths(self) -> dict[str, float]:
        """The strength of each face by name; 0 if the face is not significantly above chance, or not measured."""
        return dict.fromkeys(MEANINGS, 0.0) | {face.name: face.strength for face in self.faces if face.real}

    @property
    def dominant(self) -> str:
        """The strongest face among those significantly above chance; empty if there is none."""
        real = [face for face in self.faces if face.real]
        return max(real, key=lambda face: face.strength).name if real else ""

    def face(self, name: str) -> Face:
        """Return the face of this name."""
        return next(face for face in self.faces if face.name == name)


def check(sizes: Ints) -> None:
    """Raise `BadInput` for fewer than two clients, and for a client without rows."""
    require(len(sizes) >= 2, "diagnose: all rows belong to one client; there is nothing to compare it with")
    require(bool((sizes > 0).all()), "diagnose: there are clients without rows; leave them out")


def compared(
    each: dict[str, Floats], by_chance: dict[str, list[float]], sizes: Ints, rng: np.random.Generator
) -> tuple[Face, ...]:
    """Make the faces; the quantity face is added here.

    ``each`` has the clients' distances (clients,) by face, ``by_chance`` the mean distances of random partitions by face. Without
    ``quantity`` in ``by_chance``, each row goes to any client with equal probability.
    """
    clients, weights = len(sizes), sizes / sizes.sum()
    each["quantity"] = np.abs(weights - 1 / clients) * clients / 2
    equal = np.full(clients, 1 / clients)
    if "quantity" not in by_chance:
        by_chance["quantity"] = [size_distance(n) for n in rng.multinomial(int(sizes.sum()), equal, TABLES)]
    # a face's value is the mean over clients, weighted by rows except for quantity
    totals = {name: values if name == "quantity" else weights * clients * values for name, values in each.items()}
    names = [name for name in MEANINGS if name in each]
    raw = [p_value(float(totals[name].mean()), by_chance[name]) for name in names]
    draws = rng.integers(0, clients, (RESAMPLES, clients))
    return tuple(
        Face(
            name=name,
            value=float(totals[name].mean()),
            **interval(name, each[name], sizes, draws),
            chance=float(np.mean(by_chance[name])),
            p=p,
            each=each[name],
        )
        for name, p in zip(names, holm(raw), strict=True)
    )


def sample(client: Ints, rng: np.random.Generator, most: int = MOST_ROWS) -> Ints:
    """Draw at most ``most`` rows; return their numbers in random order. Small clients keep all rows, others equally many."""
    rows = fair_sample(client, rng.random(len(client)), level(np.bincount(client), most))
    return rng.permutation(rows)


def label_chance(
    counts: Ints,
    rng: np.random.Generator,
    weights: Floats | None = None,
    changed: Callable[[NDArray[Any]], NDArray[Any]] = lambda table: table,
) -> list[float]:
    """Return the label face's values for `TABLES` random tables with the margins of ``counts``: rows dealt at random.

    ``weights`` (clients,) sum to 1; by default they are proportional to the counts. ``changed`` is applied to each table. It
    repeats what was done to the counts, for example rounding.
    """
    drawn = random_tables(counts.sum(1), counts.sum(0))

    def value(held: NDArray[Any]) -> float:
        sizes, n = held.sum(1), held.sum()
        factors = (sizes / n if weights is None else weights) / (2 * np.maximum(sizes, 1))
        return float(np.abs(held - sizes[:, None] * (held.sum(0) / n)).sum(-1) @ factors)

    # one table at a time: all together need 8 kB for each client and class
    return [value(changed(drawn(rng))) for _ in range(TABLES)]


def random_tables(rows: Ints, columns: Ints) -> Callable[[np.random.Generator], Ints]:
    """Return a function that draws tables (rows, columns) with these margins.

    SciPy draws wrong counts if only one row or column is above 0. Then there is only one table.
    """
    held = rows > 0, columns > 0
    if min(np.count_nonzero(above) for above in held) < 2:
        only = np.outer(rows, columns) // max(int(rows.sum()), 1)
        return lambda rng: only
    tables = stats.random_table(rows[held[0]], columns[held[1]])

    def draw(rng: np.random.Generator) -> Ints:
        made = np.zeros((len(rows), len(columns)), dtype=np.int64)
        made[np.ix_(*held)] = tables.rvs(random_state=rng)
        return made

    return draw


def p_value(value: float, by_chance: Sequence[float]) -> float:
    """Return the permutation p value: the share of ``value`` and all values by chance that are at least ``value``.

    It is exact if rows are exchangeable.
    """
    return float((1 + (np.asarray(by_chance) >= value - 1e-12).sum()) / (1 + len(by_chance)))


def interval(name: str, each: Floats, sizes: Ints, draws: Ints) -> dict[str, float]:
    """Return the 2.5 % and 97.5 % quantiles of the face's value over resampled clients; NaN below `FEW_CLIENTS` clients."""
    if len(sizes) < FEW_CLIENTS:
        return {"low": math.nan, "high": math.nan}
    if name == "quantity":
        values = np.array([size_distance(n) for n in sizes[draws]])
    else:
        values = (sizes[draws] * each[draws]).sum(1) / sizes[draws].sum(1)
    low, high = np.quantile(values, (0.025, 0.975))
    return {"low": float(low), "high": float(high)}
