"""UCI Adult: census rows of 48,842 people in the USA in 1994; does somebody earn more than 50,000 dollars a year?"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import BadInput
from fedskew.data.dataset import Dataset
from fedskew.data.find import find

FILES = ("adult.data.gz", "adult.test.gz")
HOW = "it is the file of that name of the UCI data set 'Adult', packed with gzip; put it there or set FEDSKEW_DATA to its folder"
COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship"),
    *("race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income"),
)
NUMBERS = ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week")
WORDS = ("workclass", "education", "marital-status", "occupation", "relationship", "race", "sex")
Table = dict[str, NDArray[np.str_]]


@dataclass(frozen=True, kw_only=True)
class Adult:
    """32,561 training and 16,281 test rows: five numbers, standardised, six words one-hot ("?" is a word of its own), sex last.

    ``sensitive`` is the attribute in the last column: ``sex`` (1: male) or ``race`` (1: white). ``groups`` says whose natural
    clients are: people of one ``sex`` and ``race``, of one kind of employer (``workclass``), or of one ``education``. The survey
    weight and the native country are left out.
    """

    groups: Literal["people", "workclass", "education"] = "workclass"
    sensitive: Literal["sex", "race"] = "sex"

    model: ClassVar[str] = "mlp"
    cites: ClassVar[tuple[str, ...]] = ("adult",)
    idea: ClassVar[str] = "census rows: income above 50,000 dollars or not, with sex or race as the sensitive attribute"

    def load(self) -> Dataset:
        train, test = (read(find("adult", name, HOW)) for name in FILES)
        favoured = {"sex": "Male", "race": "White"}[self.sensitive]

        def rows(part: Table) -> NDArray[np.float32]:
            numbers = [(part[c].astype(float) - mean[c]) / std[c] for c in NUMBERS]
            words = [part[c] == w for c in WORDS for w in np.unique(train[c]) if c != self.sensitive]
            return np.stack([*numbers, *words, part[self.sensitive] == favoured], axis=1).astype(np.float32)

        mean = {c: train[c].astype(float).mean() for c in NUMBERS}
        std = {c: train[c].astype(float).std() for c in NUMBERS}
        owner = np.char.add(train["sex"], train["race"]) if self.groups == "people" else train[self.groups]
        return Dataset(
            x=rows(train),
            y=(train["income"] == ">50K").astype(np.int64),
            x_test=rows(test),
            y_test=(test["income"] == ">50K").astype(np.int64),
            groups=np.unique(owner, return_inverse=True)[1].astype(np.int64),
            classes=("at most 50K", "above 50K"),
            sensitive=self.sensitive,
            name="adult",
            source="B. Becker, R. Kohavi: Adult, UCI Machine Learning Repository, 1996",
            notes=f"the last column holds the sensitive attribute, 1 for {favoured.lower()}",
        )


def read(path: Path) -> Table:
    """The columns of a file by name; raises `BadInput` if it is damaged or another file."""
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            lines = [line.rstrip("\n.").split(", ") for line in file if line.strip() and not line.startswith("|")]
        columns = np.asarray(lines).T
        assert len(columns) == len(COLUMNS)
        return dict(zip(COLUMNS, columns, strict=True))
    except (OSError, EOFError, ValueError, AssertionError, zlib.error) as error:
        reason = str(error).strip() or "its lines do not have 15 columns"
        raise BadInput(f"data set adult: cannot read {path}, it is damaged or another file: {reason}") from None
