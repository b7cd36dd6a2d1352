"""Breast cancer of 1,088 patients in six regions, from The Cancer Genome Atlas, as FLamby prepared them. How long do they live?"""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from msgspec.structs import replace

from fedskew.core.errors import require
from fedskew.data.dataset import Dataset, numbered
from fedskew.data.datasets import SOURCES
from fedskew.data.find import Files, text_of
from fedskew.data.preprocessing import Number
from fedskew.data.tables.summaries import fitted

PATIENTS = 1088
FACTS = 39
SHORTEST = 0.5
"""Number of days of follow-up that replaces 0, because a time must be above 0."""


@dataclass(frozen=True, kw_only=True)
class TcgaBrca:
    """39 standardised clinical facts of each patient. Targets are days until death (an event) or last contact (censored).

    The clients are the hospitals' regions. FLamby chose the test rows, and left out the eight patients of hospitals without a
    region. No value is missing, because "not reported" is a category. Patients who were last seen on their first day have a time
    of half a day.
    """

    task: ClassVar[str] = "survival"
    model: ClassVar[str] = "softmax"
    cites: ClassVar[tuple[str, ...]] = ("tcga-brca", "flamby")
    idea: ClassVar[str] = "breast cancer of 1,088 patients in six regions: days until death, or until the last news"
    files: ClassVar[Files] = SOURCES["tcga-brca"]

    def load(self) -> Dataset:
        patients, sites, split = self.files.read(read)
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
            columns=facts,
            preprocessing=replace(preprocessing, others=("E",)),
            notes=f"{y[:, 1].sum():.0f} of {len(y):,} patients died; {first_day.sum()} were last seen on their first day",
        )


def read(path: Path) -> list[dict[str, str]]:
    """Read the rows of a file, each as a dictionary from column to cell."""
    return list(csv.DictReader(text_of(path)))
