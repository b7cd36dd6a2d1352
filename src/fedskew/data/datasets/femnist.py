"""FEMNIST: handwritten digits and letters, grouped by writer, as the LEAF benchmark prepares them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import BadInput, require
from fedskew.data.arrays import standardised
from fedskew.data.dataset import Dataset, Ints, numbered, places_of
from fedskew.data.datasets import SOURCES
from fedskew.data.find import Files

CLASSES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
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
            CLASSES,
            clients=clients,
            groups_test=places_of(np.repeat(tested, [len(labels) for labels in y_test]), clients[1]),
            preprocessing=preprocessing,
        )


def writers(path: Path) -> tuple[str, list[Writer]]:
    """Read a file; return its part (train or test) and its writers."""
    content = json.loads(path.read_text(encoding="utf-8"))
    people = []
    for name in content["users"]:
        rows = content["user_data"][name]
        x, y = np.asarray(rows["x"], dtype=np.float32), np.asarray(rows["y"], dtype=np.int64)
        if x.shape[1:] != (784,) or len(x) != len(y):
            raise BadInput(
                f"data set femnist: writer {name} of {path} has {len(y)} labels and images of shape {x.shape}"
            )
        people.append((name, x.reshape(-1, 1, 28, 28), y))
    return path.parent.name, people
