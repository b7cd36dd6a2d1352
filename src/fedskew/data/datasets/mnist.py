"""MNIST and Fashion-MNIST: 70,000 grey images of 28 x 28 pixels, in the IDX files of their own pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedskew.core.errors import require
from fedskew.core.npz import bounded
from fedskew.data.dataset import Dataset
from fedskew.data.find import Files, Remote, reading
from fedskew.data.images import LARGEST, idx, standardised

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def four(base: str, sizes_and_sums: tuple[tuple[int, str], ...]) -> tuple[Remote, ...]:
    """The two pairs of images and labels."""
    pairs = zip(NAMES, sizes_and_sums, strict=True)
    return tuple(Remote(f"{name}.gz", f"{base}/{name}.gz", size, checksum) for name, (size, checksum) in pairs)


def load(files: Files, classes: tuple[str, ...], source: str) -> Dataset:
    """From four IDX files, packed or not, or an npz with ``X_train``, ``y_train``, ``X_test``, ``y_test``."""
    name, paths = files.dataset, files.paths()
    if len(paths) == 1:
        with reading(name, paths[0]), np.load(paths[0], allow_pickle=False) as z:
            arrays = [bounded(z, key, LARGEST) for key in ("X_train", "y_train", "X_test", "y_test")]
    else:
        arrays = []
        for path in paths:
            with reading(name, path):
                arrays.append(idx(path))
    train, y, test, y_test = arrays
    for path, images, labels in ((paths[0], train, y), (paths[-2:][0], test, y_test)):
        shape = images.shape[1:]
        require(shape == (28, 28), f"data set {name}: the images of {path} have shape {shape}, expected (28, 28)")
        require(images.dtype == np.uint8, f"data set {name}: the pixels of {path} are {images.dtype}, expected bytes")
        require(
            labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer),
            f"data set {name}: the labels for {path} are {labels.dtype} of shape {labels.shape}, expected an integer each",
        )
    x, x_test = standardised(train[:, None], test[:, None])
    return Dataset(
        x=x,
        y=y.astype(np.int64),
        x_test=x_test,
        y_test=y_test.astype(np.int64),
        classes=classes,
        name=name,
        source=source,
    )


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
        remotes=four(
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
        digits = tuple("0123456789")
        return load(
            self.files, digits, "Y. LeCun, C. Cortes, C. J. C. Burges: The MNIST database of handwritten digits"
        )


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
        remotes=four(
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
        return load(self.files, clothes, "H. Xiao, K. Rasul, R. Vollgraf: Fashion-MNIST, 2017, arXiv:1708.07747")
