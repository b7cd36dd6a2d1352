"""Bitext's synthetic messages of customers, labelled by intent: to customer support, and to online shops."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from fedskew.core.limits import NonNegativeInt, OpenShare, PositiveInt
from fedskew.core.seeding import stream
from fedskew.data.dataset import Dataset, Ints, check_all_trained, numbered
from fedskew.data.datasets import SOURCES
from fedskew.data.find import Files, text_of
from fedskew.data.preprocessing import Texts
from fedskew.data.texts import Vocabulary, check_texts, held_out_rows, of_texts

COLUMNS = ("instruction", "category", "intent")


@dataclass(frozen=True, kw_only=True)
class Bitext:
    """Rows are ids of the first ``length`` words. ``labels`` are intents or categories; natural clients are categories.

    There is no official test part: ``test_fraction`` of each class is held out. No set of words occurs in both parts.
    ``labelled`` is the number of training rows of each class; 0 keeps all.
    """

    labels: Literal["intent", "category"] = "intent"
    length: PositiveInt = 24
    vocabulary: Vocabulary = 5_000
    test_fraction: OpenShare = 0.2
    labelled: NonNegativeInt = 0

    model: ClassVar[str] = "text-cnn"
    cites: ClassVar[tuple[str, ...]] = ("bitext",)
    files: ClassVar[Files]

    def load(self) -> Dataset:
        [table] = self.files.read(read)
        texts = table["instruction"]
        check_texts(self.files.dataset, self.files.paths()[0].name, texts)
        y, classes = numbered(table[self.labels])
        owner, _ = numbered(table["category"])
        test = held_out_rows(texts, y, self.test_fraction)
        train = np.flatnonzero(~test)
        if self.labelled:
            train = some_of_each(train, y, self.labelled)
        parts = [([texts[row] for row in rows], y[rows]) for rows in (train, np.flatnonzero(test))]
        check_all_trained(f"data set {self.files.dataset}", classes, parts[0][1], parts[1][1])
        notes = "no set of words stands in both the training and the test part"
        known = Texts(column="instruction", length=self.length, target=self.labels)
        clients, tested = (owner[train], ()), owner[test]
        return of_texts(
            self.files, parts[0], parts[1], classes, known, self.vocabulary, clients, groups_test=tested, notes=notes
        )


@dataclass(frozen=True, kw_only=True)
class BitextSupport(Bitext):
    """Customer support in general: 26,872 messages, 27 intents in 11 categories."""

    __doc__ = f"{__doc__}\n\n    {Bitext.__doc__}"

    idea: ClassVar[str] = "messages to customer support: 27 intents in 11 categories"
    files: ClassVar[Files] = SOURCES["bitext-support"]


@dataclass(frozen=True, kw_only=True)
class BitextRetail(Bitext):
    """Online shops: 44,884 messages, 46 intents in 13 categories."""

    __doc__ = f"{__doc__}\n\n    {Bitext.__doc__}"

    idea: ClassVar[str] = "messages to online shops: 46 intents in 13 categories"
    files: ClassVar[Files] = SOURCES["bitext-retail"]


def read(path: Path) -> dict[str, list[str]]:
    """Read the columns instruction, category and intent of a file with a header."""
    reader = csv.DictReader(text_of(path))
    absent = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if absent:
        raise ValueError(f"it has no column {' and no column '.join(absent)}")
    rows = list(reader)
    if any(row[name] is None for row in rows for name in COLUMNS):
        raise ValueError("a row is shorter than the header")
    return {name: [row[name] for row in rows] for name in COLUMNS}


def some_of_each(rows: Ints, y: Ints, number: int) -> Ints:
    """Choose ``number`` rows of each class (all of a smaller class), the same in every run; return them in ascending order."""
    rng = stream(0, "data")
    return np.sort(np.concatenate([rng.permutation(rows[y[rows] == c])[:number] for c in np.unique(y)]))
