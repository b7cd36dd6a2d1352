"""Handwritten digits that scikit-learn contains (from UCI's optical recognition set): 8 x 8 pixels, 10 classes."""

from dataclasses import dataclass
from importlib.metadata import files
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedskew.core.limits import OpenShare
from fedskew.data.dataset import Dataset
from fedskew.data.datasets import SOURCES
from fedskew.data.find import Files
from fedskew.data.preprocessing import as_array
from fedskew.data.splits import share_of_strata


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
    path = next(file for file in files("scikit-learn") or () if file.name == "digits.csv.gz")
    table = np.loadtxt(str(path.locate()), delimiter=",")
    return table[:, :-1], table[:, -1]
