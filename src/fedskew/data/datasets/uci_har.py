"""UCI-HAR: 30 people, six activities, windows of 128 samples at 50 Hz on nine channels; the signals, or features of them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar, Literal

import numpy as np

from fedskew.core.npz import bounded
from fedskew.data.dataset import Dataset
from fedskew.data.find import Files, Remote, reading
from fedskew.data.images import LARGEST
from fedskew.data.signals import motion_features

FILE = "uci_har_signals.npz"
FOLDER = "UCI HAR Dataset"
CHANNELS = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]
Arrays = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class UciHar:
    """7,352 training windows of 21 people, 2,947 test windows of 9 others, standardised by the training part.

    ``form="signals"`` gives the nine raw channels; ``"features"`` the 561 features of the official files where those are here, and
    else 491 features computed from the signals (`fedskew.data.signals`).
    """

    form: Literal["signals", "features"] = "signals"
    standardise: bool = True

    cites: ClassVar[tuple[str, ...]] = ("uci-har",)
    idea: ClassVar[str] = "motion of 30 people, six activities, raw signals or features; 21 people train, 9 others test"
    files: ClassVar[Files] = Files(
        dataset="uci-har",
        licence="CC BY 4.0 (UCI); the files' own README forbids commercial use",
        classes=6,
        natural="people",
        remotes=(
            Remote(
                "human+activity+recognition+using+smartphones.zip",
                "https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",
                sha256="c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
            ),
        ),
        others=((f"{FOLDER}.zip",), (f"{FOLDER}/train/X_train.txt",), (FILE,)),
        how="`fedskew data get uci-har` fetches the UCI data set 'Human Activity Recognition Using Smartphones'; the npz holds "
        "X_train (n, 9, 128), y_train, subject_train and the same of test, made from its 'Inertial Signals' folders",
    )

    @property
    def model(self) -> str:
        return "cnn1d" if self.form == "signals" else "mlp:hidden=[128]"

    def load(self) -> Dataset:
        path = self.files.paths()[0]
        with reading("uci-har", path):
            z = from_npz(path) if path.suffix == ".npz" else official(path, self.form)
            classes = tuple(str(c).lower().replace("_", " ") for c in z["activity_labels"])
            x, x_test = z["X_train"], z["X_test"]
            y, y_test, subject = (z[key].astype(np.int64) for key in ("y_train", "y_test", "subject_train"))
            if self.form == "features" and x.ndim == 3:
                x, x_test = motion_features(x), motion_features(x_test)
        if self.standardise:
            # in float64, so that the numbers do not depend on numpy's blocking of float32 sums
            axes = (0, *range(2, x.ndim))
            mean, std = (f(x, axis=axes, keepdims=True, dtype=np.float64) for f in (np.mean, np.std))
            x, x_test = ((part - mean) / np.where(std > 0, std, 1) for part in (x, x_test))
        return Dataset(
            x=x.astype(np.float32),
            y=y,
            x_test=x_test.astype(np.float32),
            y_test=y_test,
            groups=subject,
            classes=classes,
            name="uci-har",
            source="D. Anguita et al.: Human Activity Recognition on Smartphones, IWAAL 2012",
            notes="the test set holds nine people who are in no client",
        )


def from_npz(path: Path) -> Arrays:
    keys = ("X_train", "y_train", "subject_train", "X_test", "y_test", "activity_labels")
    with np.load(path, allow_pickle=False) as z:
        return {key: bounded(z, key, LARGEST) for key in keys}


def official(path: Path, form: str) -> Arrays:
    """The original text files, from their folder, from its archive, or from the archive around that one."""
    if path.suffix == ".txt":
        return official_texts(lambda name: (path.parents[1] / name).open("rb"), form)
    with zipfile.ZipFile(path) as archive:
        if f"{FOLDER}.zip" not in archive.namelist():
            return official_texts(lambda name: archive.open(f"{FOLDER}/{name}"), form)
        with zipfile.ZipFile(io.BytesIO(archive.read(f"{FOLDER}.zip"))) as inner:
            return official_texts(lambda name: inner.open(f"{FOLDER}/{name}"), form)


def official_texts(opened: Callable[[str], IO[bytes]], form: str) -> Arrays:
    def table(name: str) -> Any:
        with opened(name) as file:
            return np.loadtxt(file, dtype=np.float32, ndmin=2)

    z: Arrays = {}
    for part in ("train", "test"):
        names = [f"{part}/Inertial Signals/{channel}_{part}.txt" for channel in CHANNELS]
        z[f"X_{part}"] = (
            np.stack([table(n) for n in names], axis=1) if form == "signals" else table(f"{part}/X_{part}.txt")
        )
        z[f"y_{part}"] = table(f"{part}/y_{part}.txt")[:, 0] - 1
        z[f"subject_{part}"] = table(f"{part}/subject_{part}.txt")[:, 0]
    with opened("activity_labels.txt") as file:
        z["activity_labels"] = [line.split()[1] for line in file.read().decode("ascii").splitlines() if line.strip()]
    return z
