"""Numbers that describe an image, a signal or a sequence of symbols. A diagnosis compares them between clients."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fedskew.measure.heterogeneity.columns import Fact
from fedskew.measure.heterogeneity.rows import Floats, Ints

COLOURS = ("red", "green", "blue")

SYMBOLS = 100
"""Maximum number of symbols that are compared. The most frequent are taken."""


def image_numbers(x: NDArray[np.generic]) -> dict[str, Floats]:
    """Return brightness, contrast and sharpness (n,) of images (n, channels, height, width), and of each of several channels.

    Brightness is the mean of the pixels, contrast their standard deviation, sharpness the mean difference of neighbours. The
    balance of a channel is its brightness minus the mean of the other channels.
    """
    v = np.asarray(x, dtype=np.float64)
    channels = v.shape[1]
    found = of_image(v.mean(1), "")
    if channels > 1:
        names = COLOURS if channels == len(COLOURS) else [f"channel {at + 1}" for at in range(channels)]
        for at, name in enumerate(names):
            found |= of_image(v[:, at], f"{name} ")
        all_of_them = sum(found[f"{name} brightness"] for name in names)
        for name in names:
            own = found[f"{name} brightness"]
            found[f"{name} balance"] = own - (all_of_them - own) / (channels - 1)
    return found


def of_image(v: Floats, prefix: str) -> dict[str, Floats]:
    """Return brightness, contrast and sharpness (n,) of images (n, height, width)."""
    steps = [np.abs(np.diff(v, axis=axis)).reshape(len(v), -1) for axis in (1, 2)]
    return {
        f"{prefix}brightness": v.mean((1, 2)),
        f"{prefix}contrast": v.std((1, 2)),
        f"{prefix}sharpness": np.concatenate(steps, axis=1).mean(1) if v[0].size > 1 else np.zeros(len(v)),
    }


def signal_numbers(x: NDArray[np.generic], names: Sequence[str] = ()) -> dict[str, Floats]:
    """Return mean, standard deviation and dominant frequency (n,) of each channel of windows (n, channels, time).

    The frequency is in periods a window; NaN for a constant window. Without ``names``, channels are numbered.
    """
    v = np.asarray(x, dtype=np.float64)
    power = np.abs(np.fft.rfft(v - v.mean(2, keepdims=True), axis=2)) ** 2
    scale = v.std(2)
    frequency = np.where(scale > 0, power.argmax(2), np.nan)
    found = {}
    for at, name in enumerate(names or [f"channel {at + 1}" for at in range(v.shape[1])]):
        found[f"mean of {name}"] = v[:, at].mean(1)
        found[f"scale of {name}"] = scale[:, at]
        found[f"dominant frequency of {name}"] = frequency[:, at]
    return found


def of_symbols(y: Ints, names: Sequence[str]) -> Iterator[Fact]:
    """Yield facts of rows (n, T) of symbols: the row's length, and its share of each frequent symbol. -1 is no symbol."""
    length = (y >= 0).sum(1)
    yield "length of a row", "content", "", length.astype(np.float64)
    often = np.bincount(y[y >= 0], minlength=len(names))
    for at in np.argsort(-often, kind="stable")[:SYMBOLS].tolist():
        yield (
            "symbol",
            "symbol",
            names[at],
            np.divide((y == at).sum(1), length, where=length > 0, out=np.full(len(y), np.nan)),
        )
