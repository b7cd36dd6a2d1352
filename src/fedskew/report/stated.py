"""What a comparison states of its verdicts: the margin of equivalence, and whether its seeds draw their own test rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import require
from fedskew.core.folds import Folds, parse_folds
from fedskew.measure.intervals import Estimate, over_clients, over_common_rows, over_splits
from fedskew.measure.registry import primary
from fedskew.report.experiments import parsed, split
from fedskew.report.words import FOLDS, FOLDS_OF_CLIENTS, SPLITS, listed
from fedskew.store.runs import RunRecord


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
        interval is that of `over_splits`.
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
