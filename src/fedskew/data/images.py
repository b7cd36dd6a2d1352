"""Read image files without unpickling, and standardise pixels."""

import gzip
import io
import tarfile
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedskew.core.errors import require
from fedskew.data.dataset import Ints
from fedskew.data.find import LARGEST, npz_arrays
from fedskew.data.preprocessing import Array, as_array

Pixels = NDArray[np.uint8]


def standardised(train: Pixels, test: Pixels) -> tuple[NDArray[np.float32], NDArray[np.float32], Array]:
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
            int((counts > 0).sum()) > 1, f"images: channel {channel} of the training part is empty or all of one value"
        )
        share = counts / train[:, channel].size
        mean = (share * value).sum()
        deviation = np.sqrt((share * (value - mean) ** 2).sum())
        tables[channel] = (value - mean) / deviation
        moments[:, channel] = np.array([mean, deviation])[:, None, None]
    made = as_array(train, divisor=255, mean=moments[0], scale=moments[1])
    return looked_up(train, tables), looked_up(test, tables), made


def looked_up(pixels: Pixels, tables: NDArray[np.float32]) -> NDArray[np.float32]:
    """Replace each byte by its value in the channel's row of ``tables`` (channels, 256)."""
    result = np.empty(pixels.shape, dtype=np.float32)
    for channel, table in enumerate(tables):
        np.take(table, pixels[:, channel], out=result[:, channel])
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
