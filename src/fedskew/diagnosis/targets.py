"""The targets of all sites in a diagnosis: strata, how many rows hold which, and the tables of the concept face."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypedDict

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import require
from fedskew.data.tables.summaries import ColumnSummary, Moments
from fedskew.data.tables.survey import in_order
from fedskew.data.targets import Rows, tenths
from fedskew.diagnosis.questions import CLASSES, Answer, Numbers
from fedskew.measure.heterogeneity import concept
from fedskew.measure.heterogeneity.columns import ClientMoments, Tested, edges, middles, of_numbers, of_shares
from fedskew.measure.heterogeneity.rounding import rounded, rounded_alone, rounded_by_sites
from fedskew.measure.heterogeneity.rows import Floats, Ints
from fedskew.measure.heterogeneity.symbols import counts_of

SHOWN = 6
"""Maximum number of classes, labels or symbols in the table of clients. The most frequent are shown."""

WORDS = {"number": "targets are numbers", "survival": "targets are survival times"}


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

    @property
    def words(self) -> str:
        """The targets in words: ``targets are numbers``, ``10 classes``."""
        return WORDS.get(self.kind, f"{len(self.names)} {self.kind}")


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
    hits, whole = counts, counts.sum(1)
    if kind == "labels":
        hits = np.stack([y[client == k].sum(0) for k in range(clients)])
        whole = np.bincount(client, minlength=clients)
    if kind == "symbols":
        hits = counts_of(y, client, clients, counts.shape[1])
        whole = hits.sum(1)
    order = np.sort(np.argsort(-hits.sum(0), kind="stable")[:SHOWN])
    shares = hits[:, order] / np.maximum(whole, 1)[:, None]
    return {"columns": [names[at] for at in order], "shares": [True] * len(order), "rows": shares.tolist()}


MERGED, ENOUGH = (1, 2, 5), 0.8
"""Tenths in a stratum: the first number that leaves this share of all rows, and rows of each site, in strata of enough rows."""

GROUPS, TYPICAL = (10, 5, 2), 6
"""Groups of strata in tables of residuals: the largest number with `TYPICAL` * `fewest` rows in a group, on average over sites."""

MOST_NUMBERS = 100_000_000
"""The server needs some 50 bytes for each row's target."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Targets:
    """The targets of all sites: each site's ``counts`` (sites, classes) of rows of the classes ``names``.

    ``fewest`` (sites,) is the smallest count of each site that is not 0.
    """

    counts: Ints
    fewest: Ints
    names: tuple[str, ...] = ()
    kind: ClassVar[str] = CLASSES
    cells_of_kind: ClassVar[int] = 1
    """The number of parts of each kind of inputs, in tables of the concept face."""
    round_row: ClassVar[Callable[..., Ints]] = staticmethod(rounded_alone)

    @property
    def parameters(self) -> Numbers:
        """What sites need to find a row's stratum, besides the names of classes."""
        return {}

    @property
    def class_of(self) -> Ints:
        """The class (bins,) of each bin of ``counts``."""
        return np.arange(self.counts.shape[1])

    @property
    def group_of(self) -> Ints:
        """The group (strata,) of each stratum. Rows of a group and kind are counted together."""
        return np.arange(self.counts.shape[1])

    @property
    def strata(self) -> int:
        """The number of strata by which sites add."""
        return len(self.group_of)

    @property
    def directions(self) -> int:
        """The number of directions along which kinds of inputs differ."""
        return min(concept.DIRECTIONS, 2 * (self.strata - 1))

    def most_kinds(self, rows: Floats) -> int:
        """The largest number of kinds of inputs, from the sites' rows in strata (sites, strata)."""
        return concept.kinds_for(int(rows.sum()), self.strata)

    def kinds(self, rows: Floats) -> int:
        """The number of kinds of inputs, at least 2.

        If sites hide small counts, there are so few that a median group has about 2 * `fewest` rows of each kind.
        """
        few, of_group = int(self.fewest.max()), rows @ np.eye(self.group_of.max() + 1)[self.group_of]
        most = self.most_kinds(rows)
        return most if few == 1 else int(np.clip(np.median(of_group[of_group > 0]) // (2 * few), 2, most))

    def shapes(self, columns: int) -> dict[str, tuple[int, ...]]:
        """The shapes of the arrays that sites send in addition to the moments of this number of ``columns``."""
        return {}

    def needed(self, answer: Numbers, columns: int) -> Numbers:
        """A site's moments without the products of squares. These are large, and their sum over all sites is enough."""
        return {**answer, "products by half": answer["products by half"][:, :columns, :columns].copy()}

    def model(self, answers: Sequence[Numbers], alignments: Sequence[Numbers]) -> Numbers:
        """What sites need to find a row's cell, besides its kind."""
        return {}

    def distance(self, counts: Floats) -> Floats:
        """The concept distance (sites,) of tables (sites, groups, cells)."""
        return concept.table_distance(np.swapaxes(counts, 1, 2))

    def rounded(self, counts: NDArray[Any], rng: np.random.Generator) -> Ints:
        """Round counts like ``counts`` as the sites do it."""
        return rounded_by_sites(counts, self.fewest, rng, self.round_row)

    def tested(self, column: str) -> list[Tested]:
        """How the sites' targets, in this column, differ."""
        rows = self.counts.sum(1)
        shares = zip(self.names, self.counts.T, strict=True)
        return [part for word, hits in shares for part in of_shares(column or "label", "share", word, rows, hits)]

    def table(self) -> TargetTable:
        """What the diagnosis shows of these targets."""
        none = np.zeros(0, dtype=np.int64)
        shares = holdings(CLASSES, none, none, self.counts, self.names)
        return TargetTable(CLASSES, self.names, self.names, self.counts.sum(1), shares)


@dataclass(frozen=True, eq=False, kw_only=True)
class NumberTargets(Targets):
    """Targets that are numbers. ``counts`` (sites, bins) are histograms with the edges ``inner`` (bins - 1,)."""

    moments: ClientMoments
    inner: Floats
    kind: ClassVar[str] = "number"
    cells_of_kind: ClassVar[int] = concept.RESIDUAL_BINS
    round_row: ClassVar[Callable[..., Ints]] = staticmethod(rounded)

    def __post_init__(self) -> None:
        require(self.strata > 1, "diagnose: all targets are the same; name a column whose values differ")

    @cached_property
    def rows(self) -> tuple[Ints, Ints]:
        """The bin and the site of each row, in any order."""
        site, at = np.indices(self.counts.shape)
        return np.repeat(at.ravel(), self.counts.ravel()), np.repeat(site.ravel(), self.counts.ravel())

    @cached_property
    def values(self) -> Floats:
        """Each row's target, at the middle of its bin."""
        return middles(self.inner)[self.rows[0]]

    @cached_property
    def class_of(self) -> Ints:
        """The tenth of all targets (bins,) in which a bin lies."""
        tenth = np.zeros(self.counts.shape[1], dtype=np.int64)
        tenth[self.rows[0]] = tenths(self.values)[0]
        return tenth

    @cached_property
    def stratum_of(self) -> Ints:
        """The stratum (bins,) of each bin. A stratum is one or several neighbouring tenths of all targets, see `MERGED`."""
        stratum = self.class_of
        for merged in MERGED:
            of_bin = self.class_of // merged
            if of_bin.max() == 0:
                break
            stratum, rows = of_bin, self.counts @ np.eye(of_bin.max() + 1, dtype=np.int64)[of_bin]
            enough = rows >= np.where(self.fewest > 1, 2 * self.fewest, 1)[:, None]
            if enough.any(1).all() and rows[enough].sum() >= ENOUGH * rows.sum():
                break
        return stratum

    @cached_property
    def group_of(self) -> Ints:
        """The group (strata,) of each stratum. Rows of a group, kind and residual are counted together."""
        strata, few = self.strata, int(self.fewest.max())
        of_site = self.counts.sum() / len(self.counts)
        number = next((g for g in GROUPS if few == 1 or of_site >= TYPICAL * few * g), min(GROUPS))
        return np.arange(strata) * min(number, strata) // strata

    @property
    def strata(self) -> int:
        return int(self.stratum_of.max()) + 1

    @property
    def parameters(self) -> Numbers:
        every = self.moments.of(np.ones(len(self.counts)))
        strata, groups = (part.astype(np.float64) for part in (self.stratum_of, self.group_of))
        scale = np.array([every.mean, every.deviation])
        return {"target edges": self.inner, "strata": strata, "groups": groups, "target scale": scale}

    @property
    def directions(self) -> int:
        return concept.RESIDUAL_DIRECTIONS

    def most_kinds(self, rows: Floats) -> int:
        return concept.KINDS

    def shapes(self, columns: int) -> dict[str, tuple[int, ...]]:
        return {"products with target": (columns + 2,)}

    def needed(self, answer: Numbers, columns: int) -> Numbers:
        return answer

    def model(self, answers: Sequence[Numbers], alignments: Sequence[Numbers]) -> Numbers:
        return concept.residual_model(answers, alignments)

    def distance(self, counts: Floats) -> Floats:
        return concept.residual_distance(counts)

    def tested(self, column: str) -> list[Tested]:
        return of_numbers(column or "target", "mean", "", self.moments, self.counts, self.inner)

    def table(self) -> TargetTable:
        site = self.rows[1]
        values = np.clip(self.values, self.moments.low[site], self.moments.high[site])
        table, (_, names) = holdings("number", values, site, self.counts, ()), tenths(self.values)
        means = [[float(mean), *row[1:]] for mean, row in zip(self.moments.mean, table["rows"], strict=True)]
        return TargetTable("number", names, names, self.counts.sum(1), {**table, "rows": means})


@dataclass(frozen=True, eq=False, kw_only=True)
class SurvivalTargets(NumberTargets):
    """Targets that are survival times, whose strata and scores need pooled rows. ``counts`` (sites, strata) counts rows."""

    kind: ClassVar[str] = "survival"

    @cached_property
    def class_of(self) -> Ints:
        return np.arange(self.counts.shape[1])

    @property
    def parameters(self) -> Numbers:
        return {"groups": self.group_of.astype(np.float64)}


def moments_of(parts: Sequence[ColumnSummary]) -> ClientMoments:
    """Return rows, mean, deviation, smallest and largest number of a column at each site, each (sites,)."""
    of_parts = [[getattr(part.numbers, name) for part in parts] for name in Moments.__struct_fields__]
    rows, mean, deviation, low, high = map(np.array, of_parts)
    return ClientMoments(rows, mean, deviation, low, high, np.array([part.whole for part in parts]))


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
        rows_of_class = [[answer.classes.get(word, 0) for word in names] for answer in first.values()]
        require(len(names) >= 2, "diagnose: all rows have the same label; choose another label column")
        return Targets(names=names, counts=np.array(rows_of_class, dtype=np.int64), fewest=fewest)
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
    counts = np.stack([answer["histogram"] for answer in ask(inner)]).astype(np.int64)
    for site, part, histogram in zip(first, parts, counts, strict=True):
        complete = histogram.min() >= 0 and histogram.sum() == part.rows
        require(bool(complete), f"{site}: its histogram does not count its {part.rows:,} targets")
    return NumberTargets(counts=counts, fewest=fewest, moments=moments, inner=inner)
