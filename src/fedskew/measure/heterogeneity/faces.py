"""The four faces: how clients differ in labels, features, sizes and concepts. Each has a number, a value by chance, a test."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import stats

from fedskew.core.errors import require
from fedskew.core.seeding import fair_sample, level, stream
from fedskew.measure.heterogeneity.counts import label_distances, size_distance
from fedskew.measure.heterogeneity.rounding import rounded_by_sites, rounded_pairs
from fedskew.measure.heterogeneity.rows import Floats, Ints, divided
from fedskew.measure.statistics import holm

Numbers = Mapping[str, NDArray[np.float64]]

LEVEL = 0.05
"""Level of the four tests together (Holm)."""

TABLES, CONCEPT_TABLES, RESAMPLES = 999, 199, 999
"""Number of random tables for labels and sizes, and for kinds and labels, and of bootstrap samples of clients."""

FEW_CLIENTS = 5
"""Minimum number of clients for an interval. Resampling fewer clients gives no useful interval."""

FEWEST_ROWS = 30

MOST_ROWS = 30_000
"""Maximum number of rows for features and concepts. From more rows, equally many of each client are drawn if possible."""

FACES = ("label", "feature", "quantity", "concept")
"""The faces; quantity is the sizes. Each number is a total variation distance in 0..1 - 1/clients; 0 means equal clients."""

STRENGTHS = ((0.05, "slight"), (0.2, "mild"), (0.5, "strong"), (math.inf, "very strong"))
"""Words for a strength below these bounds: conventions, not tests."""


@dataclass(frozen=True, eq=False)
class MeasuredFace:
    """One way in which clients differ.

    ``value`` (0..1) has a 95 % interval, ``low`` to ``high``, over resampled clients. ``chance`` is the mean value if rows are
    dealt at random to clients of the same sizes. ``p`` is the probability that chance gives at least ``value``, corrected for
    four tests. ``strength`` is (value - chance) / (1 - chance), or 0 if that is negative. ``each`` has the value of each
    client alone.
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
    """The results of a diagnosis. ``faces`` are in the order of `FACES`; ``counts`` is (clients, classes)."""

    faces: tuple[MeasuredFace, ...]
    counts: Ints
    measured_rows: int
    alone: int  # measured rows of classes that only one client holds; for these, only label skew can be measured

    @property
    def strengths(self) -> dict[str, float]:
        """The strength of each face by name; 0 if the face is not significantly above chance, or not measured."""
        return dict.fromkeys(FACES, 0.0) | {face.name: face.strength for face in self.faces if face.real}

    @property
    def dominant(self) -> str:
        """The strongest face among those significantly above chance; empty if there is none."""
        real = [face for face in self.faces if face.real]
        return max(real, key=lambda face: face.strength).name if real else ""

    def face(self, name: str) -> MeasuredFace:
        """Return the face of this name."""
        return next(face for face in self.faces if face.name == name)


def check(sizes: Ints) -> None:
    """Raise `BadInput` for fewer than two clients, and for a client without rows."""
    require(len(sizes) >= 2, "diagnose: all rows belong to one client; there is nothing to compare it with")
    require(bool((sizes > 0).all()), "diagnose: there are clients without rows; leave them out")


def compared(
    each: dict[str, Floats], by_chance: dict[str, list[float]], sizes: Ints, rng: np.random.Generator
) -> tuple[MeasuredFace, ...]:
    """Make the faces; the quantity face is added here.

    ``each`` has the clients' distances (clients,) by face, ``by_chance`` the mean distances of random partitions by face. For the
    quantity, each row goes to any client with equal probability.
    """
    clients, weights = len(sizes), sizes / sizes.sum()
    each["quantity"] = np.abs(weights - 1 / clients) * clients / 2
    equal = np.full(clients, 1 / clients)
    by_chance["quantity"] = [size_distance(n) for n in rng.multinomial(int(sizes.sum()), equal, TABLES)]
    # a face's value is the mean over clients, weighted by rows except for quantity
    totals = {name: values if name == "quantity" else weights * clients * values for name, values in each.items()}
    names = [name for name in FACES if name in each]
    raw = [p_value(float(totals[name].mean()), by_chance[name]) for name in names]
    draws = rng.integers(0, clients, (RESAMPLES, clients))
    return tuple(
        MeasuredFace(
            name=name,
            value=float(totals[name].mean()),
            **interval(name, each[name], sizes, draws),
            chance=float(np.mean(by_chance[name])),
            p=p,
            each=each[name],
        )
        for name, p in zip(names, holm(raw), strict=True)
    )


def sample(client: Ints, rng: np.random.Generator) -> Ints:
    """Draw at most `MOST_ROWS` rows; return their numbers in random order. Small clients keep all rows, others equally many."""
    rows = fair_sample(client, rng.random(len(client)), level(np.bincount(client), MOST_ROWS))
    return rng.permutation(rows)


def label_chance(counts: Ints, weights: Floats, changed: Callable[[Ints], Ints], rng: Generator) -> list[float]:
    """Return the label face's values for `TABLES` random tables with the margins of ``counts``: rows dealt at random.

    ``weights`` (clients,) sum to 1. ``changed`` is applied to each table. It repeats what was done to the counts, for example
    rounding.
    """
    drawn = random_tables(counts.sum(1), counts.sum(0))
    # one table at a time: all together need 8 kB for each client and class
    return [float(weights @ label_distances(changed(drawn(rng)))) for _ in range(TABLES)]


def random_tables(rows: Ints, columns: Ints) -> Callable[[np.random.Generator], Ints]:
    """Return a function that draws tables (rows, columns) with these margins.

    SciPy draws wrong counts if only one row or column is above 0. Then there is only one table.
    """
    above = rows > 0, columns > 0
    if min(map(np.count_nonzero, above)) < 2:
        only = np.outer(rows, columns) // max(int(rows.sum()), 1)
        return lambda rng: only
    tables = stats.random_table(rows[above[0]], columns[above[1]])

    def draw(rng: np.random.Generator) -> Ints:
        table = np.zeros((len(rows), len(columns)), dtype=np.int64)
        table[np.ix_(*above)] = tables.rvs(random_state=rng)
        return table

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


def opposition(weights: Floats) -> float:
    """Return the feature face's standard deviation by chance, divided by its value for independent sites.

    ``weights`` (sites,) are the sites' shares of all rows. A site's mean and the other sites' mean lie on opposite sides of the
    pooled mean. So their classifiers point apart, and their numbers rise together. Normal inputs give the correlations.
    """
    odds = np.sqrt(weights / (1 - weights))
    shared = np.outer(weights, weights) * np.arcsin(np.minimum(np.outer(odds, odds), 1)) * 2 / np.pi
    alone = weights * (1 - weights)
    np.fill_diagonal(shared, alone)
    return float(np.sqrt(shared.sum() / alone.sum()))


def faces(
    answers: Iterable[Numbers],
    counts: Ints,
    class_of: Ints,
    fewest: Ints,
    rounding: Callable[[Ints, np.random.Generator], Ints],
    distance: Callable[[Floats], Floats],
    seed: int,
    sizes: Ints,
) -> Diagnosis:
    """The diagnosis, from the last answers of all sites, their ``fewest`` and ``sizes`` (sites,): their numbers of rows.

    ``counts`` (sites, bins) are their rows of each class, or of each bin of targets; ``class_of`` (bins,) is the class or tenth of
    a bin. ``rounding`` rounds counts like ``counts`` as the sites do it.
    ``distance`` turns tables (sites, classes, kinds) into the concept face of each site (sites,).

    Chance needs no rows: see `feature_distances` and `concept_chance`. Small counts are rounded as the sites do it.
    """
    check(sizes)
    of_class, rounds = np.eye(class_of.max() + 1, dtype=np.int64)[class_of], fewest.max() > 1
    rng, weights = stream(seed, "diagnose"), sizes / sizes.sum()
    of_all, of_own, tables = np.zeros(()), [], []
    for at, answer in enumerate(answers):
        beyond = answer["beyond thresholds"]  # folds, classifiers, classes, 2
        of_all = of_all + beyond
        of_own.append(beyond[:, at].copy())  # a view would keep all of it
        tables.append(answer["rows by kind"])
    own_rows, by_kind = np.stack(of_own, axis=1).astype(np.int64), np.stack(tables).astype(np.int64)
    feature, chance_feature = feature_distances(of_all.astype(np.int64), own_rows, fewest, weights, rng)
    concept = distance(by_kind.astype(float))
    chance_concept = concept_chance(by_kind, fewest, lambda drawn: float(weights @ distance(drawn.astype(float))), rng)

    def like_sites(dealt: Ints) -> Ints:
        return np.asarray((rounding(dealt, rng) if rounds else dealt) @ of_class)

    each = {"label": label_distances(counts @ of_class), "feature": feature, "concept": concept}
    chance_label = label_chance(counts, weights, like_sites, rng)
    by_chance = {"label": chance_label, "feature": chance_feature, "concept": chance_concept}
    rows = own_rows.sum((0, 3))
    alone = rows[:, (rows > 0).sum(0) == 1].sum()
    return Diagnosis(compared(each, by_chance, sizes, rng), counts @ of_class, int(by_kind.sum()), int(alone))


def feature_distances(
    of_all: Ints, of_own: Ints, fewest: Ints, weights: Floats, rng: np.random.Generator
) -> tuple[Floats, list[float]]:
    """The feature face of each site (sites,), and the mean values of random rows.

    ``of_all`` counts all sites' rows beyond and below each classifier's threshold (folds, classifiers, classes, 2), ``of_own`` the
    rows of the classifier's own site. The face is the classifier's true positive rate minus its false positive rate. This is a
    lower bound of the total variation between p_k(x) and sum_y p_k(y) p(x | y).

    Given a classifier, the rows of a site beyond its threshold are, by chance, draws without replacement from the rows of all sites
    with the same class. The classifiers of the two halves are alike, so both halves are high at once: their draws are added by
    rank, and no dependence makes a sum vary more.
    """
    tested = of_own.sum(-1)  # folds, sites, classes
    rows = tested.sum(-1)
    false = (tested * divided(of_all[..., 0], of_all.sum(-1))).sum(-1)
    some, draws = tested > 0, np.zeros_like(tested)
    beyond, below, drawn = of_all[some][:, 0], of_all[some][:, 1], tested[some]
    of_halves = []
    for _ in range(TABLES):
        draws[some] = rng.hypergeometric(beyond, below, drawn)
        hits = draws
        if fewest.max() > 1:
            parts = enumerate(fewest.tolist())
            hits = np.stack([rounded_pairs(draws[:, k], tested[:, k], few, rng) for k, few in parts], axis=1)
        of_halves.append(divided(hits.sum(-1) - false, rows) @ weights)
    by_chance: list[float] = (opposition(weights) * np.sort(of_halves, axis=0).mean(1)).tolist()
    return divided(of_own[..., 0].sum(-1) - false, rows).mean(0), by_chance


def concept_chance(by_kind: Ints, fewest: Ints, value: Callable[[Ints], float], rng: Generator) -> list[float]:
    """Return the values of random tables (sites, classes, kinds) with the margins of ``by_kind``, rounded as the sites do it.

    Margins of rounded tables are uneven, and random tables with uneven margins have smaller values. For each random table a second
    one with its margins is drawn. The mean difference between both is added to each value.
    """

    def tables_like(tables: Ints) -> Callable[[], Ints]:
        """A function that draws a random table for each class."""
        classes = np.flatnonzero(tables.sum((0, 2))).tolist()
        draws = [random_tables(tables[:, at].sum(1), tables[:, at].sum(0)) for at in classes]

        def drawn() -> Ints:
            dealt = np.zeros_like(tables)
            for at, draw in zip(classes, draws, strict=True):
                dealt[:, at] = draw(rng)
            return rounded_by_sites(dealt, fewest, rng) if fewest.max() > 1 else dealt

        return drawn

    first, second = np.zeros((2, CONCEPT_TABLES))
    draw = tables_like(by_kind)
    for at in range(CONCEPT_TABLES):
        dealt = draw()
        first[at] = value(dealt)
        second[at] = value(tables_like(dealt)()) if fewest.max() > 1 else first[at]
    return (first + max(0.0, first.mean() - second.mean())).tolist()
