"""The targets of all sites in a diagnosis: strata, how many rows hold which, and the tables of the concept face."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import require
from fedskew.data.dataset import Dataset
from fedskew.data.tables.survey import in_order
from fedskew.data.targets import Rows, tenths
from fedskew.diagnosis.columns import moments_of
from fedskew.diagnosis.questions import Answer, Numbers
from fedskew.measure.heterogeneity.columns import ClientMoments, Tested, edges, middles, of_numbers, of_shares
from fedskew.measure.heterogeneity.concept import (
    KINDS,
    RESIDUAL_BINS,
    RESIDUAL_DIRECTIONS,
    directions_for,
    kinds_for,
    residual_distance,
    residual_model,
    table_distance,
)
from fedskew.measure.heterogeneity.rounding import rounded_alone
from fedskew.measure.heterogeneity.sites import rounded_by_sites
from fedskew.measure.heterogeneity.symbols import counts_of
from fedskew.skew.values import quantile_bins

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

SHOWN = 6
"""Maximum number of classes, labels or symbols in the table of clients. The most frequent are shown."""

FIFTHS = 5

CLASSES = "classes"

WORDS = {"number": "targets are numbers", "survival": "targets are survival times"}

MEANINGS: dict[str, dict[str, str]] = {
    "number": {
        "label": "distance of a client's targets, by tenths, from the pooled ones",
        "feature": "distance of a client's inputs from the pooled ones of the same targets",
        "concept": "distance of a client's residuals, under one model for all, from the pooled ones of the same kind of input",
    },
    "labels": {
        "label": "distance of a client's sets of labels from the pooled ones",
        "concept": "distance of a client's sets of labels for the same kind of input from the pooled ones",
    },
    "survival": {
        "label": "distance of a client's events and times from the pooled ones",
        "feature": "distance of a client's inputs from the pooled ones of the same events and times",
        "concept": "distance of a client's residuals, under one model for all, from the pooled ones of the same kind of input",
    },
    "symbols": {
        "label": "distance of a client's frequencies of symbols from the pooled ones",
        "concept": "distance of the symbols that follow a symbol from the pooled ones",
    },
}
"""By kind of target: the meaning of each face, if it differs from the meaning for classes."""


class Holdings(TypedDict):
    """A table of clients. ``shares`` says which columns are shares of rows (0..1); ``rows`` has one list for each client."""

    columns: list[str]
    shares: list[bool]
    rows: list[list[float]]


@dataclass(frozen=True, eq=False)
class TargetTable:
    """What a diagnosis shows of all clients' targets: their kind, the names of classes or strata, and what each client holds.

    ``names`` are the names of classes, labels or symbols. ``sizes`` (clients,) are the clients' numbers of rows.
    """

    kind: str
    classes: tuple[str, ...]
    names: tuple[str, ...]
    sizes: Ints
    holdings: Holdings


@dataclass(frozen=True, eq=False)
class Strata:
    """The stratum (n,) of each row's target, the strata's names, and a number (n,) for each target, if the kind has one."""

    strata: Ints
    names: tuple[str, ...]
    response: Floats | None = None


def strata_of(kind: str, y: Rows, dataset: Dataset) -> Strata:
    """Divide the targets ``y`` (n, ...) of a data set's training rows into strata. ``kind`` is the kind of target."""
    if kind == CLASSES:
        return Strata(y, dataset.classes)
    if kind == "survival":
        return Strata(*events_and_times(y), log_rank(y))
    if kind == "number":
        return Strata(np.zeros(len(y), dtype=np.int64), ("",), y.astype(np.float64))
    return Strata(*dataset.strata)


def events_and_times(y: Floats) -> tuple[Ints, tuple[str, ...]]:
    """Divide survival targets (n, 2) into groups by the fifth of the times and by event; return groups (n,) and names."""
    fifth = quantile_bins(y[:, 0], FIFTHS)
    found, held = np.unique(fifth + FIFTHS * y[:, 1].astype(np.int64), return_inverse=True)
    ends = [f"{y[fifth == at, 0].max():.4g}" for at in range(fifth.max() + 1)]
    names = (
        f"{'event' if code >= FIFTHS else 'no event'}, time up to {ends[code % FIFTHS]}" for code in found.tolist()
    )
    return held.astype(np.int64), tuple(names)


def log_rank(y: Floats) -> Floats:
    """Return log-rank scores (n,): each row's event minus the cumulative hazard of all rows at its time (Nelson, Aalen).

    The scores sum to 0.
    """
    place = np.unique(y[:, 0], return_inverse=True)[1]
    ending = np.bincount(place)
    at_risk = len(y) - np.cumsum(ending) + ending
    hazard = np.cumsum(np.bincount(place, weights=y[:, 1]) / at_risk)
    return np.asarray(y[:, 1] - hazard[place])


def said(kind: str, names: Sequence[str]) -> str:
    """Describe the targets: ``targets are numbers``, ``10 classes``."""
    return WORDS.get(kind, f"{len(names)} {kind}")


def holdings(kind: str, y: Rows, client: Ints, counts: Ints, names: Sequence[str]) -> Holdings:
    """Make the table of clients.

    ``counts`` (clients, classes or strata) covers all rows. ``y`` (n, ...) and ``client`` (n,) cover the measured rows only.
    """
    clients = len(counts)
    if kind in ("number", "survival"):
        values = y if kind == "number" else y[:, 0]
        mine = [values[client == k] for k in range(clients)]
        middle = [np.quantile(v, (0.1, 0.5, 0.9)).tolist() for v in mine]
        if kind == "number":
            rows = [[float(v.mean()), *q] for v, q in zip(mine, middle, strict=True)]
            return {"columns": ["mean", "10 %", "median", "90 %"], "shares": [False] * 4, "rows": rows}
        rate = [float(y[client == k, 1].mean()) for k in range(clients)]
        rows = [[r, q[1]] for r, q in zip(rate, middle, strict=True)]
        return {"columns": ["event", "median time"], "shares": [True, False], "rows": rows}
    held, whole = counts, counts.sum(1)
    if kind == "labels":
        held = np.stack([y[client == k].sum(0) for k in range(clients)])
        whole = np.bincount(client, minlength=clients)
    if kind == "symbols":
        held = counts_of(y, client, clients, counts.shape[1])
        whole = held.sum(1)
    order = np.sort(np.argsort(-held.sum(0), kind="stable")[:SHOWN])
    shares = held[:, order] / np.maximum(whole, 1)[:, None]
    return {"columns": [names[at] for at in order], "shares": [True] * len(order), "rows": shares.tolist()}


Shapes: TypeAlias = dict[str, tuple[int, ...]]

MERGED, ENOUGH = (1, 2, 5), 0.8
"""How many tenths make a stratum: as few as leave this share of all rows, and some of each site, in strata of enough rows."""

GROUPS, TYPICAL = (10, 5, 2), 6
"""Groups of strata in tables of residuals: as many as leave, on average over sites, this times `fewest` rows in a group."""

MOST_NUMBERS = 100_000_000
"""The server needs some 50 bytes for each row's target."""


@dataclass(frozen=True, eq=False)
class ClassTargets:
    """Targets that are classes: their names, and each site's rows of each, ``held`` (sites, classes).

    ``fewest`` (sites,) are the rows that the sites' counts have at least.
    """

    names: tuple[str, ...]
    held: Ints
    fewest: Ints
    asked: ClassVar[Numbers] = {}
    """What sites need to find a row's stratum, besides the names of classes."""

    @property
    def class_of(self) -> Ints:
        """The class (bins,) of each bin of ``held``."""
        return np.arange(len(self.names))

    @property
    def strata(self) -> int:
        """The number of strata by which sites add."""
        return len(self.names)

    @property
    def directions(self) -> int:
        """The number of directions along which kinds of inputs differ."""
        return directions_for(len(self.names))

    def kinds(self, rows: Floats) -> int:
        """The number of kinds of inputs, from the sites' rows in strata (sites, strata)."""
        return fitting(kinds_for(int(rows.sum()), len(self.names)), rows, int(self.fewest.max()))

    def cells(self, kinds: int) -> tuple[int, int]:
        """The shape of a site's table of the concept face."""
        return len(self.names), kinds

    def sums(self, columns: int) -> Shapes:
        """Shapes of what sites send besides the moments of this number of columns."""
        return {}

    def needed(self, answer: Numbers, columns: int) -> Numbers:
        """A site's moments without products with squares, which are large; for these the sum over all sites is enough."""
        return {**answer, "products by half": answer["products by half"][:, :columns, :columns].copy()}

    def model(self, answers: Sequence[Numbers], own: Sequence[Numbers]) -> Numbers:
        """What sites need to find a row's cell, besides its kind."""
        return {}

    def distance(self, counts: Floats) -> Floats:
        """The concept distance (sites,) of tables (sites, ...)."""
        return table_distance(np.swapaxes(counts, 1, 2))

    def rounded(self, held: Ints, rng: np.random.Generator) -> Ints:
        """Round counts like ``held`` as the sites do it."""
        rows = zip(held, self.fewest, strict=True)
        return np.stack([rounded_alone(one, int(few), rng) for one, few in rows])

    def tested(self) -> list[Tested]:
        """How the sites' targets differ."""
        rows = self.held.sum(1)
        return [
            one
            for at, word in enumerate(self.names)
            for one in of_shares("label", "share", word, rows, self.held[:, at])
        ]

    def table(self) -> TargetTable:
        """What the diagnosis shows of these targets."""
        none = np.zeros(0, dtype=np.int64)
        rows = self.held.sum(1)
        return TargetTable(CLASSES, self.names, self.names, rows, holdings(CLASSES, none, none, self.held, self.names))


@dataclass(frozen=True, eq=False)
class NumberTargets:
    """Targets that are numbers, as `ClassTargets`. ``held`` (sites, bins) are histograms with the edges ``inner`` (bins - 1,)."""

    held: Ints
    fewest: Ints
    moments: ClientMoments
    inner: Floats
    names: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        require(self.strata > 1, "diagnose: all targets are the same; name a column whose values differ")

    @cached_property
    def rows(self) -> tuple[Ints, Ints]:
        """The bin and the site of each row, in any order."""
        site, at = np.indices(self.held.shape)
        return np.repeat(at.ravel(), self.held.ravel()), np.repeat(site.ravel(), self.held.ravel())

    @cached_property
    def values(self) -> Floats:
        """Each row's target, at the middle of its bin."""
        return middles(self.inner)[self.rows[0]]

    @cached_property
    def class_of(self) -> Ints:
        """The tenth of all targets (bins,) in which a bin lies."""
        found = np.zeros(self.held.shape[1], dtype=np.int64)
        found[self.rows[0]] = tenths(self.values)[0]
        return found

    @cached_property
    def stratum_of(self) -> Ints:
        """The stratum (bins,) of each bin: one or several tenths."""
        found = self.class_of
        for merged in MERGED:
            of_bin = self.class_of // merged
            if of_bin.max() == 0:
                break
            found, rows = of_bin, self.held @ np.eye(of_bin.max() + 1, dtype=np.int64)[of_bin]
            enough = rows >= np.where(self.fewest > 1, 2 * self.fewest, 1)[:, None]
            if enough.any(1).all() and rows[enough].sum() >= ENOUGH * rows.sum():
                break
        return found

    @cached_property
    def group_of(self) -> Ints:
        """The group (strata,) of each stratum. Rows of a group, kind and residual are counted together."""
        strata, few = self.strata, int(self.fewest.max())
        of_site = self.held.sum() / len(self.held)
        number = next((g for g in GROUPS if few == 1 or of_site >= TYPICAL * few * g), min(GROUPS))
        return np.arange(strata) * min(number, strata) // strata

    @property
    def strata(self) -> int:
        return int(self.stratum_of.max()) + 1

    @property
    def asked(self) -> Numbers:
        every = self.moments.of(np.ones(len(self.held)))
        return {
            "target edges": self.inner,
            "strata": self.stratum_of.astype(np.float64),
            "groups": self.group_of.astype(np.float64),
            "target scale": np.array([every.mean, every.deviation]),
        }

    @property
    def directions(self) -> int:
        return RESIDUAL_DIRECTIONS

    def kinds(self, rows: Floats) -> int:
        of_group = rows @ np.eye(self.group_of.max() + 1)[self.group_of]
        return fitting(KINDS, of_group, int(self.fewest.max()))

    def cells(self, kinds: int) -> tuple[int, int]:
        return int(self.group_of.max()) + 1, kinds * RESIDUAL_BINS

    def sums(self, columns: int) -> Shapes:
        return {"products with target": (columns + 2,)}

    def needed(self, answer: Numbers, columns: int) -> Numbers:
        return answer

    def model(self, answers: Sequence[Numbers], own: Sequence[Numbers]) -> Numbers:
        return residual_model(answers, own)

    def distance(self, counts: Floats) -> Floats:
        return residual_distance(counts)

    def rounded(self, held: Ints, rng: np.random.Generator) -> Ints:
        return rounded_by_sites(held, self.fewest, rng)

    def tested(self) -> list[Tested]:
        return of_numbers("target", "mean", "", self.moments, self.held, self.inner)

    def table(self) -> TargetTable:
        shown, (_, names) = holdings("number", self.values, self.rows[1], self.held, ()), tenths(self.values)
        means = [[float(mean), *row[1:]] for mean, row in zip(self.moments.mean, shown["rows"], strict=True)]
        return TargetTable("number", names, names, self.held.sum(1), {**shown, "rows": means})


@dataclass(frozen=True, eq=False)
class SurvivalTargets(NumberTargets):
    """Targets that are survival times, whose strata and scores need pooled rows. ``held`` (sites, strata) counts rows."""

    @cached_property
    def class_of(self) -> Ints:
        return np.arange(self.held.shape[1])

    @property
    def asked(self) -> Numbers:
        return {"groups": self.group_of.astype(np.float64)}


def fitting(kinds: int, rows: Floats, fewest: int) -> int:
    """The number of kinds of inputs that leaves twice ``fewest`` rows of each in a typical cell of ``rows`` (sites, strata)."""
    return kinds if fewest == 1 else int(np.clip(np.median(rows[rows > 0]) // (2 * fewest), 2, kinds))


Targets: TypeAlias = ClassTargets | NumberTargets


def targets_of(
    first: Mapping[str, Answer], ask: Callable[[Floats], list[Numbers]], classes: tuple[str, ...] = ()
) -> Targets:
    """The targets of all sites, from their first answers. ``ask(edges)`` returns the sites' histograms of numbers.

    ``classes`` are all classes in their order, if it is known.

    Raises `BadInput` if some sites have classes and others numbers.
    """
    fewest = np.array([answer.fewest for answer in first.values()])
    parts = [answer.target for answer in first.values() if answer.target is not None]
    if not parts:
        names = classes or in_order({word for answer in first.values() for word in answer.classes})
        each = [[answer.classes.get(word, 0) for word in names] for answer in first.values()]
        require(len(names) >= 2, "diagnose: all rows have the same label; choose another label column")
        return ClassTargets(names, np.array(each, dtype=np.int64), fewest)
    mixed = {"numbers" if answer.target is not None else "classes": site for site, answer in first.items()}
    require(
        len(mixed) == 1,
        f"diagnose: {mixed['numbers']} has numbers as targets, but {mixed.get('classes')} has classes; all sites need "
        "label=COLUMN, or all target=COLUMN",
    )
    for site, part in zip(first, parts, strict=True):
        require(part.numbers.rows == part.rows > 0, f"{site}: some of its targets are no numbers")
    rows = sum(part.rows for part in parts)
    require(rows <= MOST_NUMBERS, f"diagnose: {rows:,} targets, but at most {MOST_NUMBERS:,} numbers are compared")
    moments = moments_of(parts)
    inner = edges(moments)
    held = np.stack([one["histogram"] for one in ask(inner)]).astype(np.int64)
    for site, part, counts in zip(first, parts, held, strict=True):
        right = counts.min() >= 0 and counts.sum() == part.rows
        require(bool(right), f"{site}: its histogram does not count its {part.rows:,} targets")
    return NumberTargets(held, fewest, moments, inner)
