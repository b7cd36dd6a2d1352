"""Images: digits of 8 x 8 pixels (scikit-learn), MNIST and Fashion-MNIST (28 x 28), CIFAR-10 and CIFAR-100 (32 x 32, in colour)."""

import gzip
import io
import tarfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import files as files_of_package
from itertools import chain
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedskew.core.errors import require
from fedskew.core.limits import NonNegativeInt, OpenShare
from fedskew.core.machine import cores
from fedskew.data.dataset import Dataset, Ints, Rows, some_rows
from fedskew.data.datasets import SOURCES
from fedskew.data.find import LARGEST, Files, npz_arrays
from fedskew.data.preprocessing import Pixels, as_array, standardised_pixels
from fedskew.data.splits import share_of_strata

Images = tuple[Pixels, Ints]
"""Pixels (n, channels, height, width) and labels (n,)."""


@dataclass(frozen=True, kw_only=True)
class Digits:
    """1,797 rows of 64 pixels in 0..1. The test set is ``test_fraction`` of each class, always the same rows."""

    test_fraction: OpenShare = 0.2

    model: ClassVar[str] = "mlp"
    cites: ClassVar[tuple[str, ...]] = ("digits",)
    idea: ClassVar[str] = "1,797 handwritten digits of 8 x 8 pixels, a part of scikit-learn: always available"

    files: ClassVar[Files] = SOURCES["digits"]

    def load(self) -> Dataset:
        pixels, labels = carried()
        y, preprocessing = labels.astype(np.int64), as_array(pixels, divisor=16)
        x = preprocessing(pixels)
        test = share_of_strata(y, self.test_fraction)
        return self.files.build((x[~test], y[~test]), (x[test], y[test]), "0123456789", preprocessing=preprocessing)


def carried() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Read pixels (1797, 64) in 0..16 and labels (1797,), as `sklearn.datasets.load_digits` returns them.

    They are read from scikit-learn's file, because importing scikit-learn takes longer than the rest of a run's start.
    """
    path = next(file for file in files_of_package("scikit-learn") or () if file.name == "digits.csv.gz")
    table = np.loadtxt(str(path.locate()), delimiter=",")
    return table[:, :-1], table[:, -1]


def grey_arrays(path: Path) -> list[Rows]:
    """Read the one array of an IDX file, or the four arrays of an npz file."""
    return npz_arrays(path, ("X_train", "y_train", "X_test", "y_test")) if path.suffix == ".npz" else [idx(path)]


def grey_images(files: Files, classes: Sequence[str]) -> Dataset:
    train, y, test, y_test = chain(*files.read(grey_arrays))
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
        return grey_images(self.files, "0123456789")


@dataclass(frozen=True, kw_only=True)
class FashionMnist:
    """60,000 training and 10,000 test rows (1, 28, 28), standardised by the training part."""

    model: ClassVar[str] = "cnn"
    cites: ClassVar[tuple[str, ...]] = ("fashion-mnist",)
    idea: ClassVar[str] = "pictures of clothes of 28 x 28 pixels"
    files: ClassVar[Files] = SOURCES["fashion-mnist"]

    def load(self) -> Dataset:
        clothes = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
        return grey_images(self.files, clothes)


TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = tuple(f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6))


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
        (train, y), (test, y_test) = chain(*self.files.read(read_ten))
        rows = some_rows(len(y), self.train_rows, 0, "cifar-10")
        rows_test = some_rows(len(y_test), self.test_rows, 1, "cifar-10")
        return photographs(self.files, (train[rows], y[rows]), (test[rows_test], y_test[rows_test]), TEN)


def read_ten(path: Path) -> list[Images]:
    """Read both parts from the archive, or the one part in an npz file."""
    if path.suffix == ".npz":
        return [mosaics(path)[:2]]
    return [read_cifar(path, part, labels=1) for part in (BATCHES, ("cifar-10-batches-bin/test_batch.bin",))]


@dataclass(frozen=True, kw_only=True)
class Cifar100:
    """50,000 training and 10,000 test rows (3, 32, 32) of 100 fine or 20 coarse classes, standardised with the training part."""

    labels: Literal["fine", "coarse"] = "fine"

    model: ClassVar[str] = "cnn"
    cites: ClassVar[tuple[str, ...]] = ("cifar",)
    idea: ClassVar[str] = "colour photographs of 32 x 32 pixels, 100 classes in 20 groups"
    files: ClassVar[Files] = SOURCES["cifar-100"]

    def load(self) -> Dataset:
        coarse, members = self.labels == "coarse", ((f"cifar-100-binary/{part}.bin",) for part in ("train", "test"))
        readers = (partial(read_cifar, members=names, labels=2, which=int(not coarse)) for names in members)
        [train], [test] = map(self.files.read, readers)
        names = tuple(f"{'group' if coarse else 'class'} {c}" for c in range(20 if coarse else 100))
        return photographs(self.files, train, test, names)


def photographs(files: Files, train: Images, test: Images, classes: tuple[str, ...]) -> Dataset:
    """Standardise the pixels and make the data set. Raises `BadInput` if the training part has no row of a class."""
    lacking = np.setdiff1d(np.arange(len(classes)), train[1])
    require(
        not len(lacking),
        f"data set {files.dataset}: the training part has no row of some classes; download its files again",
    )
    x, x_test, preprocessing = standardised_pixels(train[0], test[0])
    return files.build((x, train[1]), (x_test, test[1]), classes, preprocessing=preprocessing)


def idx(path: Path) -> Pixels:
    """Read the array of bytes in an IDX file, MNIST's format. The file may be packed with gzip."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    with gzip.open(path) if packed else path.open("rb") as file:
        data = file.read(LARGEST + 1)
    if data[:3] != b"\0\0\x08" or len(data) > LARGEST:
        raise ValueError(f"it is not an IDX file of at most {LARGEST:,} bytes")
    dims = data[3]
    shape = np.frombuffer(data, dtype=">u4", count=dims, offset=4)
    return np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * dims).reshape(tuple(int(n) for n in shape))


def read_cifar(path: Path, members: tuple[str, ...], labels: int, which: int = 0) -> Images:
    """Read pixels (n, 3, 32, 32) and labels (n,) from files in a CIFAR archive, without unpacking it to disk.

    Each row has ``labels`` label bytes, then 3,072 pixels. The label is the byte at index ``which``.
    """
    with tarfile.open(path) as archive:
        parts = [member(archive, name) for name in members]
    if any(len(part) % (labels + 3072) for part in parts):
        raise ValueError(f"its files do not hold rows of {labels} + 3072 bytes, images of 32 x 32 pixels")
    rows = np.concatenate([np.frombuffer(part, dtype=np.uint8).reshape(-1, labels + 3072) for part in parts])
    return rows[:, labels:].reshape(-1, 3, 32, 32), rows[:, which].astype(np.int64)


def member(archive: tarfile.TarFile, name: str) -> bytes:
    """Read a plain file in an archive. Links are not followed."""
    file = archive.extractfile(info) if (info := archive.getmember(name)).isreg() else None
    if file is None or info.size > LARGEST:
        raise ValueError(f"{name} is not a file of at most {LARGEST:,} bytes in the archive")
    return file.read()


def mosaics(path: Path) -> tuple[Pixels, Ints, tuple[str, ...]]:
    """Read pixels, labels and class names from an npz file with lossless WebP mosaics.

    Each mosaic has 25 rows of 40 images of 32 x 32 pixels.
    """
    packed, ends, labels, names = npz_arrays(path, ("webp", "offsets", "labels", "class_names"))
    if labels.shape != (1000 * (len(ends) - 1),):
        raise ValueError(f"it has labels of shape {labels.shape} for {len(ends) - 1} mosaics of 1000 images")
    pixels = np.empty((len(labels), 3, 32, 32), dtype=np.uint8)

    def decode(at: int) -> None:
        tiles = mosaic(packed[ends[at] : ends[at + 1]].tobytes()).reshape(25, 32, 40, 32, 3)
        pixels[1000 * at : 1000 * (at + 1)] = tiles.transpose(0, 2, 4, 1, 3).reshape(1000, 3, 32, 32)

    with ThreadPoolExecutor(cores()) as pool:  # Pillow decodes on several cores
        list(pool.map(decode, range(len(ends) - 1)))
    return pixels, labels.astype(np.int64), tuple(str(name) for name in names)


def mosaic(packed: bytes) -> Pixels:
    """Decode one WebP image to pixels (800, 1280, 3). Its size is checked before decoding."""
    try:
        with Image.open(io.BytesIO(packed), formats=("WEBP",)) as image:
            if image.size != (1280, 800):
                raise ValueError(f"a mosaic has {image.size[0]} x {image.size[1]} pixels, expected 1280 x 800")
            return np.asarray(image.convert("RGB"))
    except Image.DecompressionBombError as error:
        raise ValueError(str(error)) from None
