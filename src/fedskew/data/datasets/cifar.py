"""CIFAR-10 and CIFAR-100: 60,000 colour photographs of 32 x 32 pixels."""

from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from fedskew.core.errors import require
from fedskew.core.limits import NonNegativeInt
from fedskew.data.arrays import Pixels, cifar, mosaics, standardised_pixels
from fedskew.data.dataset import Dataset, Ints, some_rows
from fedskew.data.datasets import SOURCES
from fedskew.data.find import Files

TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = tuple(
    f"cifar-10-batches-bin/{name}.bin" for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
)


@dataclass(frozen=True, kw_only=True)
class Cifar10:
    """50,000 training and 10,000 test rows (3, 32, 32). Each channel is standardised with the training part.

    ``train_rows`` and ``test_rows`` choose this number of random rows, always the same ones; 0 takes all.
    """

    train_rows: NonNegativeInt = 0
    test_rows: NonNegativeInt = 0

    model: ClassVar[str] = "cnn"
    cites: ClassVar[tuple[str, ...]] = ("cifar",)
    idea: ClassVar[str] = "colour photographs of 32 x 32 pixels, ten classes"
    files: ClassVar[Files] = SOURCES["cifar-10"]

    def load(self) -> Dataset:
        (train, y), (test, y_test) = chain(*self.files.read(ten))
        rows = some_rows(len(y), self.train_rows, 0, "cifar-10")
        rows_test = some_rows(len(y_test), self.test_rows, 1, "cifar-10")
        return photographs(self.files, (train[rows], y[rows]), (test[rows_test], y_test[rows_test]), TEN)


def ten(path: Path) -> list[tuple[Pixels, Ints]]:
    """Read both parts from the archive, or the one part in an npz file."""
    if path.suffix == ".npz":
        return [mosaics(path)[:2]]
    return [cifar(path, BATCHES[:-1], labels=1), cifar(path, BATCHES[-1:], labels=1)]


@dataclass(frozen=True, kw_only=True)
class Cifar100:
    """50,000 training and 10,000 test rows (3, 32, 32) of 100 fine or 20 coarse classes, standardised with the training part."""

    labels: Literal["fine", "coarse"] = "fine"

    model: ClassVar[str] = "cnn"
    cites: ClassVar[tuple[str, ...]] = ("cifar",)
    idea: ClassVar[str] = "colour photographs of 32 x 32 pixels, 100 classes in 20 groups"
    files: ClassVar[Files] = SOURCES["cifar-100"]

    def load(self) -> Dataset:
        coarse = self.labels == "coarse"
        train, test = (
            self.files.read(
                partial(cifar, members=(f"cifar-100-binary/{part}.bin",), labels=2, which=0 if coarse else 1)
            )[0]
            for part in ("train", "test")
        )
        names = tuple(f"{'group' if coarse else 'class'} {c}" for c in range(20 if coarse else 100))
        return photographs(self.files, train, test, names)


def photographs(
    files: Files, train: tuple[Pixels, Ints], test: tuple[Pixels, Ints], classes: tuple[str, ...]
) -> Dataset:
    """Standardise the pixels and make the data set. Raises `BadInput` if the training part has no row of a class."""
    lacking = np.setdiff1d(np.arange(len(classes)), train[1])
    require(
        not len(lacking),
        f"data set {files.dataset}: the training part has no row of some classes; download its files again",
    )
    x, x_test, preprocessing = standardised_pixels(train[0], test[0])
    return files.build((x, train[1]), (x_test, test[1]), classes, preprocessing=preprocessing)
