"""UCI-HAR: six activities of 30 people, in windows of 128 samples at 50 Hz on nine channels. Rows are signals or features."""

import hashlib
import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import FedskewError
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.datasets import SOURCES
from fedskew.data.find import Files, kept, npz_arrays
from fedskew.data.preprocessing import standardised

FOLDER = "UCI HAR Dataset"
CHANNELS = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]
KEYS = ("X_train", "y_train", "subject_train", "X_test", "y_test", "activity_labels")


@dataclass(frozen=True, kw_only=True)
class UciHar:
    """7,352 training windows of 21 people and 2,947 test windows of 9 others, standardised with the training part.

    ``form="signals"`` gives the nine raw channels. ``form="features"`` gives the 561 features of the official files. If these
    files are missing, it gives 491 features computed from the signals (`motion_features`). The cache folder keeps these.
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
        notes = "the test set holds nine people who are in no client"
        if x.shape[1] == 491:
            notes += "; 491 features are computed from the signals, because the official 561 are not here"
        if self.standardise:
            x, x_test, preprocessing = standardised(x, x_test, (0, *range(2, x.ndim)))
        return self.files.build(
            (x.astype(np.float32), y.astype(np.int64)),
            (x_test.astype(np.float32), y_test.astype(np.int64)),
            [str(c).lower().replace("_", " ") for c in names],
            clients=(groups.astype(np.int64), ()),
            columns=tuple(CHANNELS) if self.form == "signals" else (),
            preprocessing=preprocessing,
            notes=notes,
        )

    def arrays(self, path: Path) -> list[Rows]:
        """Read the arrays of `KEYS` from a file."""
        arrays = npz_arrays(path, KEYS) if path.suffix == ".npz" else official(path, self.form)
        if self.form == "features" and arrays[0].ndim == 3:
            arrays[0], arrays[3] = kept_features(arrays[0]), kept_features(arrays[3])
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


Signals = NDArray[np.float64]

BANDS = 8
"""Number of bands of equal width into which a spectrum is divided."""
ORDER = 4
"""Number of coefficients of a signal's autoregressive model."""
TINY = 1e-12


def kept_features(windows: Rows) -> Rows:
    """Return `motion_features` from the cache folder. They are computed once for the same windows and the same code."""
    digest = hashlib.sha256(Path(__file__).read_bytes() + windows.tobytes()).hexdigest()
    try:
        return np.asarray(kept(f"motion-{digest[:16]}", lambda path: np.save(path, motion_features(windows))))
    except FedskewError:  # the folder cannot be written: they take five seconds each time
        return motion_features(windows)


def motion_features(windows: NDArray[np.floating]) -> NDArray[np.float32]:
    """Compute 491 features (n, 491) of windows (n, 9, 128); they are not standardised.

    The nine channels are three axes each of body acceleration, angular speed and total acceleration. Five triples of axes are
    used: gravity (total minus body acceleration), body acceleration, angular speed, and the derivatives of the last two. Each
    triple has four signals: its axes and its length.
    - For each of the 20 signals: mean, deviation, median absolute deviation, maximum, minimum, logarithm of the energy,
      interquartile range, entropy, four autoregressive coefficients.
    - For each triple: correlations of its axes, mean absolute sum.
    - For the spectra of all signals but gravity: mean, deviation, maximum, position of the maximum, centroid, skewness, kurtosis,
      entropy; for axes also the energy in eight bands.
    - Cosines of gravity with the mean of each other triple, and with the axes.
    """
    parts = [block(windows[lo : lo + 1024].astype(np.float64)) for lo in range(0, len(windows), 1024)]
    return np.concatenate(parts).astype(np.float32)


def block(windows: Signals) -> Signals:
    body, turn = windows[:, 0:3], windows[:, 3:6]
    gravity = windows[:, 6:9] - body
    triples = [gravity, body, np.diff(body), turn, np.diff(turn)]
    lengths = [np.linalg.norm(t, axis=1, keepdims=True) for t in triples]
    columns: list[Signals] = []
    for triple, length in zip(triples, lengths, strict=True):
        columns += [in_time(triple), in_time(length), correlations(triple), np.abs(triple).sum(1).mean(-1)[:, None]]
    for triple, length in zip(triples[1:], lengths[1:], strict=True):
        columns += [in_frequency(triple), in_frequency(length), bands(triple)]
    down = gravity.mean(-1)
    columns += [cosine(down, t.mean(-1)) for t in triples[1:]]
    columns += [down / (np.linalg.norm(down, axis=1, keepdims=True) + TINY)]
    return np.concatenate(columns, axis=1)


def in_time(x: Signals) -> Signals:
    """Compute 12 features in time of each signal: (n, signals, samples) to (n, signals * 12)."""
    from scipy import stats

    mean, median = x.mean(-1), np.median(x, -1)
    features = [
        *(mean, x.std(-1), np.median(np.abs(x - median[..., None]), -1), x.max(-1), x.min(-1)),
        *(np.log((x**2).mean(-1) + TINY), stats.iqr(x, axis=-1), entropy(x**2)),
        *np.moveaxis(autoregression(x - mean[..., None], ORDER), -1, 0),
    ]
    return np.concatenate(features, axis=1)


def in_frequency(x: Signals) -> Signals:
    """Compute 8 features of each signal's spectrum without its constant part: (n, signals, samples) to (n, signals * 8)."""
    from scipy import stats

    a = amplitudes(x)
    at = np.arange(1, a.shape[-1] + 1) / a.shape[-1]
    features = [
        *(a.mean(-1), a.std(-1), a.max(-1), at[a.argmax(-1)], (a * at).sum(-1) / (a.sum(-1) + TINY)),
        *(stats.skew(a, axis=-1), stats.kurtosis(a, axis=-1), entropy(a**2)),
    ]
    return np.concatenate([np.nan_to_num(part) for part in features], axis=1)


def bands(x: Signals) -> Signals:
    """Return the logarithm of the energy in each band of the spectrum, (n, signals * bands)."""
    parts = [(part**2).mean(-1) for part in np.array_split(amplitudes(x), BANDS, axis=-1)]
    return np.log(np.concatenate(parts, axis=1) + TINY)


def amplitudes(x: Signals) -> Signals:
    return np.abs(np.fft.rfft(x)[..., 1:]) / x.shape[-1]


def entropy(power: Signals) -> Signals:
    """Return the entropy (0..1) of the shares on the last axis."""
    share = power / (power.sum(-1, keepdims=True) + TINY)
    return -(share * np.log(share + TINY)).sum(-1) / np.log(power.shape[-1])


def correlations(x: Signals) -> Signals:
    """Return the correlations (n, 3) of the three pairs of axes; 0 if an axis is constant."""
    z = x - x.mean(-1, keepdims=True)
    z = z / (np.linalg.norm(z, axis=-1, keepdims=True) + TINY)
    return np.stack([(z[:, i] * z[:, j]).sum(-1) for i, j in ((0, 1), (0, 2), (1, 2))], axis=1)


def cosine(a: Signals, b: Signals) -> Signals:
    value = (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1) + TINY)
    return np.asarray(value)[:, None]


def autoregression(x: Signals, order: int) -> Signals:
    """Estimate by Burg's method, from (..., samples), coefficients a (..., order) with x_t = - sum_i a_i x_{t-i} + noise."""
    ahead, behind = x[..., 1:], x[..., :-1]
    a = np.ones((*x.shape[:-1], 1))
    for _ in range(order):
        power = (ahead**2 + behind**2).sum(-1)
        k = -2 * (ahead * behind).sum(-1) / (power + TINY)
        longer = np.concatenate([a, np.zeros_like(a[..., :1])], axis=-1)
        a = longer + k[..., None] * longer[..., ::-1]
        ahead, behind = (ahead + k[..., None] * behind)[..., 1:], (behind + k[..., None] * ahead)[..., :-1]
    return a[..., 1:]
