"""Rows that are arrays: image files, standardised pixels, and features of windows of motion signals."""

import gzip
import io
import tarfile
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedskew.core.errors import require
from fedskew.data.dataset import Ints, Rows
from fedskew.data.find import LARGEST, npz_arrays
from fedskew.data.preprocessing import Array, as_array

Pixels = NDArray[np.uint8]


def standardised(train: Rows, test: Rows, axes: tuple[int, ...] | None = None) -> tuple[Rows, Rows, Array]:
    """Standardise both parts with the training part's mean and deviation over the axes; return float32 and the preprocessing.

    A deviation of 0 counts as 1.
    """
    # float64, so that the sums do not depend on the order in which NumPy adds
    mean, std = (np.asarray(f(train, axis=axes, keepdims=True, dtype=np.float64))[0] for f in (np.mean, np.std))
    preprocessing = as_array(train, mean=mean, scale=np.where(std > 0, std, 1))
    return preprocessing(train), preprocessing(test), preprocessing


def standardised_pixels(train: Pixels, test: Pixels) -> tuple[NDArray[np.float32], NDArray[np.float32], Array]:
    """Standardise images (n, channels, height, width) from bytes to float32, with the training part's mean and deviation.

    Each channel is standardised separately, after scaling to 0..1. Mean and deviation come from counts of the 256 values: this is
    exact and needs no copy in float64. Returns both parts and the preprocessing. Raises `BadInput` for a channel with one value.
    """
    value = np.arange(256) / 255
    tables = np.empty((train.shape[1], 256), dtype=np.float32)
    moments = np.empty((2, train.shape[1], 1, 1))
    for channel in range(train.shape[1]):
        parts = (np.bincount(rows[:, channel].ravel(), minlength=256) for rows in np.array_split(train, 16))
        counts = np.sum(list(parts), axis=0)
        require(
            int((counts > 0).sum()) > 1,
            f"images: channel {channel} of the training part is empty or has only one value",
        )
        share = counts / train[:, channel].size
        mean = (share * value).sum()
        deviation = np.sqrt((share * (value - mean) ** 2).sum())
        tables[channel] = (value - mean) / deviation
        moments[:, channel] = np.array([mean, deviation])[:, None, None]
    preprocessing = as_array(train, divisor=255, mean=moments[0], scale=moments[1])
    return looked_up(train, tables), looked_up(test, tables), preprocessing


def looked_up(pixels: Pixels, tables: NDArray[np.float32]) -> NDArray[np.float32]:
    """Replace each byte by its value in the channel's row of ``tables`` (channels, 256)."""
    result = np.empty(pixels.shape, dtype=np.float32)
    for channel, table in enumerate(tables):
        result[:, channel] = table[pixels[:, channel]]
    return result


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


def cifar(path: Path, members: tuple[str, ...], labels: int, which: int = 0) -> tuple[Pixels, Ints]:
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
    for at, (start, end) in enumerate(pairwise(ends)):
        tiles = mosaic(packed[start:end].tobytes()).reshape(25, 32, 40, 32, 3)
        pixels[1000 * at : 1000 * (at + 1)] = tiles.transpose(0, 2, 4, 1, 3).reshape(1000, 3, 32, 32)
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


Signals = NDArray[np.float64]

BANDS = 8
"""Number of bands of equal width into which a spectrum is divided."""
ORDER = 4
"""Number of coefficients of a signal's autoregressive model."""
TINY = 1e-12


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
    value: Signals = -(share * np.log(share + TINY)).sum(-1) / np.log(power.shape[-1])
    return value


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
