"""FEMNIST: handwritten digits and letters by the people who wrote them, as the LEAF benchmark prepares them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import BadInput, require
from fedskew.data.dataset import Dataset
from fedskew.data.find import Files, folders, reading

CLASSES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")


@dataclass(frozen=True)
class Leaf(Files):
    """All JSON files in the folders ``train`` and ``test``, however many LEAF wrote."""

    def here(self) -> list[Path]:
        for place in (folder / self.dataset for folder in folders()):
            parts = [sorted((place / part).glob("*.json")) for part in ("train", "test")]
            if all(parts):
                return [*parts[0], *parts[1]]
        return []


@dataclass(frozen=True, kw_only=True)
class Femnist:
    """Rows (1, 28, 28) with LEAF's grey values, 1 for paper, standardised by the training part; natural clients are writers.

    Train and test are LEAF's: with ``-t sample`` the same writers stand on both sides, with ``-t user`` other ones.
    """

    model: ClassVar[str] = "cnn"
    cites: ClassVar[tuple[str, ...]] = ("leaf",)
    idea: ClassVar[str] = "handwritten digits and letters, 62 classes, a client per writer"
    files: ClassVar[Files] = Leaf(
        dataset="femnist",
        licence="NIST Special Database 19, public domain",
        classes=62,
        natural="writers",
        others=(("train/*.json", "test/*.json"),),
        how="make them with LEAF (github.com/TalwalkarLab/leaf, data/femnist, ./preprocess.sh -s niid --sf 0.05 -k 0 -t sample) "
        "and put its folders data/train and data/test into a folder femnist there",
    )

    def load(self) -> Dataset:
        paths = self.files.paths()
        train = [part for path in paths if path.parent.name == "train" for part in writers(path)]
        test = [part for path in paths if path.parent.name == "test" for part in writers(path)]
        ids = {name: at for at, name in enumerate(sorted({name for name, _, _ in train}))}
        x, x_test = (np.concatenate([pixels for _, pixels, _ in part]) for part in (train, test))
        mean, std = x.mean(dtype=np.float64), x.std(dtype=np.float64)
        require(std > 0, "data set femnist: all training images are blank")
        return Dataset(
            x=((x - mean) / std).astype(np.float32),
            y=np.concatenate([labels for _, _, labels in train]),
            x_test=((x_test - mean) / std).astype(np.float32),
            y_test=np.concatenate([labels for _, _, labels in test]),
            groups=np.concatenate([np.full(len(labels), ids[name]) for name, _, labels in train]),
            group_names=tuple(ids),
            classes=CLASSES,
            name="femnist",
            source="S. Caldas et al.: LEAF, a Benchmark for Federated Settings, 2018, arXiv:1812.01097",
        )


def writers(path: Path) -> list[tuple[str, NDArray[np.float32], NDArray[np.int64]]]:
    """Name, images and labels of each writer of a file."""
    with reading("femnist", path):
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found = []
        for name in content["users"]:
            rows = content["user_data"][name]
            x, y = np.asarray(rows["x"], dtype=np.float32), np.asarray(rows["y"], dtype=np.int64)
            if x.shape[1:] != (784,) or len(x) != len(y):
                raise BadInput(
                    f"data set femnist: writer {name} of {path} has {len(y)} labels and images of shape {x.shape}"
                )
            found.append((name, x.reshape(-1, 1, 28, 28), y))
        return found
