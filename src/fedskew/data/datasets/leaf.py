"""Data in the format of the LEAF benchmark, JSON files with the rows of each user: the user's own, and FEMNIST."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import BadInput, require
from fedskew.core.files import whole_path
from fedskew.core.limits import PositiveInt
from fedskew.data.arrays import standardised
from fedskew.data.dataset import Dataset, Ints, Rows, numbered, places_of
from fedskew.data.datasets import SOURCES
from fedskew.data.find import Files, reading
from fedskew.data.preprocessing import Texts, as_array
from fedskew.data.texts import Vocabulary, of_texts


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """The rows of all JSON files in the folders ``train`` and ``test`` of ``path``. The natural clients are LEAF's users.

    The values of ``y`` are classes: whole numbers or words. Other numbers are targets to predict. Rows ``x`` are numbers, which do
    not change, in the ``shape`` of a row if it is given, such as [1,28,28]. Or they are texts, which become the ids of the first
    ``length`` words, with the ``vocabulary`` most frequent words.
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
        (names, x, y), (names_test, x_test, y_test) = (self.part(part) for part in ("train", "test"))
        clients = numbered(names)
        facts: dict[str, Any] = {"clients": clients, "groups_test": places_of(names_test, clients[1])}
        (labels, classes), targets = numbered([*y, *y_test]), np.array([*y, *y_test])
        if targets.dtype.kind == "f":
            labels, classes = targets, ()
        labels, labels_test = np.split(labels, [len(y)])
        files = Files(dataset=Path(self.path).name, licence="", classes=len(classes), source=self.path)
        if isinstance(x[0], str):
            known = Texts(length=self.length, column="x", target="y")
            return of_texts(files, (x, labels), (x_test, labels_test), classes, known, self.vocabulary, **facts)
        rows, tests = self.numbers(x), self.numbers(x_test)
        return files.build((rows, labels), (tests, labels_test), classes, preprocessing=as_array(rows), **facts)

    def part(self, part: str) -> tuple[list[str], list[Any], list[Any]]:
        """Return the user, the row and the label of each row in a part."""
        paths = sorted((Path(self.path) / part).glob("*.json"))
        require(bool(paths), f"{self.path}: no JSON file in its folder {part}; LEAF's folders are train and test")
        names, x, y = list[str](), list[Any](), list[Any]()
        for path in paths:
            with reading("leaf", path):
                for name, (rows, labels) in users_of(path).items():
                    names += [name] * len(labels)
                    x += rows
                    y += labels
        require(bool(y), f"{self.path}: no row in {part}")
        return names, x, y

    def numbers(self, x: list[Any]) -> Rows:
        """Return rows (n, ...) of numbers."""
        try:
            rows = np.asarray(x, dtype=np.float32)
            return rows.reshape(len(rows), *(self.shape or rows.shape[1:]))
        except (ValueError, TypeError) as error:
            raise BadInput(
                f"{self.path}: rows must be numbers of one shape, or texts: {str(error).splitlines()[0]}"
            ) from None


def users_of(path: Path) -> Mapping[str, tuple[list[Any], list[Any]]]:
    """Read the rows and the labels of each user in a JSON file. Raises `ValueError` for different numbers of them."""
    content = json.loads(path.read_text(encoding="utf-8"))
    users = {str(name): (content["user_data"][name]["x"], content["user_data"][name]["y"]) for name in content["users"]}
    for name, (x, y) in users.items():
        if len(x) != len(y):
            raise ValueError(f"user {name} has {len(y)} labels and {len(x)} rows")
    return users


CHARACTERS = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
Writer = tuple[str, NDArray[np.float32], Ints]
"""Name, images (n, 1, 28, 28) and labels (n,)."""


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
        parts: dict[str, list[Writer]] = {"train": [], "test": []}
        for part, people in self.files.read(writers):
            parts[part] += people
        names, x, y = zip(*parts["train"], strict=True)
        tested, x_test, y_test = zip(*parts["test"], strict=True)
        clients = numbered(np.repeat(names, [len(labels) for labels in y]))
        train, test, preprocessing = standardised(np.concatenate(x), np.concatenate(x_test))
        require(bool(train.any()), "data set femnist: all training images are blank")
        labels, labels_test = np.concatenate(y), np.concatenate(y_test)
        return self.files.build(
            (train, labels),
            (test, labels_test),
            CHARACTERS,
            clients=clients,
            groups_test=places_of(np.repeat(tested, [len(labels) for labels in y_test]), clients[1]),
            preprocessing=preprocessing,
        )


def writers(path: Path) -> tuple[str, list[Writer]]:
    """Read a file; return its part (train or test) and its writers."""
    people = []
    for name, (images, labels) in users_of(path).items():
        x, y = np.asarray(images, dtype=np.float32), np.asarray(labels, dtype=np.int64)
        if x.shape[1:] != (784,):
            raise ValueError(f"user {name} has images of shape {x.shape}")
        people.append((name, x.reshape(-1, 1, 28, 28), y))
    return path.parent.name, people
