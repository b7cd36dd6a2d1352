"""Heart disease of 920 people in four hospitals, 1988. Is an artery of the heart narrowed by more than half?

`heart.csv` has the rows of the four ``processed`` files of the UCI Heart Disease data set: A. Janosi, W. Steinbrunn,
M. Pfisterer, R. Detrano, 1988, https://doi.org/10.24432/C52P4X, licence CC BY 4.0. The values are unchanged. A column has the
hospital, and an empty cell stands for a missing value.
"""

import csv
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedskew.data.dataset import Dataset, numbered
from fedskew.data.datasets import SOURCES
from fedskew.data.find import Files
from fedskew.data.preprocessing import Number, Words
from fedskew.data.splits import Redrawn, in_fold, share_of_strata, units_of
from fedskew.data.tables.summaries import fitted

CSV = Path(__file__).with_name("heart.csv")
CATEGORIES = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2), "slope": (1, 2, 3), "thal": (3, 6, 7)}
"""Codes that have no order: type of chest pain, resting ECG, slope of the ST segment, blood flow of the heart."""
NEVER_ZERO = ("trestbps", "chol")
"""Blood pressure and cholesterol. For these, 0 means a missing value."""


@dataclass(frozen=True, kw_only=True)
class Heart(Redrawn):
    """13 facts of each person as 22 columns. Codes that have no order are one-hot. The classes are ``num`` = 0 and ``num`` > 0.

    The test set is a random third of each class in each hospital, drawn with ``split_seed``. With ``redraw``, each seed of a
    comparison draws its own test set. ``fold=2/5`` tests the second of five folds of the rows, ``fold=2/4:clients`` one hospital.
    Columns are standardised with the known values of the training rows. A missing value becomes their mean, 0. A cholesterol or
    blood pressure of 0 is missing.
    """

    model: ClassVar[str] = "softmax"
    client: ClassVar[str] = "hospital"
    cites: ClassVar[tuple[str, ...]] = ("heart",)
    idea: ClassVar[str] = "heart disease of 920 people in four hospitals, a part of this package: always available"
    files: ClassVar[Files] = replace(SOURCES["heart"], packaged=(CSV,))

    def load(self) -> Dataset:
        [table] = self.files.read(read)
        hospital, names = numbered(table.pop("hospital"))
        y = (np.array(table.pop("num"), dtype=float) > 0).astype(np.int64)
        columns = [column_of(name) for name in table]
        cells = {part.name: cells_of(table[part.name], part.text) for part in columns}
        missing = {part.name: int(np.isnan(part.raw(cells[part.name])[:, 0]).sum()) for part in columns}
        if self.fold:
            test = in_fold(hospital, self.fold, self.split_seed, y)
        else:
            test = share_of_strata(2 * hospital + y, 1 / 3, self.split_seed)
        train = ~test | bool(self.whole)
        preprocessing, x = fitted(columns, cells, train, one_hot=False)
        return self.files.build(
            (x[train], y[train]),
            (x[test], y[test]),
            ("healthy", "ill"),
            clients=(hospital[train], names),
            groups_test=hospital[test],
            test_units=units_of(test, hospital, self.fold),
            columns=preprocessing.inputs,
            preprocessing=preprocessing,
            notes=f"{sum(missing.values()):,} of {len(y) * len(missing):,} values are missing and become the training mean, "
            f"most often {', '.join(sorted(missing, key=missing.__getitem__)[:-4:-1])}; cholesterol 0 counts as missing",
        )


def column_of(name: str) -> Number | Words:
    """Return a column's preprocessing, not yet fitted."""
    if name in CATEGORIES:
        return Words(name=name, known=tuple(map(str, CATEGORIES[name])))
    return Number(name=name, missing=(0.0,) if name in NEVER_ZERO else ())


def cells_of(cells: list[str], text: bool) -> NDArray[Any]:
    """Return the cells (n,) as words, or as numbers with NaN for empty cells."""
    return np.array(cells, dtype=object) if text else np.array([float(cell or "nan") for cell in cells])


def read(path: Path) -> dict[str, list[str]]:
    """Read the cells of each column, by name."""
    with path.open(encoding="ascii", newline="") as file:
        head, *rows = csv.reader(file)
    return dict(zip(head, map(list, zip(*rows, strict=True)), strict=True))
