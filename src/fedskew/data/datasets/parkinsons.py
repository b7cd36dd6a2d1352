"""Parkinsons Telemonitoring: 5,875 voice recordings of 42 people at home. How severe are their symptoms?"""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from fedskew.data.dataset import Dataset, numbered
from fedskew.data.datasets import SOURCES
from fedskew.data.find import Files, text_of
from fedskew.data.preprocessing import Number
from fedskew.data.splits import held_out
from fedskew.data.tables.summaries import fitted

COUNT, PEOPLE = 5875, 42
TARGETS = ("motor_UPDRS", "total_UPDRS")


@dataclass(frozen=True, kw_only=True)
class Parkinsons:
    """Rows are age, sex, time since the start, and 16 measures of the voice, all standardised. No value is missing.

    The target is the UPDRS score of all symptoms ("total", 7 to 55) or of the "motor" symptoms (5 to 40), interpolated between
    visits. The clients are the people. The test set is a random fifth of each person's recordings.
    """

    target: Literal["total", "motor"] = "total"

    task: ClassVar[str] = "regression"
    model: ClassVar[str] = "mlp"
    cites: ClassVar[tuple[str, ...]] = ("parkinsons",)
    idea: ClassVar[str] = (
        "42 people with Parkinson's disease: the severity of symptoms from recordings of the voice, a number"
    )
    files: ClassVar[Files] = SOURCES["parkinsons"]

    def load(self) -> Dataset:
        [(names, values)] = self.files.read(read)
        person, people = numbered(values[:, 0].astype(np.int64))
        y = values[:, names.index(f"{self.target}_UPDRS")]
        test = held_out(person, 0.2)
        columns = [Number(name=name) for name in names[1:] if name not in TARGETS]
        cells = dict(zip(names, values.T, strict=True))
        preprocessing, x = fitted(columns, cells, ~test, target=f"{self.target}_UPDRS")
        return self.files.build(
            (x[~test], y[~test]),
            (x[test], y[test]),
            clients=(person[~test], people),
            groups_test=person[test],
            preprocessing=preprocessing,
        )


def read(path: Path) -> tuple[list[str], np.ndarray[tuple[int, int], np.dtype[np.float64]]]:
    """Read the names of the columns, and the numbers (recordings, columns). The file is separated by commas or tabs."""
    lines = text_of(path, "ascii").read().replace("\t", ",").splitlines()
    names, *rows = csv.reader(lines)
    values = np.array(rows, dtype=np.float64)
    if values.shape != (COUNT, len(names)) or len(np.unique(values[:, 0])) != PEOPLE:
        raise ValueError(f"it does not have {COUNT} recordings of {PEOPLE} people")
    return names, values
