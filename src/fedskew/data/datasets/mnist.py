"""MNIST and Fashion-MNIST: 70,000 grey images of 28 x 28 pixels, in the IDX format."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedskew.core.errors import require
from fedskew.data.arrays import idx, standardised_pixels
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.datasets import SOURCES
from fedskew.data.find import Files, npz_arrays


def arrays(path: Path) -> list[Rows]:
    """Read the one array of an IDX file, or the four arrays of an npz file."""
    return npz_arrays(path, ("X_train", "y_train", "X_test", "y_test")) if path.suffix == ".npz" else [idx(path)]


def load(files: Files, classes: Sequence[str]) -> Dataset:
    train, y, test, y_test = chain(*files.read(arrays))
    for part, images, labels in (("training", train, y), ("test", test, y_test)):
        where = f"data set {files.dataset}: the {part}"
        require(images.shape[1:] == (28, 28), f"{where} images have shape {images.shape[1:]}, expected (28, 28)")
        require(images.dtype == np.uint8, f"{where} pixels are {images.dtype}, expected bytes")
        require(
            labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer),
            f"{where} labels are {labels.dtype} of shape {labels.shape}, expected one integer for each image",
        )
    x, x_test, preprocessing = standardised_pixels(train[:, None], test[:, None])
    return files.build((x, y.astype(np.int64)), (x_test, y_test.astype(np.int64)), classes, preprocessing=preprocessing)


@dataclass(frozen=True, kw_only=True)
class Mnist:
    """60,000 training and 10,000 test rows (1, 28, 28), standardised by the training part."""

    model: ClassVar[str] = "cnn"
    cites: ClassVar[tuple[str, ...]] = ("mnist",)
    idea: ClassVar[str] = "handwritten digits of 28 x 28 pixels"
    files: ClassVar[Files] = SOURCES["mnist"]

    def load(self) -> Dataset:
        return load(self.files, "0123456789")


@dataclass(frozen=True, kw_only=True)
class FashionMnist:
    """60,000 training and 10,000 test rows (1, 28, 28), standardised by the training part."""

    model: ClassVar[str] = "cnn"
    cites: ClassVar[tuple[str, ...]] = ("fashion-mnist",)
    idea: ClassVar[str] = "pictures of clothes of 28 x 28 pixels"
    files: ClassVar[Files] = SOURCES["fashion-mnist"]

    def load(self) -> Dataset:
        clothes = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
        return load(self.files, clothes)
