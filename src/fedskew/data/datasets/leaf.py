"""Data in the format of the LEAF benchmark, JSON files with the rows of each user: the user's own, and FEMNIST."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedskew.core.errors import require
from fedskew.core.files import whole_path
from fedskew.core.limits import PositiveInt
from fedskew.data.dataset import Dataset, Rows, numbered, places_of
from fedskew.data.datasets import SOURCES
from fedskew.data.find import Files, reading
from fedskew.data.preprocessing import Texts, as_array, standardised
from fedskew.data.texts import Vocabulary, of_texts, of_windows


@dataclass(frozen=True, kw_only=True)
class LeafFolder:
    """The rows of all JSON files in the folders ``train`` and ``test`` of ``path``. The natural clients are LEAF's users.

    The values of ``y`` are classes: whole numbers or words. Other numbers are targets to predict. Rows ``x`` are numbers, which do
    not change, in the ``shape`` of a row if it is given, such as [1,28,28]. Or they are texts, which become the ids of the first
    ``length`` words, with the ``vocabulary`` most frequent words; a row of Sent140 is a list with the text in fifth place. If all
    texts have the same length, and each ``y`` is one character, as in Shakespeare, ``y`` is the character that follows.
    """

    path: str
    shape: tuple[PositiveInt, ...] = ()
    length: PositiveInt = 64
    vocabulary: Vocabulary = 20_000

    takes: ClassVar[str] = "path"
    model: ClassVar[str] = "mlp"
    client: ClassVar[str] = "user"
    cites: ClassVar[tuple[str, ...]] = ("leaf",)
    idea: ClassVar[str] = "a folder in LEAF's format: train and test with JSON files, a client for each user"

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", whole_path(self.path))

    def load(self) -> Dataset:
        (names, x, y), (names_test, x_test, y_test) = (
            rows_of("leaf", sorted((Path(self.path) / part).glob("*.json")), f"{self.path}/{part}", self.shape)
            for part in ("train", "test")
        )
        clients = numbered(names)
        facts: dict[str, Any] = {"clients": clients, "groups_test": places_of(names_test, clients[1])}
        targets = np.array([*y, *y_test])
        fractions = targets.dtype.kind == "f" and bool((targets % 1 != 0).any())
        whole = targets.astype(np.int64) if targets.dtype.kind == "f" and not fractions else targets
        labels, classes = (targets, ()) if fractions else numbered(whole)
        labels, labels_test = np.split(labels, [len(y)])
        files = Files(dataset=Path(self.path).name, licence="", classes=len(classes), source=self.path)
        if x.dtype == object:
            if len({*map(len, [*x, *x_test])}) == 1 and all(isinstance(c, str) and len(c) == 1 for c in [*y, *y_test]):
                return of_windows(files, (x.tolist(), y), (x_test.tolist(), y_test), **facts)
            known = Texts(length=self.length, column="x", target="y")
            train, test = (x.tolist(), labels), (x_test.tolist(), labels_test)
            return of_texts(files, train, test, classes, known, self.vocabulary, **facts)
        return files.build((x, labels), (x_test, labels_test), classes, preprocessing=as_array(x), **facts)


TWEET, TEXT = 6, 4
"""Number of values in a row of Sent140 (id, date, query, user, text, part), and the place of its text."""


def rows_of(dataset: str, paths: Sequence[Path], where: str, shape: tuple[int, ...]) -> tuple[Rows, Rows, list[Any]]:
    """Return users (n,), rows (n, ...) of this ``shape``, if it is not empty, and labels in JSON files. Texts are objects."""
    names, parts, y = list[str](), list[Rows](), list[Any]()
    for path in paths:
        with reading(dataset, path):
            content = json.loads(path.read_text(encoding="utf-8"))
            for name in content["users"]:
                rows, labels = content["user_data"][name]["x"], content["user_data"][name]["y"]
                if len(rows) != len(labels):
                    raise ValueError(f"user {name} has {len(labels)} labels and {len(rows)} rows")
                if labels:
                    if isinstance(rows[0], list) and len(rows[0]) == TWEET and isinstance(rows[0][TEXT], str):
                        rows = [row[TEXT] for row in rows]
                    if isinstance(rows[0], str) and not all(isinstance(row, str) for row in rows):
                        raise ValueError(f"x of user {name} holds texts and other values")
                    x = np.asarray(rows, dtype=object if isinstance(rows[0], str) else np.float32)
                    parts.append(x.reshape(len(x), *(shape or x.shape[1:])))
                    names += [str(name)] * len(labels)
                    y += labels
    require(bool(y), f"{where}: no rows in JSON files here; LEAF's folders are train and test")
    require(len({(part.shape[1:], part.dtype) for part in parts}) == 1, f"{where}: rows have different shapes")
    return np.asarray(names), np.concatenate(parts), y


CHARACTERS = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")


@dataclass(frozen=True, kw_only=True)
class Femnist:
    """Rows (1, 28, 28) of LEAF's grey values (1: paper), standardised with the training part. Natural clients are writers.

    The parts are LEAF's: with its option ``-t sample`` both have the same writers, with ``-t user`` different ones.
    """

    model: ClassVar[str] = "cnn"
    cites: ClassVar[tuple[str, ...]] = ("leaf",)
    idea: ClassVar[str] = "handwritten digits and letters, 62 classes, a client per writer"
    files: ClassVar[Files] = SOURCES["femnist"]

    def load(self) -> Dataset:
        paths, shape = self.files.paths(), (1, 28, 28)
        (names, x, y), (tested, x_test, y_test) = (
            rows_of("femnist", [path for path in paths if path.parent.name == part], f"data set femnist: {part}", shape)
            for part in ("train", "test")
        )
        clients = numbered(names)
        train, test, preprocessing = standardised(x, x_test)
        require(bool(train.any()), "data set femnist: all training images are blank")
        facts = {"groups_test": places_of(tested, clients[1]), "preprocessing": preprocessing}
        return self.files.build((train, np.array(y)), (test, np.array(y_test)), CHARACTERS, clients, **facts)
