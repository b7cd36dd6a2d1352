"""UCI-HAR, the raw signals: 30 people, six activities, windows of 128 samples at 50 Hz on nine channels."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedskew.core.errors import BadInput
from fedskew.data.dataset import Dataset
from fedskew.data.find import find

FILE = "uci_har_signals.npz"
HOW = (
    "it holds X_train (n, 9, 128), y_train, subject_train and the same of test, made from the 'Inertial Signals' folders of "
    "the UCI data set 'Human Activity Recognition Using Smartphones'; put it there or set FEDSKEW_DATA to its folder"
)

# what numpy raises for files that are cut short, damaged, or not archives at all
UNREADABLE = (OSError, ValueError, KeyError, EOFError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True, kw_only=True)
class UciHar:
    """7,352 training windows of 21 people, 2,947 test windows of 9 others; each channel standardised by the training part."""

    standardise: bool = True

    model: ClassVar[str] = "cnn1d"
    cites: ClassVar[tuple[str, ...]] = ("uci-har",)
    idea: ClassVar[str] = "raw motion signals of 30 people, six activities; 21 people train, 9 others test"

    def load(self) -> Dataset:
        path = find("uci-har", FILE, HOW)
        try:
            with np.load(path, allow_pickle=False) as z:
                x, y, subject = z["X_train"], z["y_train"], z["subject_train"]
                x_test, y_test = z["X_test"], z["y_test"]
                classes = tuple(str(c).lower().replace("_", " ") for c in z["activity_labels"])
        except UNREADABLE as error:
            reason = str(error).strip() or type(error).__name__
            raise BadInput(f"data set uci-har: cannot read {path}, it is damaged or another file: {reason}") from None
        if self.standardise:
            # in float64, so that the numbers do not depend on numpy's blocking of float32 sums
            mean = x.mean(axis=(0, 2), keepdims=True, dtype=np.float64)
            std = x.std(axis=(0, 2), keepdims=True, dtype=np.float64)
            x, x_test = ((part - mean) / std for part in (x, x_test))
        return Dataset(
            x=x.astype(np.float32),
            y=y.astype(np.int64),
            x_test=x_test.astype(np.float32),
            y_test=y_test.astype(np.int64),
            groups=subject.astype(np.int64),
            classes=classes,
            name="uci-har",
            source="D. Anguita et al.: Human Activity Recognition on Smartphones, IWAAL 2012",
            notes="the test set holds nine people who are in no client",
        )
