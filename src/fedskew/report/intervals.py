"""What a comparison states of its verdicts: the margin of equivalence, the splits, and intervals over seeds and test rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import require
from fedskew.core.text import Folds, parse_folds
from fedskew.measure.registry import primary
from fedskew.measure.statistics import Estimate, over_clients, over_common_rows, over_seeds_and_rows, over_splits
from fedskew.report.experiments import parsed, split
from fedskew.report.words import FOLDS, FOLDS_OF_CLIENTS, SPLITS, listed
from fedskew.store import test_rows
from fedskew.store.runs import RunRecord, RunStore
from fedskew.store.test_rows import Stored


def margin(records: Sequence[RunRecord]) -> float:
    """The difference that does not matter, of the runs that state one; NaN if none does. Raises `BadInput` if they differ."""
    stated = [parsed(record).get("evaluation", {}).get("margin") for record in records]
    found = sorted({*stated} - {None})
    require(
        len(found) < 2, f"these runs state several margins, {listed([f'{one:g}' for one in found])}; name runs of one"
    )
    return float(found[0]) if found else math.nan


FEWEST_ROWS, FEWEST_TESTED, FEWEST_CLIENTS = 500, 50, 4
"""Fewest rows, test rows of a split, and clients, for intervals from their own values (docs/explanations/statistics.md)."""


@dataclass(frozen=True)
class Splits:
    """Several test sets that seeds have drawn.

    ``covers`` says what an interval over them covers. ``ratio`` is the number of test rows for each training row, ``clients`` the
    number of folds of clients, or 0, and ``rows`` the number of all
    rows, or of all persons if a person has several.
    """

    covers: str
    ratio: float
    clients: int
    rows: float

    def over(self, values: Sequence[float], table: NDArray[np.float64] | None) -> Estimate:
        """The mean of the seeds' ``values``, with the interval of the rows' values ``table`` (seeds, units) where it is known.

        Few test rows say too little of their covariance: with fewer than `FEWEST_ROWS` rows, or `FEWEST_TESTED` a split, the
        interval is from `over_splits`.
        """
        if table is not None and self.clients and table.shape[1] >= FEWEST_CLIENTS:
            return over_clients(table, self.clients)
        if table is not None and not self.clients:
            tested = np.isfinite(table).sum(1)
            if tested.min() >= FEWEST_TESTED and tested.mean() * (1 + 1 / self.ratio) >= FEWEST_ROWS:
                return over_common_rows(table, self.ratio)
        return over_splits(values, self.ratio, self.clients - 1 if self.clients else math.inf)

    def tested(self, seeds: int) -> float:
        """The effective number of test rows of this number of seeds: a mean over as many rows has the same variance.

        Folds test each row equally often. Draws have rows in common by chance.
        """
        if self.covers != SPLITS:
            return self.rows
        own = self.rows * self.ratio / (1 + self.ratio)
        return 1 / (1 / (seeds * own) + (seeds - 1) / (seeds * self.rows))


def splits(records: Sequence[RunRecord]) -> Splits | None:
    """The test sets of the finished runs; None where they have the same, or their sizes are not known."""
    finished = [record for record in records if record.status == "finished"]
    sizes = [record.facts.get("data", {}) for record in finished]
    if len({split(record) for record in finished}) < 2 or not all("test_rows" in size for size in sizes):
        return None
    folds = [folds_of(record) for record in finished]
    of_clients = [found.number for found in folds if found and found.of_clients]
    ratios = [
        1 / (found.number - 1) if found and found.of_clients else size["test_rows"] / size["training_rows"]
        for found, size in zip(folds, sizes, strict=True)
    ]
    covers = SPLITS if None in folds else FOLDS_OF_CLIENTS if of_clients else FOLDS
    units = [1.0 if of_clients else size.get("test_units", size["test_rows"]) / size["test_rows"] for size in sizes]
    rows = [each * (size["test_rows"] + size["training_rows"]) for each, size in zip(units, sizes, strict=True)]
    return Splits(covers, float(np.mean(ratios)), min(of_clients, default=0), float(np.mean(rows)))


def folds_of(record: RunRecord) -> Folds | None:
    """The folds of a run that tests one of them."""
    folds = str(parsed(record).get("dataset", {}).get("fold", "")).partition("/")[2]
    return parse_folds(folds) if folds else None


def tested_rows(records: Sequence[RunRecord], drawn: Splits | None, seeds: int) -> float:
    """The effective number of test rows of a comparison over ``seeds``; 0 if it is not known or the primary metric is no share."""
    if primary().unit != "%":
        return 0.0
    if drawn:
        return drawn.tested(seeds)
    sizes = [record.facts.get("data", {}) for record in records if record.status == "finished"]
    return float(min((size.get("test_units", size.get("test_rows", 0)) for size in sizes), default=0))


Seeds = tuple[int, int]
"""A run's partition seed and seed."""
ByRow = Mapping[str, Mapping[Seeds, Stored]]
"""By method and seeds: the values of the units of the test rows, averaged over runs with the same seeds."""


def by_method(store: RunStore, records: Sequence[RunRecord]) -> ByRow:
    """Read the values of the finished runs. Runs with equal seeds but different numbers of test rows are left out."""
    finished = [record for record in records if record.status == "finished"]
    found = test_rows.read(store, [record.id for record in finished])
    gathered: dict[str, dict[Seeds, list[Stored]]] = {}
    for record in finished:
        stored = found.get(record.id)
        if stored and stored.round == record.rounds:
            own = gathered.setdefault(record.name, {})
            own.setdefault((record.partition_seed, record.seed), []).append(stored)
    return {
        method: {
            seeds: several[0]._replace(values=np.mean([stored.values for stored in several], axis=0))
            for seeds, several in own.items()
            if len({len(stored.values) for stored in several}) == 1
        }
        for method, own in gathered.items()
    }


def estimate(
    by_row: ByRow, method: str, first: str, values: Mapping[Any, float], drawn: Splits | None = None
) -> Estimate | None:
    """Estimate the mean of a method's ``values`` by seeds; with ``first``, they are differences from that method.

    The interval covers seeds and test rows, or the test rows that seeds have ``drawn``. Returns None for fewer than two seeds,
    and if all seeds have the same test rows, but the rows' values are not known for each seed.
    """
    if len(values) < 2:
        return None
    rows = rows_of(by_row.get(method, {}), by_row.get(first, {}) if first else None, list(values))
    if drawn:
        return drawn.over(list(values.values()), table_of(rows))
    if not rows or len({len(row.values) for row in rows}) > 1 or len(rows[0].values) < 2:
        return None
    return over_seeds_and_rows(np.stack([row.values for row in rows]))


def rows_of(ours: Mapping[Seeds, Stored], first: Mapping[Seeds, Stored] | None, seeds: Sequence[Seeds]) -> list[Stored]:
    """Return the rows' values of each seed, or their differences from ``first``; empty if a seed has none in the store."""
    sides = [ours] if first is None else [ours, first]
    found = [[side[key] for side in sides if key in side] for key in seeds]
    if any(len(own) < len(sides) or len({len(row.values) for row in own}) > 1 for own in found):
        return []
    return [
        own[0]._replace(values=own[0].values.astype(np.float64) - sum(row.values.astype(np.float64) for row in own[1:]))
        for own in found
    ]


def table_of(rows: Sequence[Stored]) -> NDArray[np.float64] | None:
    """Return the values as (seeds, units), with NaN where a seed does not test a unit; None if the units are not known."""
    parts = [(row.units, row.values) for row in rows if row.units is not None]
    if not parts or len(parts) < len(rows):
        return None
    if any(len(ids) == test_rows.MOST for ids, _ in parts):
        parts = [test_rows.by_unit(values, ids % test_rows.MOST) for ids, values in parts]
    every = np.unique(np.concatenate([ids for ids, _ in parts]))
    table = np.full((len(parts), len(every)), np.nan)
    for own, (ids, values) in zip(table, parts, strict=True):
        own[np.searchsorted(every, ids)] = values
    return table
