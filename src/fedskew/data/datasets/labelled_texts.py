"""Texts with labels: AG News, 20 Newsgroups, and Bitext's messages of customers. Rows are ids of words."""

import csv
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from fedskew.core.limits import NonNegativeInt, OpenShare, PositiveInt
from fedskew.core.seeding import stream
from fedskew.data.dataset import Dataset, Ints, check_all_trained, numbered, some_rows
from fedskew.data.datasets import SOURCES
from fedskew.data.find import Files, text_of
from fedskew.data.preprocessing import Texts
from fedskew.data.texts import Labelled, Vocabulary, check_texts, held_out_rows, of_texts

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
        for at, (texts, labels) in enumerate(self.files.read(read_news)):
            rows = some_rows(len(texts), (self.train_rows, self.test_rows)[at], at, "ag-news")
            parts.append(([texts[row] for row in rows], labels[rows]))
        topics = ("world", "sports", "business", "science and technology")
        notes = "" if self.files.paths()[0].name == "train.csv" else "a part of the training rows"
        known = Texts(length=self.length, target="topic")
        check_all_trained("data set ag-news", topics, parts[0][1], parts[1][1])
        return of_texts(self.files, parts[0], parts[1], topics, known, self.vocabulary, notes=notes)


def read_news(path: Path) -> Labelled:
    """Read texts and topics. The file has no header; its columns are topic (1..4), title, description."""
    rows = list(csv.reader(text_of(path)))
    if {len(row) for row in rows} != {3}:
        raise ValueError("its rows do not have the 3 columns topic, title and description")
    odd = next((at for at, row in enumerate(rows, start=1) if row[0] not in TOPICS), 0)
    if odd:
        raise ValueError(f"the topic of row {odd} is {rows[odd - 1][0]!r}, expected 1, 2, 3 or 4")
    return [f"{title} {text}" for _, title, text in rows], np.asarray([int(row[0]) - 1 for row in rows])


Post = tuple[str, str, str]
"""Part, group, text."""


@dataclass(frozen=True, kw_only=True)
class Newsgroups:
    """11,314 training and 7,532 later test posts. Rows are ids of the first ``length`` words.

    Headers reveal the group, for example by the moderator's name. They are left out, unless ``headers`` is True or the post has
    no other text.
    """

    length: PositiveInt = 256
    vocabulary: Vocabulary = 20_000
    headers: bool = False

    model: ClassVar[str] = "text-cnn"
    cites: ClassVar[tuple[str, ...]] = ("20-newsgroups",)
    idea: ClassVar[str] = "posts to twenty discussion groups, tested on later ones"
    files: ClassVar[Files] = SOURCES["20-newsgroups"]

    def load(self) -> Dataset:
        [posts] = self.files.read(read_posts)
        labels, classes = numbered([group for _, group, _ in posts])
        texts = [text if self.headers else body(text) for *_, text in posts]
        train, test = ([at for at, post in enumerate(posts) if post[0] == part] for part in ("train", "test"))
        parts = [([texts[row] for row in rows], labels[rows]) for rows in (train, test)]
        known = Texts(length=self.length, target="group")
        check_all_trained("data set 20-newsgroups", classes, parts[0][1], parts[1][1])
        return of_texts(self.files, parts[0], parts[1], classes, known, self.vocabulary)


def body(text: str) -> str:
    """Return the text after the header, which ends at an empty line. If there is no text after it, return the header."""
    behind = text.partition("\n\n")[2]
    return behind if behind.strip() else text


def read_posts(path: Path) -> list[Post]:
    """Read the posts from a file with a JSON object in each line, or from an archive with paths PART/GROUP/POST."""
    if path.suffix == ".xz":
        return [(row["split"], row["group"], row["text"]) for row in map(json.loads, text_of(path))]
    posts = []
    with tarfile.open(path) as archive:
        for member in archive:
            folder, _, rest = member.name.partition("/")
            if file := archive.extractfile(member):
                posts.append((folder.rpartition("-")[2], rest.partition("/")[0], file.read().decode("latin-1")))
    return posts


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
        [table] = self.files.read(read_messages)
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


def read_messages(path: Path) -> dict[str, list[str]]:
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
