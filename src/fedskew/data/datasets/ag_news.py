"""AG News: titles and first sentences of news articles, four topics."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedskew.core.limits import NonNegativeInt, PositiveInt
from fedskew.data.dataset import Dataset, check_all_trained, some_rows
from fedskew.data.datasets import SOURCES
from fedskew.data.find import Files, text_of
from fedskew.data.preprocessing import Texts
from fedskew.data.texts import Labelled, Vocabulary, of_texts

TOPICS = ("1", "2", "3", "4")


@dataclass(frozen=True, kw_only=True)
class AgNews:
    """120,000 training and 7,600 test texts: title, space, description. Rows are ids of the first ``length`` words.

    ``train_rows`` and ``test_rows`` choose this number of random rows, always the same ones; 0 takes all. Without the original
    train.csv, ``ag_news_train_subset.csv.gz`` is read, which has a part of the rows.
    """

    length: PositiveInt = 64
    vocabulary: Vocabulary = 20_000
    train_rows: NonNegativeInt = 0
    test_rows: NonNegativeInt = 0

    model: ClassVar[str] = "text-cnn"
    cites: ClassVar[tuple[str, ...]] = ("ag-news",)
    idea: ClassVar[str] = "titles and first sentences of news articles, four topics"
    files: ClassVar[Files] = SOURCES["ag-news"]

    def load(self) -> Dataset:
        parts = []
        for at, (texts, labels) in enumerate(self.files.read(read)):
            rows = some_rows(len(texts), (self.train_rows, self.test_rows)[at], at, "ag-news")
            parts.append(([texts[row] for row in rows], labels[rows]))
        topics = ("world", "sports", "business", "science and technology")
        notes = "" if self.files.paths()[0].name == "train.csv" else "a part of the training rows"
        known = Texts(length=self.length, target="topic")
        check_all_trained("data set ag-news", topics, parts[0][1], parts[1][1])
        return of_texts(self.files, parts[0], parts[1], topics, known, self.vocabulary, notes=notes)


def read(path: Path) -> Labelled:
    """Read texts and topics. The file has no header; its columns are topic (1..4), title, description."""
    rows = list(csv.reader(text_of(path)))
    if {len(row) for row in rows} != {3}:
        raise ValueError("its rows do not have the 3 columns topic, title and description")
    odd = next((at for at, row in enumerate(rows, start=1) if row[0] not in TOPICS), 0)
    if odd:
        raise ValueError(f"the topic of row {odd} is {rows[odd - 1][0]!r}, expected 1, 2, 3 or 4")
    return [f"{title} {text}" for _, title, text in rows], np.asarray([int(row[0]) - 1 for row in rows])
