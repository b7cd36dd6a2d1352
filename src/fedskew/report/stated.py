"""What a comparison states of its verdicts: the margin of equivalence, and whether its seeds draw their own test rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedskew.core.errors import require
from fedskew.core.folds import Folds, parse_folds
from fedskew.measure.intervals import Resampled, over_splits
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


@dataclass(frozen=True)
class Splits:
    """Several test sets that seeds have drawn: what an interval over them covers, and the parameters of `over_splits`."""

    covers: str
    ratio: float
    most_freedom: float

    def over(self, values: Sequence[float]) -> Resampled:
        return over_splits(values, self.ratio, self.most_freedom)


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
    return Splits(covers, float(np.mean(ratios)), min(of_clients, default=math.inf) - 1)


def folds_of(record: RunRecord) -> Folds | None:
    """The folds of a run that tests one of them."""
    folds = str(parsed(record).get("dataset", {}).get("fold", "")).partition("/")[2]
    return parse_folds(folds) if folds else None
