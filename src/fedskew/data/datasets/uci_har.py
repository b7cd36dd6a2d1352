"""UCI-HAR: six activities of 30 people, in windows of 128 samples at 50 Hz on nine channels. Rows are signals or features."""

import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar, Literal

import numpy as np

from fedskew.data.arrays import motion_features, standardised
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.datasets import SOURCES
from fedskew.data.find import Files, npz_arrays

FOLDER = "UCI HAR Dataset"
CHANNELS = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]
KEYS = ("X_train", "y_train", "subject_train", "X_test", "y_test", "activity_labels")


@dataclass(frozen=True, kw_only=True)
class UciHar:
    """7,352 training windows of 21 people and 2,947 test windows of 9 others, standardised with the training part.

    ``form="signals"`` gives the nine raw channels. ``form="features"`` gives the 561 features of the official files. If these
    files are missing, it gives 491 features computed from the signals (`fedskew.data.arrays`).
    """

    form: Literal["signals", "features"] = "signals"
    standardise: bool = True

    cites: ClassVar[tuple[str, ...]] = ("uci-har",)
    idea: ClassVar[str] = "motion of 30 people, six activities, raw signals or features; 21 people train, 9 others test"
    files: ClassVar[Files] = SOURCES["uci-har"]

    @property
    def model(self) -> str:
        return "cnn1d" if self.form == "signals" else "mlp:hidden=[128]"

    def load(self) -> Dataset:
        [(x, y, groups, x_test, y_test, names)] = self.files.read(self.arrays)
        preprocessing = None
        if self.standardise:
            x, x_test, preprocessing = standardised(x, x_test, (0, *range(2, x.ndim)))
        return self.files.build(
            (x.astype(np.float32), y.astype(np.int64)),
            (x_test.astype(np.float32), y_test.astype(np.int64)),
            [str(c).lower().replace("_", " ") for c in names],
            clients=(groups.astype(np.int64), ()),
            columns=tuple(CHANNELS) if self.form == "signals" else (),
            preprocessing=preprocessing,
            notes="the test set holds nine people who are in no client",
        )

    def arrays(self, path: Path) -> list[Rows]:
        """Read the arrays of `KEYS` from a file."""
        arrays = npz_arrays(path, KEYS) if path.suffix == ".npz" else official(path, self.form)
        if self.form == "features" and arrays[0].ndim == 3:
            arrays[0], arrays[3] = motion_features(arrays[0]), motion_features(arrays[3])
        return arrays


def official(path: Path, form: str) -> list[Rows]:
    """Read the original text files from their folder, from its archive, or from an archive that contains this archive."""
    if path.suffix == ".txt":
        return official_texts(lambda name: (path.parents[1] / name).open("rb"), form)
    with zipfile.ZipFile(path) as archive:
        if f"{FOLDER}.zip" not in archive.namelist():
            return official_texts(lambda name: archive.open(f"{FOLDER}/{name}"), form)
        with zipfile.ZipFile(io.BytesIO(archive.read(f"{FOLDER}.zip"))) as inner:
            return official_texts(lambda name: inner.open(f"{FOLDER}/{name}"), form)


def official_texts(opened: Callable[[str], IO[bytes]], form: str) -> list[Rows]:
    def table(name: str) -> Rows:
        with opened(name) as file:
            return np.loadtxt(file, dtype=np.float32, ndmin=2)

    arrays = []
    for part in ("train", "test"):
        channels = [f"{part}/Inertial Signals/{channel}_{part}.txt" for channel in CHANNELS]
        x = np.stack([table(n) for n in channels], axis=1) if form == "signals" else table(f"{part}/X_{part}.txt")
        arrays += [x, table(f"{part}/y_{part}.txt")[:, 0] - 1]
        if part == "train":
            arrays.append(table(f"{part}/subject_{part}.txt")[:, 0])
    with opened("activity_labels.txt") as file:
        lines = file.read().decode("ascii").splitlines()
    return [*arrays, np.asarray([line.split()[1] for line in lines if line.strip()])]
