"""Tables of patients: Parkinson's telemonitoring (how severe are the symptoms?), and breast cancer (how long do they live?)."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from msgspec.structs import replace

from fedskew.core.errors import require
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
    """Rows are 5,875 voice recordings of 42 people at home: age, sex, time since the start, and 16 measures of the voice.

    All are standardised. No value is missing. The target is the UPDRS score of all symptoms ("total", 7 to 55) or of the "motor"
    symptoms (5 to 40), interpolated between visits. The clients are the people. The test set is a random fifth of each person's
    recordings.
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
        [(names, values)] = self.files.read(read_recordings)
        person, people = numbered(values[:, 0].astype(np.int64))
        y = values[:, names.index(f"{self.target}_UPDRS")]
        test = held_out(person, 0.2)
        columns = [Number(name=name) for name in names[1:] if name not in TARGETS]
        cells = dict(zip(names, values.T, strict=True))
        preprocessing, x = fitted(columns, cells, ~test, target=f"{self.target}_UPDRS")
        train, tested, clients = (x[~test], y[~test]), (x[test], y[test]), (person[~test], people)
        return self.files.build(train, tested, clients=clients, groups_test=person[test], preprocessing=preprocessing)


def read_recordings(path: Path) -> tuple[list[str], np.ndarray[tuple[int, int], np.dtype[np.float64]]]:
    """Read the names of the columns, and the numbers (recordings, columns). The file is separated by commas or tabs."""
    lines = text_of(path, "ascii").read().replace("\t", ",").splitlines()
    names, *rows = csv.reader(lines)
    values = np.array(rows, dtype=np.float64)
    if values.shape != (COUNT, len(names)) or len(np.unique(values[:, 0])) != PEOPLE:
        raise ValueError(f"it does not have {COUNT} recordings of {PEOPLE} people")
    return names, values


PATIENTS = 1088
FACTS = 39
SHORTEST = 0.5
"""Number of days of follow-up that replaces 0, because a time must be above 0."""


@dataclass(frozen=True, kw_only=True)
class TcgaBrca:
    """39 standardised clinical facts of 1,088 patients in six regions, from The Cancer Genome Atlas.

    Targets are days until death (an event) or last contact (censored). The clients are the hospitals' regions. FLamby chose the
    test rows, and left out the eight patients of hospitals without a region. No value is missing, because "not reported" is a
    category. Patients who were last seen on their first day have a time of half a day.
    """

    task: ClassVar[str] = "survival"
    model: ClassVar[str] = "softmax"
    cites: ClassVar[tuple[str, ...]] = ("tcga-brca", "flamby")
    idea: ClassVar[str] = "breast cancer of 1,088 patients in six regions: days until death, or until the last news"
    files: ClassVar[Files] = SOURCES["tcga-brca"]

    def load(self) -> Dataset:
        patients, sites, split = self.files.read(read_rows)
        region = {site["TSS Code"]: site["Region"] for site in sites}
        part = {row["pid"]: row["fold"] for row in split}
        included = [patient for patient in patients if patient["pid"] in part]
        facts = tuple(name for name in patients[0] if name not in ("pid", "E", "T"))
        require(
            (len(included), len(facts)) == (PATIENTS, FACTS),
            f"data set tcga-brca: {len(included)} patients with {len(facts)} facts, not {PATIENTS} with {FACTS}; get them again",
        )
        cells = {fact: np.array([patient[fact] for patient in included], dtype=np.float64) for fact in facts}
        y = np.array([[patient["T"], patient["E"]] for patient in included], dtype=np.float64)
        first_day = y[:, 0] == 0
        y[first_day, 0] = SHORTEST
        test = np.array([part[patient["pid"]] == "test" for patient in included])
        owner, regions = numbered([region[patient["pid"].split("-")[1]] for patient in included])
        preprocessing, x = fitted([Number(name=fact) for fact in facts], cells, ~test, target="T")
        return self.files.build(
            (x[~test], y[~test]),
            (x[test], y[test]),
            clients=(owner[~test], regions),
            groups_test=owner[test],
            columns=preprocessing.inputs,
            preprocessing=replace(preprocessing, others=("E",)),
            notes=f"{y[:, 1].sum():.0f} of {len(y):,} patients died; {first_day.sum()} were last seen on their first day",
        )


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read the rows of a file, each as a dictionary from column to cell."""
    return list(csv.DictReader(text_of(path)))
