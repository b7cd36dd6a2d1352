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
from fedskew.data.find import Files, Remote, npz_arrays

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def remotes(base: str, sizes_and_sums: tuple[tuple[int, str], ...]) -> tuple[Remote, ...]:
    """Return the four files under the URL ``base``: images and labels of both parts."""
    return tuple(Remote(f"{base}/{name}.gz", *known) for name, known in zip(NAMES, sizes_and_sums, strict=True))


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
            f"{where} labels are {labels.dtype} of shape {labels.shape}, expected an integer each",
        )
    x, x_test, made = standardised_pixels(train[:, None], test[:, None])
    return files.build((x, y.astype(np.int64)), (x_test, y_test.astype(np.int64)), classes, preprocessing=made)


@dataclass(frozen=True, kw_only=True)
class Mnist:
    """60,000 training and 10,000 test rows (1, 28, 28), standardised by the training part."""

    model: ClassVar[str] = "cnn"
    cites: ClassVar[tuple[str, ...]] = ("mnist",)
    idea: ClassVar[str] = "handwritten digits of 28 x 28 pixels"
    files: ClassVar[Files] = Files(
        dataset="mnist",
        licence="CC BY-SA 3.0",
        classes=10,
        source="Y. LeCun, C. Cortes, C. J. C. Burges: The MNIST database of handwritten digits",
        remotes=remotes(
            "https://storage.googleapis.com/cvdf-datasets/mnist",
            (
                (9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
                (28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
                (1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
                (4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
            ),
        ),
        others=(NAMES, ("mnist.npz",)),
    )

    def load(self) -> Dataset:
        return load(self.files, "0123456789")


@dataclass(frozen=True, kw_only=True)
class FashionMnist:
    """60,000 training and 10,000 test rows (1, 28, 28), standardised by the training part."""

    model: ClassVar[str] = "cnn"
    cites: ClassVar[tuple[str, ...]] = ("fashion-mnist",)
    idea: ClassVar[str] = "pictures of clothes of 28 x 28 pixels"
    files: ClassVar[Files] = Files(
        dataset="fashion-mnist",
        licence="MIT",
        classes=10,
        source="H. Xiao, K. Rasul, R. Vollgraf: Fashion-MNIST, 2017, arXiv:1708.07747",
        remotes=remotes(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
            (
                (26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
                (29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
                (4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
                (0, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
            ),
        ),
        others=(NAMES,),
        common=(*NAMES, *(f"{name}.gz" for name in NAMES)),
    )

    def load(self) -> Dataset:
        clothes = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
        return load(self.files, clothes)
